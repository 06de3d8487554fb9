"""The memory that is estimated before training is, within 15 %, what a step on a GPU takes at its peak."""

import gc

import pytest
import torch
from transformer_support import shipped

from bearings.lightning_modules.cost import training_memory
from bearings.lightning_modules.language_model import LanguageModel
from bearings.lightning_modules.transformer import Transformer
from bearings.session.overrides import choices_of

pytestmark = pytest.mark.gpu
ROWS, LENGTH = 16, 1024


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("encoding", choices_of("encoding"))
def test_the_estimate_is_the_peak(encoding, checkpointing, compiled):
    sizes = {"width": 512, "layers": 8, "heads": 8, "dropout": 0.1, "checkpointing": checkpointing}
    gc.collect()
    before = torch.cuda.memory_allocated()
    model = LanguageModel(Transformer(8192, shipped(encoding), **sizes), seed=0, steps=1).cuda()
    transformer = model.transformer
    estimate = training_memory(transformer, ROWS, LENGTH, "bf16-mixed", compiled)
    if compiled:
        transformer.compile_parts()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(8192, (ROWS, LENGTH), device="cuda")
    for step in range(3):
        if step == 2:
            torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model.nats({"inputs": tokens, "targets": tokens}) / tokens.numel()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    peak = torch.cuda.max_memory_allocated() - before
    torch.compiler.reset()
    assert estimate == pytest.approx(peak, rel=0.15), f"{estimate / 2**20:.0f} MiB estimated, {peak / 2**20:.0f} taken"
