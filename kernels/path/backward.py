"""The stages of the PaTH backward pass in the order in which they run."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..common import LOG2E
from .call import Call
from .diagonal import diagonal
from .far import far_keys, far_queries
from .near import near_keys, near_queries
from .prepare import Prepared, pairs_of, prepare
from .pull import Pulled, pull
from .unprepare import descend, empty_dnodes, gather, unprepare


class Outer(NamedTuple):
    """Gradients that reach a part of a sequence from other parts, in the shapes of what it gave them."""

    dlse: Tensor  # [B H, Tp], of the log-sum-exp in base 2
    dk_bar: Tensor  # [N, Tp, DP], of keys at the ends of chunks
    dq_bar: Tensor  # [B H, Tp, DP], of queries at the starts of chunks, which include the factor scale log2(e)
    dproduct: Tensor  # [N, n, DP, DP], of the products of chunks


def backward(
    call: Call,
    out: Tensor,
    dout: Tensor,
    lse: Tensor,
    prepared: Prepared | None,
    pulled: Pulled | None,
    gradients: list[Tensor],
    outer: Outer | None = None,
) -> Tensor | None:
    """Run the backward pass. Tensors are freed as soon as no later stage reads them.

    Args:
        call: the inputs.
        out, dout: the output and its gradient, `[B, T, H, Dv]`.
        lse: log-sum-exp in base 2, `[B H, Tp]`.
        prepared, pulled: tensors saved by the forward pass, or None to recompute them.
        gradients: dq, dk, dv, dw, dbeta, filled in place.
        outer: gradients from other parts of the sequence; None for a whole one.

    Returns:
        Gradient of the cumulative log-gates, `[B H, Tp]`; None without gates.
    """
    dq, dk, dv, dw, dbeta = gradients
    sizes = call.sizes
    p = prepared or prepare(call.k, call.w, call.beta, sizes, True)
    (seen, q_bar), up = pull(call, p, pulled, out, dout, lse)
    if outer is not None:
        up.delta.sub_(outer.dlse, alpha=LOG2E.value)  # dS = P (dP - delta), and P is the gradient of the log-sum-exp
    dc = torch.zeros_like(up.delta) if call.high is not None else None  # 0 for c_t, which changes no softmax
    dq_bar, dk_bar, dproduct = far(call, up, p, q_bar, dv, dc, outer)
    p = p._replace(k_bar=None)
    del prepared, pulled, q_bar
    dseen, dnodes = near_queries(call, up, p, seen, dq_bar), empty_dnodes(call.q, sizes)
    gather(call, dnodes, seen, dseen, right=False)
    del dseen
    shares, dv_own = diagonal(call, up, p, dq_bar, dq, dc)
    du = dq_bar
    dkeys = near_keys(call, up, p, seen, dv_own, dk_bar, dv, dc)
    dk_end = dk_bar
    del dv_own
    gather(call, dnodes, dkeys, p.keys, right=True)
    p = p._replace(keys=None)
    del seen, dkeys
    descend(sizes, p.nodes, dnodes, dproduct)
    p = p._replace(nodes=None)
    del dproduct
    unprepare(call, p, dnodes, dk_end, du, shares, dk, dw, dbeta)
    return dc


def far(call: Call, up, p: Prepared, q_bar: Tensor | None, dv: Tensor, dc: Tensor | None, outer: Outer | None):
    """Gradients of queries and keys at chunk borders, and of the chunk products; None unless `Sizes.far`."""
    sizes = call.sizes
    if outer is not None and not sizes.pairs:
        dv.zero_()  # no later chunk contributes
        dq_bar = (outer.dq_bar.float() * LOG2E.value).to(call.q.dtype)
        # Later stages write to the gradient of keys, but what other parts gave is not to change.
        return dq_bar, outer.dk_bar.to(call.q.dtype, copy=True), outer.dproduct.float()
    if not sizes.pairs or q_bar is None:
        dq_bar = call.q.new_empty(sizes.batch * sizes.heads, sizes.padded, sizes.width)
        return dq_bar, call.q.new_empty(sizes.batch * sizes.kv_heads, sizes.padded, sizes.width), None
    m = pairs_of(p.nodes, sizes, call.q.dtype)
    dq_bar, dproduct = far_queries(call, up, p, m, q_bar)
    dk_bar = far_keys(call, up, p, m, q_bar, dv, dc)
    if outer is not None:
        dq_bar.add_(outer.dq_bar, alpha=LOG2E.value)  # the kernels' gradients of queries are those of base e
        dk_bar.add_(outer.dk_bar)
        dproduct.add_(outer.dproduct)
    return dq_bar, dk_bar, dproduct
