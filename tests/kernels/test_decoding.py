"""Decoding with a cache of keys, in Triton and in PyTorch."""

from functools import partial

import pytest
import torch
from encodings_support import attend, make_encoding, make_inputs, one_thread  # noqa: F401
from fused_support import (  # noqa: F401
    BASE,
    DEVICE,
    DTYPES,
    GPU,
    by_kernel,
    draw,
    every_operator,
    exact,
    outcome,
    plain,
    poisoned_memory,
)

from bearings.kernels.attention.fox import fox_attention
from bearings.kernels.attention.nope import nope_attention
from bearings.kernels.attention.pope import magnitude, pope_attention
from bearings.kernels.attention.rope import geometric, rope_attention

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread", "poisoned_memory")


@every_operator
@pytest.mark.parametrize(("new", "heads"), [(1, (2, 2)), (1, (4, 1)), (3, (4, 2))])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decoding_error_is_within_budget(name, new, heads, dtype):
    for keys, head_dim in [(new + 1, 16), (140, 48)] if not GPU else [(new + 1, 16), (70, 48), (5000, 128)]:
        inputs = draw(name, new, keys, head_dim, dtype, heads)
        with torch.no_grad():
            out, low = by_kernel(name, inputs, None, "triton").double(), plain(name, inputs, None).double()
            wanted = exact(name, {n: x.double() for n, x in inputs.items()}, None)
        error, budget = ((found - wanted).norm() / wanted.norm() for found in (out, low))
        assert error <= 2 * budget + torch.finfo(dtype).eps, f"T={keys} D={head_dim}: {error:.1e}, plain {budget:.1e}"


@pytest.mark.parametrize("implementation", ["triton", "torch"])
@pytest.mark.parametrize("queries", [1, 3, 20])
def test_pope_accepts_magnitudes_as_keys(queries, implementation):
    inputs = draw("pope", queries, 40, 16, torch.float32)
    grad = torch.randn(inputs["q"].shape, device=DEVICE)

    def attend(i, magnitudes):
        k = magnitude(i["k"]) if magnitudes else i["k"]
        given = {"implementation": implementation, "magnitudes": magnitudes}
        return pope_attention(i["q"], k, i["v"], i["delta"], BASE, **given)

    wanted, got = (outcome(lambda i, m=m: attend(i, m), inputs, grad) for m in (False, True))
    with torch.no_grad():
        got["decoded"], wanted["decoded"] = attend(inputs, True).double(), wanted["out"]
    for name, x in wanted.items():
        torch.testing.assert_close(got[name], x, rtol=1e-4, atol=1e-5)


def test_opcheck_of_decoding():
    from bearings.kernels.attention.decode import decode

    i, frequencies = draw("pope", 2, 20, 16, torch.float32), geometric(BASE, 16)
    torch.library.opcheck(
        decode.registered, (i["q"], i["k"], i["v"], i["delta"], None, None, None, "polar", frequencies, 0.25)
    )


@pytest.mark.parametrize("name", ["nope", "rope", "pope", "fox", "tape"])
def test_triton_prefill_and_decoding_match_full_pass(name):
    encoding = make_encoding(name, dtype=torch.float32, implementation="triton").to(DEVICE)
    inputs = [x.to(DEVICE) for x in make_inputs(40, dtype=torch.float32)]
    with torch.no_grad():
        whole = attend(encoding, inputs)
        state, parts = encoding.new_state(2, 40, inputs[1]), []
        for start, end in ((0, 20), (20, 37), (37, 39), (39, 40)):
            parts.append(attend(encoding, [x[:, start:end] for x in inputs], state))
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)


def test_shared_delta_decoding_matches_full_pass():
    q, k, v = (torch.randn(1, n, 2, 16, device=DEVICE) for n in (1, 20, 20))
    delta = -torch.rand(1, 16, device=DEVICE).expand(2, 16)
    fused, plain = (pope_attention(q, k, v, delta, implementation=name) for name in ("triton", "torch"))
    torch.testing.assert_close(fused, plain, rtol=1e-3, atol=1e-4)


def test_float32_cache_under_autocast():
    q, k, v = (torch.randn(1, n, 2, 16, device=DEVICE) for n in (3, 40, 40))
    dtype = torch.float16
    with torch.autocast(DEVICE.type, dtype):
        fused = rope_attention(q.to(dtype), k, v, implementation="triton")
    assert fused.dtype == dtype
    torch.testing.assert_close(fused.float(), rope_attention(q, k, v, implementation="torch"), rtol=2e-2, atol=5e-3)


@pytest.mark.parametrize("queries", [1, 9])
def test_keys_and_values_are_computed_in_the_dtype_of_the_queries(queries):
    """As by kernels. PyTorch's attention refuses a cache of another dtype."""
    _, q, k, v = make_inputs(9, dtype=torch.float32)
    q, k, v = q[:, -queries:], k.half(), v.half()
    sums = torch.zeros(2, 9, 4, dtype=torch.float64)
    for operator in (nope_attention, rope_attention, partial(fox_attention, sums=sums)):
        out = operator(q, k=k, v=v, implementation="torch")
        expected = operator(q, k=k.float(), v=v.float(), implementation="torch")
        torch.testing.assert_close(out.float(), expected, rtol=0.0, atol=2e-3)
