"""FlashAttention-4 as an implementation of the attention operators; without a GPU, a stand-in for the package."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch
from encodings_support import one_thread  # noqa: F401
from fused_support import GPU, check_budget, draw

from bearings.kernels.attention.plain import causal_attention

fused = pytest.importorskip("bearings.kernels.attention.fused", reason="needs Triton")
pytestmark = pytest.mark.usefixtures("one_thread")
FREQUENCIES = tuple(1 / (c + 1) for c in range(8))


def stand_in(calls):
    """The two passes of the package in PyTorch, with its argument names and layouts."""

    def scores_of(q, k, scale):
        scores = scale * torch.einsum("bthd,bshd->bhts", q, k.repeat_interleave(q.shape[2] // k.shape[2], 2))
        return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)

    def forward(q, k, v, softmax_scale, causal, return_lse):
        assert causal is return_lse is True
        return causal_attention(q, k, v, scale=softmax_scale), scores_of(q, k, softmax_scale).logsumexp(-1), None, None

    def backward(q, k, v, out, grad, lse, scale, causal, deterministic):
        assert causal
        calls.append(deterministic)
        shared = q.shape[2] // k.shape[2]
        weights = (scores_of(q, k, scale) - lse.unsqueeze(-1)).exp()
        of_values = torch.einsum("bthd,bshd->bhts", grad, v.repeat_interleave(shared, 2))
        of_scores = scale * weights * (of_values - (grad * out).sum(-1).mT.unsqueeze(-1))
        dq = torch.einsum("bhts,bshd->bthd", of_scores, k.repeat_interleave(shared, 2))
        dk, dv = (torch.einsum("bhts,bthd->bshd", s, x) for s, x in ((of_scores, q), (weights, grad)))
        return dq, *(x.unflatten(2, (-1, shared)).sum(3) for x in (dk, dv))

    return SimpleNamespace(_flash_attn_fwd=forward, _flash_attn_bwd=backward)


@pytest.mark.skipif(GPU, reason="the stand-in replaces the package where there is no GPU")
@pytest.mark.parametrize("form", ["plain", "rotary", "polar"])
def test_operator_passes_what_the_package_expects(monkeypatch, form):
    calls = []
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", stand_in(calls))
    given = draw("pope", 20, 20, 16, torch.float32)
    given = {"q": given["q"], **{name: given[name][:, :, :2] for name in "kv"}, "delta": given["delta"][:2]}
    frequencies = {"plain": (), "rotary": FREQUENCIES, "polar": FREQUENCIES * 2}[form]
    if form != "polar":
        del given["delta"]
    results = []
    for implementation in ("triton", "fa4"):
        leaves = {name: x.detach().clone().requires_grad_() for name, x in given.items()}
        *others, delta = (*leaves.values(),) if form == "polar" else (*leaves.values(), None)
        settings = form, frequencies, 0.2, implementation, implementation
        out = fused.attention(*others, delta, None, None, None, *settings)[0]
        out.square().sum().backward()
        results.append([out, *(x.grad for x in leaves.values())])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert calls == [False]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["nope", "rope", "pope"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("length", "head_dim"), [(2, 64), (77, 64), (1024, 64), (300, 128), (200, 96), (130, 32)])
def test_error_is_within_budget(name, dtype, length, head_dim):
    pytest.importorskip("flash_attn.cute.interface", reason="needs flash-attn-4")
    check_budget(name, draw(name, length, length, head_dim, dtype), None, "fa4")


@pytest.mark.gpu
def test_gradients_repeat_where_determinism_is_requested():
    pytest.importorskip("flash_attn.cute.interface", reason="needs flash-attn-4")
    from bearings.kernels.attention.nope import nope_attention

    inputs = draw("nope", 2048, 2048, 64, torch.bfloat16)
    torch.use_deterministic_algorithms(True)
    try:
        found = []
        for _ in range(4):
            leaves = [x.detach().requires_grad_() for x in inputs.values()]
            nope_attention(*leaves, implementation="fa4").square().sum().backward()
            found.append([x.grad for x in leaves])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(x, first) for again in found for x, first in zip(again, found[0], strict=True))
