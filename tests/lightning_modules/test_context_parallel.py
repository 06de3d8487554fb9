"""Context parallelism: the losses, gradients and scores of one process, for every encoding that supports it."""

import json
import re
from functools import partial

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torch import distributed, multiprocessing

from bearings.encodings.contract.state import State
from bearings.encodings.rope import RoPE
from bearings.lightning_modules import context_parallel
from bearings.lightning_modules.context_parallel import (
    ContextParallel,
    SimulatedRank,
    collate_part,
    part_of,
    unsupported,
)
from bearings.lightning_modules.cost import _saved_bytes, bytes_saved_by
from bearings.lightning_modules.data_module import IGNORED, Piece, collate
from bearings.lightning_modules.exchange import Exchange
from bearings.lightning_modules.transformer import Transformer
from bearings.session.configuration import build
from bearings.session.overrides import choices_of
from bearings.session.settings import file_of

SIZE = 2
NAMES = [
    *choices_of("encoding"),
    *(f"{name} encoding.window={n}" for name in ("rope", "alibi", "fox", "carope", "grape_path") for n in (5, 15)),
    *(f"path encoding.convolution={n}" for n in (0, 8)),  # 8 reaches beyond the chunk before
    "kernelized_rpe encoding.max_distance=3",
]
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def model_of(name, **options):
    encoding, _, option = name.partition(" encoding.")
    block = OmegaConf.to_container(file_of("encoding", encoding), resolve=True)
    if option:
        key, value = option.split("=")
        block[key] = int(value)
    options = {"width": 32, "layers": 2, "heads": 4, "kv_heads": 2, **options}
    return Transformer(11, partial(build, block, "encoding"), **options).double().train()


def some_rows():
    random = np.random.default_rng(0)
    for length in (22, 14):
        tokens = random.integers(1, 11, length + 1)
        yield [Piece(tokens[:-1], np.where(np.arange(length) % 5, tokens[1:], IGNORED), 1.0)]


def on_rank(place, folder, names, backend=None):
    """Compare both ranks' sums with one process, for these encodings; write why some are not supported.

    With a `backend`, ranks compile their blocks.
    """
    torch.set_num_threads(1)
    store = distributed.FileStore(str(folder / "store"), SIZE)
    distributed.init_process_group("gloo", store=store, rank=place, world_size=SIZE)
    context, rows, reasons = ContextParallel(SIZE), [*some_rows()], {}
    whole, part = collate(rows), collate_part(rows, place, SIZE)
    for name in names:
        model = model_of(name, layers=1 if backend else 2)
        if reason := unsupported(model, torch.device("cpu")):
            reasons[name] = reason
            continue
        one = model.nats(whole["inputs"], whole["targets"])
        one.backward()
        wanted = [p.grad for p in model.parameters()]
        model.zero_grad()
        if backend is not None:
            model.compile_parts(backend=backend)
        mine = context.nats(model, part["inputs"], part["targets"])
        mine.backward()
        total = mine.detach().clone()
        distributed.all_reduce(total)
        torch.testing.assert_close(total, one.detach(), msg=lambda text, name=name: f"{name}: {text}")
        for parameter, gradient in zip(model.parameters(), wanted, strict=True):
            assert (parameter.grad is None) == (gradient is None), name  # ranks exchange only gradients that exist
            if gradient is None:
                continue
            found = parameter.grad
            distributed.all_reduce(found)
            torch.testing.assert_close(found, gradient, msg=lambda text, name=name: f"{name}: {text}", **EXACT)
    if place == 0:
        (folder / "reasons.json").write_text(json.dumps(reasons))
    distributed.destroy_process_group()


def on_both_ranks(function, arguments):
    """Where CUDA is, forks cannot compute gradients; elsewhere they save the time of imports."""
    method = "spawn" if torch.cuda.is_available() else "fork"
    multiprocessing.start_processes(function, arguments, SIZE, start_method=method)


def test_losses_and_gradients_equal_those_of_one_process(tmp_path):
    on_both_ranks(on_rank, (tmp_path, NAMES))
    reasons = json.loads((tmp_path / "reasons.json").read_text())
    assert reasons == {"seqpe": "DigitEncoder draws positions in training, which needs whole rows"}


def test_blocks_can_be_compiled(tmp_path):
    on_both_ranks(on_rank, (tmp_path, ["rope", "path_fox", "tape"], "aot_eager"))
    assert not json.loads((tmp_path / "reasons.json").read_text())


def saved_on_rank(place, folder, names):
    """Compare what the first rank saves with what a simulated one does."""
    torch.set_num_threads(1)
    store = distributed.FileStore(str(folder / "store"), SIZE)
    distributed.init_process_group("gloo", store=store, rank=place, world_size=SIZE)
    context, tokens = ContextParallel(SIZE), torch.zeros(2, 300, dtype=torch.long)
    part = part_of(tokens, place, SIZE, 0)
    for name in names:
        model = model_of(name).float()
        saved = bytes_saved_by(model, partial(context.nats, model, part, part))
        if place == 0:
            assert saved == _saved_bytes(model, *tokens.shape, "32-true", ranks=SIZE), name
    distributed.destroy_process_group()


def test_the_memory_estimate_is_what_a_rank_saves(tmp_path):
    on_both_ranks(saved_on_rank, (tmp_path, ["nope", "path_fox", "fox", "cope", "tpe", "tape"]))


class Recorded(Exchange):
    """Records when a chunk shares something, as "s"."""

    events = ""

    def share(self, through, **tensors):
        Recorded.events += "s"
        return super().share(through, **tensors)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "seqpe"])
def test_both_chunks_share_before_either_attends(name, monkeypatch):
    """Otherwise ranks would wait while others compute the attention of their first chunk."""
    monkeypatch.setattr(context_parallel, "Exchange", Recorded)
    monkeypatch.setattr(Recorded, "events", "")

    def note(event, *given):
        Recorded.events += event

    model = model_of(name)
    for encoding in model.encodings:
        encoding.register_forward_pre_hook(partial(note, "("))
        encoding.register_forward_hook(partial(note, ")"))
    part = collate_part([*some_rows()], 0, SIZE)
    assert SimulatedRank(SIZE).nats(model, part["inputs"], part["targets"]).isfinite()
    assert re.fullmatch(r"s*(\((s+)\(\2\)\))+", Recorded.events)  # the second chunk within the call of the first


def test_states_that_ranks_cannot_exchange_are_refused(monkeypatch):
    monkeypatch.setattr(RoPE, "new_state", lambda self, batch, capacity, like: State())
    reason = unsupported(model_of("rope"), torch.device("cpu"))
    assert reason == "ranks cannot exchange the decoding state of RoPE: use another encoding, such as nope"


def test_parts_of_a_row_are_whole_and_balanced():
    rows = [*some_rows()]
    whole, parts = collate(rows), [collate_part(rows, place, 3) for place in range(3)]
    inputs = torch.cat([part["inputs"].unflatten(1, (2, -1)) for part in parts], 1)[:, [0, 2, 4, 5, 3, 1]].flatten(1)
    assert torch.equal(inputs[:, : whole["inputs"].shape[1]], whole["inputs"])
    assert not inputs[:, whole["inputs"].shape[1] :].any()
    assert sum((part["targets"] != IGNORED).sum() for part in parts) == (whole["targets"] != IGNORED).sum()
    assert sum(part["tokens"] for part in parts) == pytest.approx(whole["tokens"])
    assert sum(part["units"] for part in parts) == pytest.approx(whole["units"])
