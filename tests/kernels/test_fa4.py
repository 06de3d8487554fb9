"""FlashAttention-4 as an implementation of the attention operators; without a GPU, a stand-in for the package."""

import contextlib
import math
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from encodings_support import make_documents, one_thread  # noqa: F401
from fused_support import DEVICE, GPU, by_kernel, check_budget, draw, limits_of

from bearings.kernels import choice
from bearings.kernels.attention import fa4
from bearings.kernels.attention.nope import nope_attention
from bearings.kernels.attention.pope import pope_attention
from bearings.kernels.attention.rope import rope_attention
from bearings.kernels.documents import Documents

fused = pytest.importorskip("bearings.kernels.attention.fused", reason="needs Triton")
pytestmark = pytest.mark.usefixtures("one_thread")
FREQUENCIES = tuple(1 / (c + 1) for c in range(8))
OPERATORS = {"rope": rope_attention, "pope": pope_attention}
LIMITS = {"whole": (None, None), "packed": ([9, 1, 10], None), "window": (None, 6), "both": ([9, 1, 10], 6)}
LONG = {"packed": ([200, 1, 130, 309], None), "window": (None, 100), "both": ([200, 1, 130, 309], 100)}


def stand_in(calls):
    """The two passes of the package in PyTorch, with its argument names and layouts."""

    def scores_of(q, k, scale, ends_q, ends_k, window_size_left):
        """`[H, N, M]` scores of rows of tokens laid end to end. The last query of a document is at its last key."""
        (rows, places_q), (columns, places_k) = places(q, ends_q), places(k, ends_k)
        distances = places_q[:, None] - places_k
        hidden = (distances < 0) | (rows[:, None] != columns)
        if window_size_left is not None:
            hidden |= distances > window_size_left
        scores = scale * torch.einsum("thd,shd->hts", q, k.repeat_interleave(q.shape[1] // k.shape[1], 1))
        return scores.masked_fill(hidden, -math.inf)

    def places(x, ends):
        """The document of each token, and its distance to the end of the document, below 0."""
        tokens = torch.arange(len(x))
        documents = torch.searchsorted(ends, tokens, right=True)
        assert ends[[0, -1]].tolist() == [0, len(x)]
        return documents, tokens - ends[documents]

    def laid_out(rows, ends, longest):
        """Tensors with their rows laid end to end, and the ends of documents."""
        if ends is not None:
            assert (rows[0].ndim, ends.dtype) == (3, torch.int32)
            assert longest >= ends.diff().max()
            return rows, ends
        batch, length = rows[0].shape[:2]
        return [x.flatten(0, 1) for x in rows], torch.arange(0, (batch + 1) * length, length)

    def forward(
        q, k, v, softmax_scale, causal, return_lse, *, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None,
        max_seqlen_k=None, window_size_left=None,
    ):  # fmt: skip
        assert causal is return_lse is True
        assert cu_seqlens_q is cu_seqlens_k
        assert max_seqlen_q == max_seqlen_k
        (q_rows,), ends_q = laid_out((q,), cu_seqlens_q, max_seqlen_q)
        (k_rows, v_rows), ends_k = laid_out((k, v), cu_seqlens_k, max_seqlen_k)
        scores = scores_of(q_rows, k_rows, softmax_scale, ends_q, ends_k, window_size_left)
        v_rows = v_rows.repeat_interleave(q_rows.shape[1] // v_rows.shape[1], 1)
        out, lse = torch.einsum("hts,shd->thd", scores.softmax(-1), v_rows).contiguous(), scores.logsumexp(-1)
        if cu_seqlens_q is None:
            out, lse = out.unflatten(0, q.shape[:2]), lse.unflatten(1, q.shape[:2]).transpose(0, 1).contiguous()
        return out, lse, None, None

    def backward(
        q, k, v, out, grad, lse, scale, causal, deterministic, *, cu_seqlens_q=None, cu_seqlens_k=None,
        max_seqlen_q=None, max_seqlen_k=None, window_size_left=None,
    ):  # fmt: skip
        assert causal
        calls.append(deterministic)
        shapes = [x.shape for x in (q, k, v)]
        lse = lse if cu_seqlens_q is not None else lse.transpose(0, 1).flatten(1)
        (q, out, grad), ends_q = laid_out((q, out, grad), cu_seqlens_q, max_seqlen_q)
        (k, v), ends_k = laid_out((k, v), cu_seqlens_k, max_seqlen_k)
        shared = q.shape[1] // k.shape[1]
        weights = (scores_of(q, k, scale, ends_q, ends_k, window_size_left) - lse.unsqueeze(-1)).exp()
        of_values = torch.einsum("thd,shd->hts", grad, v.repeat_interleave(shared, 1))
        of_scores = scale * weights * (of_values - (grad * out).sum(-1).mT.unsqueeze(-1))
        dq = torch.einsum("hts,shd->thd", of_scores, k.repeat_interleave(shared, 1))
        dk, dv = (torch.einsum("hts,thd->shd", s, x) for s, x in ((of_scores, q), (weights, grad)))
        found = dq, *(x.unflatten(1, (-1, shared)).sum(2) for x in (dk, dv))
        return [x.reshape(shape) for x, shape in zip(found, shapes, strict=True)]

    return SimpleNamespace(_flash_attn_fwd=forward, _flash_attn_bwd=backward, _tile_size_bwd_sm90=None)


def ids_of(lengths):
    return None if lengths is None else make_documents(lengths).to(DEVICE)


@pytest.fixture
def package(monkeypatch):
    """Whether each call of the backward pass was deterministic. Skips tests where the package itself can run."""
    if GPU:
        pytest.skip("the stand-in replaces the package where there is no GPU")
    calls = []
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", stand_in(calls))
    return calls


def arguments_of(form, limits, implementation):
    """Inputs of the operator by name, and what it takes after its delta."""
    given = draw("pope", 20, 20, 16, torch.float32)
    given = {"q": given["q"], **{name: given[name][:, :, :2] for name in "kv"}, "delta": given["delta"][:2]}
    if form != "polar":
        del given["delta"]
    lengths, window = LIMITS[limits]
    documents = limits_of(given, ids_of(lengths), window)
    borders = (None, None, None)
    if documents is not None:
        fa4 = implementation == "fa4"
        borders = (None, documents.cu_seqlens, documents.window) if fa4 else (documents.borders, None, None)
    frequencies = {"plain": (), "rotary": FREQUENCIES, "polar": FREQUENCIES * 2}[form]
    return given, (None, None, *borders, form, frequencies, 0.2, implementation, implementation)


@pytest.mark.parametrize("form", ["plain", "rotary", "polar"])
@pytest.mark.parametrize("limits", LIMITS)
def test_operator_passes_what_the_package_expects(package, form, limits):
    results = []
    for implementation in ("triton", "fa4"):
        given, settings = arguments_of(form, limits, implementation)
        leaves = {name: x.detach().clone().requires_grad_() for name, x in given.items()}
        *others, delta = (*leaves.values(),) if form == "polar" else (*leaves.values(), None)
        out = fused.attention(*others, delta, *settings)[0]
        out.square().sum().backward()
        results.append([out, *(x.grad for x in leaves.values())])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert package == [False]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("scores", "values"), [(128, 64), (256, 128), (64, 64)])
def test_tiles_are_chosen_by_channels(monkeypatch, scores, values, deterministic):
    seen = {}

    def forward(q, k, v, tile_mn=None, **others):
        seen["forward"] = tile_mn
        return torch.zeros(*q.shape[:3], values), torch.zeros(1)

    def backward(q, k, v, *others, **settings):
        chosen = package._tile_size_bwd_sm90
        seen["backward"] = chosen if isinstance(chosen, str) else chosen(scores, values, causal=True, local=False)
        return q, k, v

    package = SimpleNamespace(
        _flash_attn_fwd=forward, _flash_attn_bwd=backward, _tile_size_bwd_sm90="the package's own", BwdConfig=dict
    )
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", package)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    q, v = torch.zeros(1, 4, 2, scores), torch.zeros(1, 4, 2, values)
    out, lse = fa4.fa4_forward(q, q, v, 0.1)
    fa4.fa4_backward(out, q, q, v, out, lse, 0.1)
    assert seen["forward"] == fa4.FORWARD_TILES.get((scores, values))
    own = None if deterministic else fa4.BACKWARD_TILES.get((scores, values))
    assert seen["backward"] == (own or "the package's own")
    assert package._tile_size_bwd_sm90 == "the package's own"


def test_threads_do_not_see_the_tiles_of_each_other(monkeypatch):
    """As in the backward pass of two GPUs, whose calls overlap."""
    seen, barrier = [], threading.Barrier(2)

    def backward(q, k, v, *others, **settings):
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(0.2)  # until the other thread is here too, if it can be
        seen.append(package._tile_size_bwd_sm90 == own if q.shape[-1] == 64 else package._tile_size_bwd_sm90 != own)
        return q, k, v

    def own(*given):
        raise AssertionError("the package's own tiles")

    package = SimpleNamespace(_flash_attn_bwd=backward, _tile_size_bwd_sm90=own, BwdConfig=dict)
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", package)

    def call(scores):
        q, v = torch.zeros(1, 4, 2, scores), torch.zeros(1, 4, 2, 64)
        fa4.fa4_backward(v, q, q, v, v, torch.zeros(1), 0.1)

    threads = [threading.Thread(target=call, args=(scores,)) for scores in (128, 64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True, True]
    assert package._tile_size_bwd_sm90 is own


@pytest.mark.parametrize("name", ["nope", "rope", "pope"])
def test_sequences_are_continued(package, name, monkeypatch):
    """The keys of a sequence before its new tokens are cached, or on other ranks."""
    monkeypatch.setattr(choice, "FA4_HERE", choice.FA4)
    monkeypatch.setattr(choice, "FA4_CONTINUES", {16: 5})
    monkeypatch.setattr(choice, "_against_fa4", lambda device, needs: None)
    monkeypatch.setattr(choice, "SMALL", (torch.float32,))
    results = []
    for implementation in ("fa4", "torch"):
        leaves = {key: x.requires_grad_() for key, x in draw(name, 5, 20, 16, torch.float32).items()}
        out = by_kernel(name, leaves, None, implementation)
        out.square().sum().backward()
        results.append([out, *(x.grad for x in leaves.values())])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert package == [False]
    with pytest.raises(ValueError, match="FlashAttention-4 needs whole sequences, not 4 of 20 tokens"):
        by_kernel(name, draw(name, 4, 20, 16, torch.float32), None, "fa4")


@pytest.mark.parametrize("limits", ["whole", "both"])
def test_opcheck(package, limits):
    given, settings = arguments_of("rotary", limits, "fa4")
    torch.library.opcheck(fused.attention.registered, (*(x.requires_grad_() for x in given.values()), None, *settings))


def test_documents_reach_the_package_from_the_public_operators(package, monkeypatch):
    monkeypatch.setattr(choice, "FA4_HERE", choice.FA4)
    monkeypatch.setattr(choice, "_against_fa4", lambda device, needs: None)
    monkeypatch.setattr(choice, "SMALL", (torch.float32,))
    inputs = draw("pope", 20, 20, 16, torch.float32)
    for lengths, window in LIMITS.values():
        ids = ids_of(lengths)
        found, expected = (by_kernel("pope", inputs, ids, name, window) for name in ("fa4", "torch"))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    q, unbounded = inputs["q"], Documents.of(ids_of([9, 11]))
    for implementation in ("fa4", choice.Plan("fa4", "fa4", "a test asked for it")):
        with pytest.raises(ValueError, match=r"implementation=fa4: .* a bound on the number of documents .`most` of"):
            nope_attention(q, q, q, unbounded, implementation=implementation)


def test_compiled_in_one_graph_equals_eager(package):
    torch.compiler.reset()
    given, settings = arguments_of("polar", "both", "fa4")
    results = []

    def attend(*inputs):
        return fused.attention(*inputs, *settings)[0]

    for call in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager")):
        leaves = [x.detach().clone().requires_grad_() for x in given.values()]
        out = call(*leaves)
        out.square().sum().backward()
        results.append([out.detach(), *(x.grad for x in leaves)])
    torch.testing.assert_close(*results)


# Lengths on both sides of the tiles' sizes, 64 to 192, and of their multiples.
SHAPES = [
    *((length, 64) for length in (2, 63, 77, 97, 200, 1000, 1024)),
    *((length, 128) for length in (64, 97, 300, 1000)),
    *((200, 96), (130, 32)),
]


def needs_package(name="nope", head_dim=64):
    pytest.importorskip("flash_attn.cute.interface", reason="needs flash-attn-4")
    if (head_dim * (1 + (name == "pope")), head_dim) not in choice.FA4_CHANNELS:
        pytest.skip(f"the package is not used with {name} of {head_dim} channels: choice.FA4_CHANNELS")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["nope", "rope", "pope"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("length", "head_dim"), SHAPES)
def test_error_is_within_budget(name, dtype, length, head_dim):
    needs_package(name, head_dim)
    check_budget(name, draw(name, length, length, head_dim, dtype), None, "fa4")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["nope", "rope", "pope"])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=str)
@pytest.mark.parametrize(("queries", "keys", "head_dim"), [(1024, 3072, 64), (1100, 2500, 64), (1024, 2048, 128)])
def test_error_of_continued_sequences_is_within_budget(name, heads, queries, keys, head_dim):
    needs_package(name, head_dim)
    check_budget(name, draw(name, queries, keys, head_dim, torch.bfloat16, heads, batch=1), None, "fa4")


CASES = [
    *(("nope", 64, torch.bfloat16), ("rope", 64, torch.float16), ("pope", 64, torch.bfloat16)),
    *((name, head_dim, torch.bfloat16) for name in ("rope", "pope") for head_dim in (32, 96, 128)),
]


@pytest.mark.gpu
@pytest.mark.parametrize("limits", LONG)
@pytest.mark.parametrize(("name", "head_dim", "dtype"), CASES, ids=str)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=str)
def test_error_with_documents_and_windows_is_within_budget(name, head_dim, dtype, limits, heads):
    needs_package(name, head_dim)
    if heads == (4, 4) and head_dim != 64:
        pytest.skip("one number of channels is enough without grouped heads")
    lengths, window = LONG[limits]
    check_budget(name, draw(name, 640, 640, head_dim, dtype, heads), ids_of(lengths), "fa4", window)


