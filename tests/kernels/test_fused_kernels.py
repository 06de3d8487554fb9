"""Triton and cuDNN kernels compared with the float64 reference, on a GPU if available or in the interpreter."""

import math

import pytest
import torch
from encodings_support import attend, make_documents, make_encoding, make_inputs, one_thread  # noqa: F401
from fused_support import (  # noqa: F401
    BASE,
    DEVICE,
    DTYPES,
    GPU,
    by_kernel,
    check_budget,
    draw,
    every_operator,
    outcome,
    plain,
    poisoned_memory,
)

from bearings.kernels import choice
from bearings.kernels.attention.fox import fox_attention
from bearings.kernels.attention.merge import attention_lse
from bearings.kernels.attention.pope import pope_attention
from bearings.kernels.attention.rope import geometric, rope_attention, rotate
from bearings.kernels.documents import Documents
from bearings.kernels.path.attention import path_attention

triton = pytest.importorskip("triton")
tl = triton.language

pytestmark = pytest.mark.usefixtures("one_thread", "poisoned_memory")


if GPU:
    SHAPES = [(length, length, 64) for length in (1, 2, 15, 16, 17, 63, 64, 65, 127, 200, 1000)]
    SHAPES += [(40, 40, head_dim) for head_dim in choice.HEAD_DIMS]
    SHAPES += [(40, 70, 64), (33, 130, 48), (17, 500, 128), (300, 1000, 96)]
else:
    SHAPES = [(1, 1, 16), (33, 33, 48), (20, 40, 16), (8, 8, 128)]


@every_operator
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("queries", "keys", "head_dim"), SHAPES)
def test_triton_error_is_within_budget(name, dtype, queries, keys, head_dim):
    if not GPU and dtype != torch.float32 and (queries, keys) != (20, 40):
        pytest.skip("one shape in half precision is enough for the interpreter")
    check_budget(name, draw(name, queries, keys, head_dim, dtype), None, "triton")


@every_operator
@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (3, 3)] if GPU else [(3, 1)])
def test_triton_grouped_heads(name, heads):
    check_budget(name, draw(name, 35, 35, 16, DTYPES[-1] if GPU else torch.float32, heads), None, "triton")


@pytest.mark.parametrize(
    "plan", ["triton", choice.Plan("triton", "triton", "it is the fastest")], ids=["named", "chosen"]
)
@pytest.mark.parametrize(("batch", "length"), [(0, 4), (2, 0)])
def test_no_rows_or_no_tokens(batch, length, plan):
    q, k, v, w = (torch.randn(batch, length, 2, 16, device=DEVICE, requires_grad=True) for _ in range(4))
    beta, sums = torch.rand(q.shape[:3], device=DEVICE), torch.zeros(q.shape[:3], dtype=torch.float64, device=DEVICE)
    outs = [
        rope_attention(q, k, v, implementation=plan),
        fox_attention(q, k, v, sums, implementation=plan),
        attention_lse(q, k, v, implementation=plan)[0],
        path_attention(q, k, v, w, beta, 0.25, implementation=plan),
    ]
    for out in outs:
        assert out.shape == v.shape
        assert torch.autograd.grad(out.sum(), v)[0].shape == v.shape


@every_operator
@pytest.mark.parametrize("lengths", [[5, 1, 29, 14], [70], [64, 6]] if GPU else [[5, 1, 29, 14]])
def test_triton_packed_documents(name, lengths):
    ids = torch.arange(len(lengths), device=DEVICE).repeat_interleave(torch.tensor(lengths, device=DEVICE))
    documents = torch.stack([ids, (len(lengths) - ids).flip(0)])
    for dtype in DTYPES if GPU else DTYPES[:1]:
        check_budget(name, draw(name, sum(lengths), sum(lengths), 16, dtype), documents, "triton")


