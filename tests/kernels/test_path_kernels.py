"""The PaTH kernels in Triton and their float64 model, on a GPU if available or in the interpreter."""

from functools import partial
from importlib import import_module

import pytest
import torch
from encodings_support import attend, make_encoding, make_inputs, one_thread  # noqa: F401
from fused_support import DEVICE, DTYPES, GPU, poisoned_memory  # noqa: F401
from path_support import new_launches  # noqa: F401

from bearings.encodings.contract.context import Context
from bearings.encodings.path import ceiling
from bearings.kernels import reference
from bearings.kernels.attention import blocks
from bearings.kernels.attention.fox import cumulative_log_gates
from bearings.kernels.attention.nope import nope_attention
from bearings.kernels.documents import Documents
from bearings.kernels.path import chunks, model
from bearings.kernels.path.attention import path_attention

pytest.importorskip("triton")
path_flash, path_direction, path_far, path_sizes = (
    import_module(f"bearings.kernels.path.{name}") for name in ("flash", "direction", "far", "sizes")
)

LONG = 260 if GPU else 140  # tokens: 3 or 2 short chunks
pytestmark = pytest.mark.usefixtures("one_thread", "new_launches", "poisoned_memory")


@pytest.fixture
def short_chunks(monkeypatch):
    """Chunks of 128 tokens, so that short sequences have several chunks."""
    monkeypatch.setattr(path_flash, "sizes_of", partial(path_flash.sizes_of, longest=2))


