"""FLOPs of attention are those that PyTorch counts."""

import pytest
import torch
from encodings_support import ENCODINGS, HEADS, KV_HEADS, WIDTH, attend, make_encoding, make_inputs
from torch.utils.flop_counter import FlopCounterMode

from bearings.encodings.base import Encoding
from bearings.encodings.kernelized_rpe import CHUNK


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in ("alibi", "cope", "fire", "grape_path", "irpe", "shaw", "urpe", "wavelet")),
        *(("dape", {"kernel": 1, "bias": bias}) for bias in ("none", "alibi", "fire")),
    ],
)
def test_flops_are_those_that_pytorch_counts(name, options, monkeypatch):
    encoding = make_encoding(name, dtype=torch.float32, **options)
    # PyTorch computes all pairs, also those that are not visible.
    monkeypatch.setattr(Encoding, "pairs_seen", lambda self, length, reach=None: length * min(length, reach or length))
    with FlopCounterMode(display=False) as counter:
        attend(encoding, make_inputs(48, batch=1, dtype=torch.float32))
    weights = sum(module.weight.numel() for module in encoding.modules() if isinstance(module, torch.nn.Linear))
    assert encoding.attention_flops(48) + 2 * 48 * weights == counter.get_total_flops()


def test_flops_of_a_chunk_of_linear_attention_are_those_that_pytorch_counts():
    encoding, counted = make_encoding("kernelized_rpe", dtype=torch.float32), []
    for chunks in (2, 3):
        with FlopCounterMode(display=False) as counter:
            attend(encoding, make_inputs(chunks * CHUNK, batch=1, dtype=torch.float32))
        counted.append(counter.get_total_flops())
    assert encoding.attention_flops(CHUNK) == counted[1] - counted[0]


@pytest.mark.parametrize("name", ["transformer_xl", "rcmha"])
def test_flops_of_encoded_queries_are_those_that_pytorch_counts(name):
    encoding, inputs = make_encoding(name), make_inputs(48, batch=1)
    with FlopCounterMode(display=False) as counter:
        encoding.encode_query(inputs.q, torch.arange(48))
    assert encoding.attention_flops(48) - Encoding.attention_flops(encoding, 48) == counter.get_total_flops()


@pytest.mark.parametrize("window", [None, 4, 20])
@pytest.mark.parametrize("reach", [None, 2, 30])
def test_pairs_seen_are_those_of_each_query(window, reach):
    encoding = ENCODINGS["nope"](WIDTH, HEADS, KV_HEADS, 64, window=window)
    assert encoding.pairs_seen(9, reach) == sum(min(t + 1, window or 9, reach or 9) for t in range(9))