@pytest.mark.parametrize(
    ("queries", "keys", "wider", "times"), [(20, 20, "qk", 2), (9, 40, "qk", 3), (1, 40, "qk", 2), (20, 20, "v", 2)]
)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, DTYPES[-1]] if GPU else [torch.float32], ids=str)
def test_scores_and_values_with_different_numbers_of_channels(queries, keys, wider, times, packed, dtype):
    inputs = draw("nope", queries, keys, 16, dtype)
    inputs |= {name: inputs[name].repeat(1, 1, 1, times) * torch.rand(16 * times, device=DEVICE) for name in wider}
    inputs = {name: x.to(dtype) for name, x in inputs.items()}
    documents = torch.arange(keys, device=DEVICE).expand(2, -1) // 13 if packed else None
    shape = (*inputs["q"].shape[:3], inputs["v"].shape[3])
    grad = torch.randn(shape, device=DEVICE).to(dtype)
    got = outcome(lambda i: by_kernel("nope", i, documents, "triton"), inputs, grad)
    low = outcome(lambda i: plain("nope", i, documents), inputs, grad)
    wanted = outcome(lambda i: plain("nope", i, documents), {n: x.double() for n, x in inputs.items()}, grad.double())
    for what, x in wanted.items():
        error, budget = ((found[what] - x).norm() / x.norm().clamp(min=1) for found in (got, low))
        assert error <= 2 * budget + 2 * torch.finfo(dtype).eps, what


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["nope", "rope", "pope"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("implementation", ["cudnn", "auto"])
@pytest.mark.parametrize(("queries", "keys", "head_dim"), [s for s in SHAPES if s[0] == s[1]])
def test_cudnn_error_is_within_budget(name, dtype, implementation, queries, keys, head_dim):
    check_budget(name, draw(name, queries, keys, head_dim, dtype), None, implementation)


@every_operator
def test_strided_inputs_and_an_expanded_gradient(name):
    inputs = draw(name, 20, 20, 16, torch.float32)
    strided = {
        n: torch.stack([x, torch.full_like(x, math.nan)], -1)[..., 0] if n in "qkv" else x for n, x in inputs.items()
    }
    transposed = {n: x.transpose(1, 2).contiguous().transpose(1, 2) if n in "qkv" else x for n, x in inputs.items()}
    results = []
    for given in (inputs, strided, transposed):
        leaves = {n: x.detach().requires_grad_() for n, x in given.items()}
        by_kernel(name, leaves, None, "triton").sum().backward()
        results.append([x.grad for x in leaves.values()])
    for result in results[1:]:
        for got, wanted in zip(result, results[0], strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@every_operator
def test_gradients_are_deterministic(name):
    length = 2000 if GPU else 20
    inputs = draw(name, length, length, 64 if GPU else 16, DTYPES[-1])
    grad = torch.randn(inputs["q"].shape, device=DEVICE)
    first, *others = (
        outcome(lambda i: by_kernel(name, i, None, "triton"), inputs, grad) for _ in range(4 if GPU else 2)
    )
    assert all(torch.equal(other[what], first[what]) for other in others for what in first)


def test_phases_are_exact_at_large_positions():
    from bearings.kernels.angles import cos_sin, turns_per_token

    global angles_kernel

    @triton.jit
    def angles_kernel(POSITIONS, TURNS, COS, SIN):
        i = tl.arange(0, 16)
        cos, sin = cos_sin(tl.load(POSITIONS + i)[:, None] * tl.load(TURNS + i)[None, :])
        tl.store(COS + i[:, None] * 16 + i[None, :], cos)
        tl.store(SIN + i[:, None] * 16 + i[None, :], sin)

    angles_kernel.fn.__globals__["cos_sin"] = cos_sin
    positions = torch.cat([torch.arange(8), 10 ** torch.arange(8)]).to(DEVICE)
    cos, sin = torch.empty(2, 16, 16, device=DEVICE)
    angles_kernel[(1,)](positions, turns_per_token(geometric(10000.0, 16), DEVICE), cos, sin)
    angle = positions.double()[:, None] * 10000.0 ** (-torch.arange(16, device=DEVICE).double() / 16)
    torch.testing.assert_close(cos.double(), angle.cos(), rtol=0, atol=4e-7)
    torch.testing.assert_close(sin.double(), angle.sin(), rtol=0, atol=4e-7)


@pytest.mark.parametrize(("form", "documents"), [("plain", False), ("rotary", True), ("polar", False)])
def test_opcheck_of_attention(form, documents):
    from bearings.kernels.attention.fused import attention

    inputs = draw("pope", 20, 20, 16, torch.float32)
    frequencies = geometric(BASE, {"plain": 0, "rotary": 8, "polar": 16}[form])
    q, k, v = (inputs[x].requires_grad_() for x in "qkv")
    delta = inputs["delta"].requires_grad_() if form == "polar" else None
    sums = torch.zeros(2, 20, 4, device=DEVICE, dtype=torch.float64, requires_grad=True) if form == "plain" else None
    borders = Documents.of(make_documents([12, 8]).to(DEVICE)).borders if documents else None
    settings = form, frequencies, 0.25, "triton", "triton"
    torch.library.opcheck(attention.registered, (q, k, v, delta, sums, None, borders, None, None, *settings))


@every_operator
def test_compiled_in_one_graph_equals_eager(name):
    torch.compiler.reset()
    encoding = make_encoding(name, dtype=torch.float32, implementation="triton").to(DEVICE)
    results = []
    for call in (encoding, torch.compile(encoding, fullgraph=True, backend="inductor" if GPU else "aot_eager")):
        encoding.zero_grad()
        inputs = [x.to(DEVICE).requires_grad_() for x in make_inputs(20, dtype=torch.float32)]
        out = attend(call, inputs, documents=make_documents([10, 1, 9]).to(DEVICE))
        out.square().sum().backward()
        results.append([out.detach(), *(x.grad.clone() for x in (*inputs[1:], *encoding.parameters()))])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)


FREQUENCIES = {"rope": [2.0, 0.0, 0.3, 0.0, 0.01, 1e-7, 0.0, 0.7], "pope": [1.0, 0.0, 0.1, 3.0] * 4}


def with_table(name: str, i: dict, implementation: str) -> torch.Tensor:
    """Attention with the frequencies above."""
    delta = [i["delta"]] if name == "pope" else []
    operator = {"rope": rope_attention, "pope": pope_attention}[name]
    return operator(i["q"], i["k"], i["v"], *delta, FREQUENCIES[name], implementation=implementation)


@pytest.mark.parametrize("name", FREQUENCIES)
@pytest.mark.parametrize(("queries", "keys"), [(33, 33), (2, 70)])
def test_table_of_frequencies_matches_torch(name, queries, keys):
    inputs = draw(name, queries, keys, 16, torch.float32)
    grad = torch.randn(inputs["q"].shape, device=DEVICE)
    got, wanted = (outcome(lambda i, m=m: with_table(name, i, m), inputs, grad) for m in ("triton", "torch"))
    with torch.no_grad():  # for two of many tokens this is the decoding kernel
        got["decoded"], wanted["decoded"] = with_table(name, inputs, "triton").double(), wanted["out"]
    for what, x in wanted.items():
        torch.testing.assert_close(got[what], x, rtol=1e-4, atol=1e-5)


def test_frequency_of_zero_leaves_its_pair_unchanged():
    from bearings.kernels.attention.encode import encode

    inputs = draw("rope", 20, 20, 16, torch.float32)
    q, k = (x * 1e3 for x in (inputs["q"], inputs["k"]))
    turned = encode(q, k, None, FREQUENCIES["rope"], "rotary")
    still = [c for c in range(16) if FREQUENCIES["rope"][c % 8] == 0]
    for got, given in zip(turned, (q, k), strict=True):
        assert torch.equal(got[..., still], given[..., still])
        assert not torch.equal(got[:, 1:, :, 0], given[:, 1:, :, 0])
    assert torch.equal(rotate(q, torch.arange(20, device=DEVICE), FREQUENCIES["rope"])[..., still], q[..., still])


def test_wrong_number_of_frequencies_raises():
    q = torch.zeros(1, 2, 1, 8)
    with pytest.raises(ValueError, match=r"base=\[1.0, 0.0\]: got 2 frequencies; the channels need 4"):
        rope_attention(q, q, q, [1.0, 0.0])