def draw(length, head_dim=16, value_dim=None, dtype=torch.float32, batch=2, gated=False, packed=False, beta=None):
    """Random q, k, v, w, beta, rounded to `dtype`; sums and documents."""
    torch.manual_seed(length + head_dim)

    def random(*shape):
        return torch.randn(*shape, device=DEVICE)

    sizes = ((2, head_dim), (1, head_dim), (1, value_dim or head_dim), (1, head_dim))
    q, k, v, w = (random(batch, length, *size) for size in sizes)
    w = w / w.norm(dim=-1, keepdim=True)
    strength = 1.98 * torch.rand(batch, length, 1, device=DEVICE) if beta is None else torch.full_like(w[..., 0], beta)
    sums = cumulative_log_gates(random(batch, length, 2) + 2) if gated else None
    documents = None
    if packed:
        documents = torch.zeros(batch, length, dtype=torch.long, device=DEVICE)
        documents[0, length // 3 :], documents[1, length // 2 :], documents[1, -1:] = 1, 2, 0
    return *(x.to(dtype) for x in (q, k, v, w)), strength, sums, documents


def results(q, k, v, w, beta, sums, documents, implementation):
    """Output and gradients of q, k, v, w, beta (and sums)."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v, w, beta) + ((sums,) if sums is not None else ())]
    given = leaves[5] if sums is not None else None
    packed = None if documents is None else Documents.of(documents)
    out = path_attention(*leaves[:5], q.shape[-1] ** -0.5, packed, given, implementation)
    torch.manual_seed(0)
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.randn(out.shape, device=DEVICE).to(out.dtype))]


def error(got, expected):
    return ((got.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30)).item()


def plain_pytorch(monkeypatch, *inputs):
    """PaTH in plain PyTorch with every tensor in the dtype of q, which determines the error budget.

    Uses the operations of kernels/path/chunks.py, but without widening to float32.
    """
    with monkeypatch.context() as patch:
        patch.setattr(blocks, "wide", lambda x: x.dtype)
        solved = chunks.solved
        patch.setattr(chunks, "solved", lambda *x: tuple(y.to(x[0].dtype) for y in solved(*(z.float() for z in x))))
        return results(*inputs, "torch")


def check(inputs, monkeypatch):
    """Check that the error is at most twice that of plain PyTorch plus one rounding of the result.

    In float32 the limit is four times that: the kernels multiply halves of 11 bits (tf32 or float16) in three products,
    which have 22 bits of precision instead of 24.
    """
    exact = [x.double() if x is not None and x.is_floating_point() else x for x in inputs]
    expected, got, plain = results(*exact, "torch"), results(*inputs, "triton"), plain_pytorch(monkeypatch, *inputs)
    names, dtype = ("out", "dq", "dk", "dv", "dw", "dbeta", "dsums")[: len(got)], inputs[0].dtype
    bits = 4 if dtype == torch.float32 else 1
    for name, a, b, c in zip(names, got, expected, plain, strict=True):
        assert a.isfinite().all(), name
        if b.abs().max() > 1e-6:  # a single token has only a gradient of v
            mine, budget = error(a, b), bits * (2 * error(c, b) + torch.finfo(dtype).eps)
            assert mine < budget, f"{name}: {mine:.1e}, the budget is {budget:.1e}"


@pytest.mark.parametrize("gated", [False, True])
def test_model_agrees_with_reference_and_autograd(gated):
    draw64 = partial(torch.randn, dtype=torch.float64)
    q, k, v, w = draw64(2, 2, 32, 6), draw64(2, 32, 6), draw64(2, 32, 5), draw64(2, 32, 6)
    w, beta = w / w.norm(dim=-1, keepdim=True), 2 * torch.rand(2, 32, dtype=torch.float64)
    gates = draw64(2, 32, 2).sigmoid().log()
    first = torch.zeros(2, 32, dtype=torch.long)
    first[:, 13:], first[1, 20:] = 13, 20
    c = gates.cumsum(1).transpose(1, 2)
    leaves = [x.requires_grad_() for x in (q, k, v, w, beta)] + [c.requires_grad_()] * gated
    scheme, scale = model.Scheme(4, 4), 6**-0.5
    out, lse, logits, saved = model.attention(*leaves[:5], scale, scheme, c if gated else None, first)
    for n in range(2):
        one = (x[n : n + 1].unsqueeze(2) for x in (k, v, w, beta))
        operator = reference.path_fox_attention if gated else reference.path_attention
        extra = (gates[n : n + 1],) if gated else ()
        expected = operator(q[n : n + 1].transpose(1, 2), *one, *extra, first[n : n + 1]).transpose(1, 2)
        torch.testing.assert_close(out[n : n + 1], expected, rtol=0.0, atol=1e-12)
    dout = torch.randn_like(out)
    expected = torch.autograd.grad(out, leaves, dout)
    with torch.no_grad():
        got = model.attention_backward(q, k, v, w, beta, scale, scheme, out, lse, logits, saved, dout)
    for a, b in zip(got, expected, strict=False):
        torch.testing.assert_close(a, b, rtol=0.0, atol=1e-11)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 2, 64, 65] + [15, 16, 17, 63, 127, 200, 1000] * GPU)
def test_lengths(length, dtype, monkeypatch):
    check(draw(length, dtype=dtype, batch=1), monkeypatch)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("head_dim", "value_dim"),
    [(16, 16), (48, 40), (64, 64), (96, 128)] + [(32, 48), (96, 96), (128, 64), (128, 128)] * GPU,
)
def test_widths_over_several_chunks(head_dim, value_dim, dtype, short_chunks, monkeypatch):
    if not GPU and dtype != torch.float32 and head_dim != 48:
        pytest.skip("one shape in half precision is enough for the interpreter")
    check(draw(LONG, head_dim, value_dim, dtype, batch=1), monkeypatch)


@pytest.mark.parametrize("blocks", [4, 8])
def test_trees_of_several_levels(blocks, monkeypatch):
    """One or two chunks. The last nodes contain no tokens."""
    monkeypatch.setattr(path_flash, "sizes_of", partial(path_flash.sizes_of, longest=blocks))
    check(draw(330, batch=1), monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize("blocks", [16, 64])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("gated", [False, True])
def test_default_chunk_lengths(head_dim, blocks, gated, monkeypatch):
    """Several chunks, or a single one."""
    monkeypatch.setattr(path_flash, "sizes_of", partial(path_flash.sizes_of, longest=blocks))
    for dtype in (torch.float16, torch.bfloat16):
        check(draw(2100, head_dim, dtype=dtype, batch=1, gated=gated), monkeypatch)


@pytest.mark.parametrize(
    ("length", "head_dim", "dtype", "chunks"),
    [
        (64, 64, torch.bfloat16, [1]),
        (4096, 64, torch.bfloat16, [64]),
        (3200, 48, torch.float16, [64]),  # four chunks would have equally many tokens
        (1100, 64, torch.bfloat16, [32]),
        (3072, 64, torch.bfloat16, [16] * 3),
        (8192, 64, torch.bfloat16, [16] * 8),
        (4096, 128, torch.bfloat16, [16] * 4),
        (4096, 64, torch.float32, [64]),
    ],
)
def test_number_of_chunks(length, head_dim, dtype, chunks):
    q = torch.empty(1, length, 2, head_dim, dtype=dtype, device="meta")
    sizes = path_sizes.sizes_of(q, q, q)
    assert [sizes.blocks] * sizes.chunks == chunks


@pytest.mark.parametrize(("length", "batch", "tokens"), [(64, 1, None), (128, 1, None), (128, 2, 128)])
def test_gates_with_whole_chunks(length, batch, tokens, monkeypatch):
    if tokens is not None:
        monkeypatch.setattr(path_flash, "slice_of", lambda length: tokens)
    check(draw(length, gated=True, batch=batch), monkeypatch)


def test_wrong_shapes_raise():
    q, k, v, w, beta, sums, _ = draw(20, gated=True)
    for name, wrong in (("v", {"v": v[:, :10]}), ("w", {"w": w[..., :8]}), ("beta", {"beta": beta[:, :10]})):
        given = {"v": v, "w": w, "beta": beta} | wrong
        with pytest.raises(ValueError, match=rf"{name} \[.*: the shape must be"):
            path_attention(q, k, given["v"], given["w"], given["beta"], 0.25, None, sums)


@pytest.mark.parametrize("implementation", ["auto", "triton", "torch"])
@pytest.mark.parametrize("wrong", [(1, 20, 1, 16), (2, 21, 1, 16), (2, 20, 1, 32)], ids=["batch", "length", "width"])
def test_keys_that_do_not_fit_the_queries_raise(wrong, implementation):
    """Kernels would read beyond a tensor, and PyTorch would repeat a single sequence."""
    q = draw(20)[0]
    k = torch.randn(*wrong, device=DEVICE)
    message = rf"k \[{', '.join(map(str, wrong))}\] with q \[2, 20, 2, 16\].*: the shape must be \[2, 20, 1, 16\]"
    with pytest.raises(ValueError, match=message):
        path_attention(q, k, k, k, k[..., 0], 0.25, implementation=implementation)


@pytest.fixture
def not_short(monkeypatch):
    """Treats short sequences like long ones: the backward pass recomputes tensors, and heads are interleaved."""
    monkeypatch.setattr(path_flash, "SHORT", 0)
    monkeypatch.setattr(path_sizes, "SHORT", 0)


@pytest.mark.parametrize("gated", [False, True])
def test_packed_documents_and_gates(gated, short_chunks, monkeypatch):
    check(draw(LONG, gated=gated, packed=True), monkeypatch)


def test_wide_heads_in_groups_of_unequal_size(short_chunks, not_short, monkeypatch):
    monkeypatch.setattr(path_sizes, "WIDE_HEADS", 3)
    inputs = draw(LONG, 96, gated=True, packed=True)
    assert path_sizes.sizes_of(*inputs[:3]).together == 3
    check(inputs, monkeypatch)


@pytest.mark.parametrize("length", [65, LONG])
def test_unsaved_tensors_are_recomputed(length, short_chunks, not_short, monkeypatch):
    for dtype in DTYPES if length > 65 else DTYPES[:1]:
        check(draw(length, dtype=dtype, gated=True, packed=length > 65), monkeypatch)


@pytest.mark.parametrize("fall", [0.0, 1e5])
def test_float32_gates_are_precise(fall, monkeypatch):
    """Gates near 1/2, as at initialisation, and gates for which c falls by 1e5 within a chunk."""
    monkeypatch.setattr(path_flash, "sizes_of", partial(path_flash.sizes_of, longest=4))
    q, k, v, w, beta, _, _ = draw(200, batch=1)
    logits = 0.3 * torch.randn(*q.shape[:3], device=DEVICE)
    logits[:, 40] -= fall
    check((q, k, v, w, beta, cumulative_log_gates(logits), None), monkeypatch)


def test_low_precision_gates(short_chunks, monkeypatch):
    check(draw(LONG, dtype=DTYPES[-1], gated=True, batch=1), monkeypatch)


@pytest.mark.parametrize("beta", [1e-3, 2.0])
def test_gradients_near_extreme_beta(beta, short_chunks, monkeypatch):
    for dtype in DTYPES:
        check(draw(LONG, beta=ceiling(beta, dtype), dtype=dtype, batch=1), monkeypatch)


def test_dense_lengths():
    """Every length on a GPU."""
    for length in range(1, 201, 1 if GPU else 29):
        q, k, v, w, beta, _, _ = draw(length, batch=1)
        out = path_attention(q, k, v, w, beta, 0.25, implementation="triton")
        expected = path_attention(*(x.double() for x in (q, k, v, w, beta)), 0.25, implementation="torch")
        torch.testing.assert_close(out.double(), expected, rtol=0.0, atol=2e-5, msg=f"T={length}")


def test_beta_2_is_plain_attention_on_rotated_queries_and_keys(short_chunks):
    q, k, v, w, _, _, _ = draw(200, batch=1)
    turn, turned_q, turned_k = torch.eye(16, dtype=torch.float64, device=DEVICE).expand(1, 1, 16, 16), [], []
    identity = torch.eye(16, dtype=torch.float64, device=DEVICE)
    w64 = w.double() / w.double().norm(dim=-1, keepdim=True)
    for t in range(200):  # R_t^T = H_0 ... H_t
        turn = turn @ (identity - 2 * w64[:, t, :, :, None] * w64[:, t, :, None, :])
        turned_q.append(torch.einsum("bkij,bkgj->bkgi", turn, q[:, t].double().unflatten(1, (1, 2))).flatten(1, 2))
        turned_k.append(torch.einsum("bkij,bkj->bki", turn, k[:, t].double()))
    expected = nope_attention(torch.stack(turned_q, 1), torch.stack(turned_k, 1), v.double(), implementation="torch")
    out = path_attention(q, k, v, w, torch.full_like(w[..., 0], 2.0), 0.25, implementation="triton")
    torch.testing.assert_close(out.double(), expected, rtol=0.0, atol=5e-5)


def test_zero_beta_is_no_encoding(short_chunks):
    q, k, v, w, beta, _, _ = draw(200, batch=1)
    expected = nope_attention(*(x.double() for x in (q, k, v)), implementation="torch")
    for none in ((torch.zeros_like(w), beta), (w, torch.zeros_like(beta))):
        out = path_attention(q, k, v, *none, 0.25, implementation="triton")
        torch.testing.assert_close(out.double(), expected, rtol=0.0, atol=1e-5)


def test_deterministic_on_strided_inputs(short_chunks):
    q, k, v, w, beta, sums, _ = draw(140, gated=True, batch=1)
    first = results(q, k, v, w, beta, sums, None, "triton")
    strided = [torch.stack([x, torch.full_like(x, torch.nan)], -1)[..., 0] for x in (q, k, v, w, beta)]
    for a, b in zip(first, results(*strided, sums, None, "triton"), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kept", [False, True])
def test_slices_of_one_tensor_are_not_copied(kept, short_chunks, monkeypatch):
    """Their gradients are slices of one tensor too, the gradient of the matrix product that computed them."""
    monkeypatch.setattr(path_flash, "SHORT", 2048 * kept)
    q, k, v, w, beta, _, _ = draw(140, batch=1)
    expected = results(q, k, v, w, beta, None, None, "triton")
    packed = torch.cat([q, k, v], 2).requires_grad_()
    slices = packed.split([2, 1, 1], 2)
    assert [path_flash.row_of(x) for x in (*slices, q, w, w.transpose(1, 3))] == [4, 4, 4, 2, 1, 0]
    out = path_attention(*slices, w, beta, 0.25, implementation="triton")
    torch.manual_seed(0)
    (got,) = torch.autograd.grad(out, packed, torch.randn(out.shape, device=DEVICE))
    assert torch.equal(out, expected[0])
    assert torch.equal(got, torch.cat(expected[1:4], 2))


def test_slices_and_segments_do_not_change_results(short_chunks, monkeypatch):
    inputs = draw(260, batch=1, gated=True)
    inputs = [torch.cat([x, x.flip(2)], 2) if x is not None else x for x in inputs]  # two key heads
    whole = results(*inputs, "triton")
    monkeypatch.setattr(path_flash, "slice_of", lambda length: 64)
    monkeypatch.setattr(path_far, "SEGMENT", 0.5)
    sizes = path_flash.sizes_of(*inputs[:3])
    assert (sizes.chunks, len(path_flash.slices(*inputs[:2]))) == (3, 2)
    assert path_far.segments(sizes, 2) == [(0, 2), (2, 3)]
    for a, b in zip(results(*inputs, "triton"), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_nearly_parallel_reflections(short_chunks, monkeypatch):
    """Cancellation in the UT form is largest for nearly parallel reflections."""
    q, k, v, w, beta, _, _ = draw(200, batch=1, beta=ceiling(2.0, torch.float16), dtype=torch.float16)
    w = w.float() + 2 * w[:, :1].float()
    w = (w / w.norm(dim=-1, keepdim=True)).half()
    check((q, k, v, w, beta, None, None), monkeypatch)


def test_registered_for_compilation(short_chunks, monkeypatch):
    q, k, v, w, beta, sums, _ = draw(70, batch=1, gated=True)
    borders = Documents.of(torch.zeros(1, 70, dtype=torch.long, device=DEVICE)).borders
    leaves = [x.requires_grad_() for x in (q, k, v, w, beta)]
    with monkeypatch.context() as patch:
        patch.setattr(path_flash, "SHORT", 0)  # saved tensors are not written in the padding
        given = (*leaves, 0.25, borders, sums.requires_grad_(), False)
        # The last check of opcheck, the compiler with varying lengths, takes ten times longer than these.
        utils = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(path_flash.path_forward.registered, given, test_utils=utils)
    u, taps = torch.randn(1, 70, 32, device=DEVICE), torch.randn(3, 32, device=DEVICE)
    given = (u.requires_grad_(), taps.requires_grad_(), torch.arange(70, device=DEVICE).unsqueeze(0), 2, True)
    torch.library.opcheck(path_direction.path_directions.registered, given)

    def attend(*tensors):
        return path_attention(*tensors, 0.25, implementation="triton")

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    expected, got = attend(*leaves), compiled(*leaves)
    assert torch.equal(got, expected)
    for a, b in zip(*(torch.autograd.grad(x.sum(), leaves) for x in (got, expected)), strict=True):
        assert torch.equal(a, b)


def test_kernel_prefill_leaves_the_same_cache(short_chunks):
    encoding, inputs = make_encoding("path_fox", dtype=torch.float32), make_inputs(200, dtype=torch.float32)
    states = []
    encoding = encoding.to(DEVICE)
    inputs = [x.to(DEVICE) for x in inputs]
    for implementation in ("triton", "torch"):
        encoding.implementation = implementation
        state = encoding.new_state(2, 201, inputs[1])
        with torch.no_grad():
            out = attend(encoding, inputs, state)
        states.append((out, state.keys))
    for a, b in zip(*states, strict=True):
        torch.testing.assert_close(a, b, rtol=0.0, atol=5e-5)


@pytest.mark.parametrize("options", [{}, {"convolution": 0}, {"convolution": 4, "silu": False}])
@pytest.mark.parametrize("packed", [False, True])
def test_direction_kernel_matches_pytorch(options, packed):
    """Several programs, and a width that is not a power of two."""
    encoding, x = make_encoding("path", 48, torch.float32, **options).to(DEVICE), make_inputs(70, dtype=torch.float32).x
    documents = None
    if packed:
        documents = torch.zeros(2, 70, dtype=torch.long, device=DEVICE)
        documents[0, 31:], documents[1, 1:3] = 1, 2
        documents = Documents.of(documents)
    found, x, seed = [], x.to(DEVICE), torch.randn(2, 70, 2, 48, device=DEVICE)
    for implementation in ("triton", "torch"):
        encoding.implementation = implementation
        leaves = [x.clone().requires_grad_(), encoding.direction.weight]
        leaves += [encoding.taps] if encoding.taps is not None else []
        w, _ = encoding.reflections(leaves[0], Context.of(encoding, leaves[0], documents=documents))
        found.append([w, *torch.autograd.grad(w, leaves, seed)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_direction_kernel_reads_taps_with_gaps():
    torch.manual_seed(0)
    u, taps = torch.randn(2, 9, 32, device=DEVICE, requires_grad=True), torch.randn(3, 64, device=DEVICE)[:, ::2]
    found = []
    for weights in (taps, taps.contiguous()):
        leaf = weights.requires_grad_()
        w = path_direction.path_directions(u, leaf, None, 2, True)
        found.append([w, *torch.autograd.grad(w[..., 0].sum(), (u, leaf))])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