@pytest.mark.gpu
def test_many_short_documents_are_within_budget():
    """From 257 documents on, the package looks them up in another way."""
    needs_package()
    check_budget("rope", draw("rope", 640, 640, 64, torch.bfloat16), ids_of([3] * 200 + [1] * 40), "fa4")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["nope", "pope"])
def test_what_precedes_a_document_or_a_window_changes_nothing(name):
    """Law 3, bit for bit: tokens before 300 are in another document, or beyond the window of those that are seen."""
    needs_package(name)
    results = []
    for lengths, window, seen in (([300, 340], None, 300), (None, 100, 400), ([350, 290], 100, 400)):
        for shift in (0.0, 1.0):
            inputs = draw(name, 640, 640, 64, torch.bfloat16)
            leaves = {key: x.detach().clone() for key, x in inputs.items()}
            for key in "qkv":
                leaves[key][:, :300] += shift
                leaves[key].requires_grad_()
            torch.use_deterministic_algorithms(True)
            try:
                out = by_kernel(name, leaves, None if lengths is None else rows_of(lengths), "fa4", window)[:, seen:]
                out.float().square().sum().backward()
            finally:
                torch.use_deterministic_algorithms(False)
            gradients = [leaves[key].grad for key in "qkv"]
            assert all(not gradient[:, :300].any() and gradient[:, seen:].any() for gradient in gradients)
            results.append([out, *(gradient[:, 300:] for gradient in gradients)])
        assert all(torch.equal(a, b) for a, b in zip(*results[-2:], strict=True))


