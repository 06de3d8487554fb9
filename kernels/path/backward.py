"""The stages of the PaTH backward pass in the order in which they run."""

import torch
from torch import Tensor

from .call import Call
from .diagonal import diagonal
from .far import far_keys, far_queries
from .near import near_keys, near_queries
from .prepare import Prepared, pairs_of, prepare
from .pull import Pulled, pull
from .unprepare import descend, empty_dnodes, gather, unprepare


def backward(
    call: Call,
    out: Tensor,
    dout: Tensor,
    lse: Tensor,
    prepared: Prepared | None,
    pulled: Pulled | None,
    gradients: list[Tensor],
) -> Tensor | None:
    """Run the backward pass. Tensors are freed as soon as no later stage reads them.

    Args:
        call: the inputs.
        out, dout: the output and its gradient, `[B, T, H, Dv]`.
        lse: log-sum-exp in base 2, `[B H, Tp]`.
        prepared, pulled: tensors saved by the forward pass, or None to recompute them.
        gradients: dq, dk, dv, dw, dbeta, filled in place.

    Returns:
        Gradient of the cumulative log-gates, `[B H, Tp]`; None without gates.
    """
    dq, dk, dv, dw, dbeta = gradients
    sizes = call.sizes
    p = prepared or prepare(call.k, call.w, call.beta, sizes, True)
    (seen, q_bar), up = pull(call, p, pulled, out, dout, lse)
    dc = torch.zeros_like(up.delta) if call.high is not None else None  # 0 for c_t, which changes no softmax
    dq_bar, dk_bar, dproduct = far(call, up, p, q_bar, dv, dc)
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


def far(call: Call, up, p: Prepared, q_bar: Tensor | None, dv: Tensor, dc: Tensor | None):
    """Gradients of queries and keys at chunk borders, and of the chunk products; None for a single chunk."""
    sizes = call.sizes
    if not sizes.pairs or q_bar is None:
        dq_bar = call.q.new_empty(sizes.batch * sizes.heads, sizes.padded, sizes.width)
        return dq_bar, call.q.new_empty(sizes.batch * sizes.kv_heads, sizes.padded, sizes.width), None
    m = pairs_of(p.nodes, sizes, call.q.dtype)
    dq_bar, dproduct = far_queries(call, up, p, m, q_bar)
    return dq_bar, far_keys(call, up, p, m, q_bar, dv, dc), dproduct