def rows_of(lengths):
    """Equal rows of documents, `[2, T]`."""
    return torch.arange(len(lengths), device=DEVICE).repeat_interleave(torch.tensor(lengths, device=DEVICE)).tile(2, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=str)
@pytest.mark.parametrize(("name", "head_dim"), [("nope", 64), ("pope", 64), ("nope", 128)])
@pytest.mark.parametrize("limits", ["whole", *LONG])
def test_gradients_repeat_where_determinism_is_requested(name, head_dim, limits, heads):
    needs_package(name, head_dim)
    lengths, window = (None, None) if limits == "whole" else LONG[limits]
    ids = None if lengths is None else ids_of(lengths).tile(2, 3)
    inputs, found = draw(name, 1920, 1920, head_dim, torch.bfloat16, heads, batch=4), []
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(4):
            leaves = {key: x.detach().clone().requires_grad_() for key, x in inputs.items()}
            by_kernel(name, leaves, ids, "fa4", window).float().square().sum().backward()
            found.append([x.grad for x in leaves.values()])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(x, first) for again in found for x, first in zip(again, found[0], strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rope", "pope"])
def test_compiled_and_captured_steps_equal_eager_ones(name):
    """A compiled step captured as a CUDA graph, replayed with other inputs and other documents of the same bound."""
    needs_package(name)
    ids = [ids_of(lengths) for lengths in ([200, 1, 130, 309], [640], [100, 540])]
    inputs = [draw(name, 640, 640, 64, torch.bfloat16) for _ in ids]
    fixed = {key: x.detach().clone().requires_grad_() for key, x in inputs[0].items()}
    kept = ids[0].clone()

    def attend(i, documents):
        given = [i[key] for key in ("q", "k", "v", "delta") if key in i]
        return OPERATORS[name](*given, documents=documents, implementation=choice.Plan("fa4", "fa4", "of a test"))

    def step(call, i, ids):
        return torch.autograd.grad(call(i, Documents.of(ids, 12).within(150)).float().square().sum(), list(i.values()))

    torch.compiler.reset()
    compiled = torch.compile(attend, fullgraph=True, dynamic=False)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step(compiled, fixed, kept)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(compiled, fixed, kept)
    for new_ids, new in zip(ids, inputs, strict=True):
        with torch.no_grad():
            kept.copy_(new_ids)
            for key, x in fixed.items():
                x.copy_(new[key] + 0.1)
        graph.replay()
        for found, expected in zip(captured, step(attend, fixed, kept), strict=True):
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2 * expected.abs().max().item())
