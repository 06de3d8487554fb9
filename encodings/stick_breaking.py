"""Stick-breaking attention: each key takes a share of the attention that nearer keys have left."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.about import About, Paper
from ..kernels.attention.rows import Rows, sums_of_later_keys
from .families.rows import RowEncoding
from .options import StickBreakingOptions


class StickBreaking(RowEncoding):
    """Attention without a softmax and without positions: order follows from the process that assigns the weights.

    From the nearest earlier key to the farthest, each key takes the share sigmoid(z) of what is left of a stick of
    length 1. What remains goes to the query's own value, as in an early version of the authors' language models
    (`sb_remainder` in IBM/dolomite-engine at dcf8f5c), so weights sum to 1. A query does not take a share for its own
    key. In their later version (2fb795e), what remains multiplies a learned vector of each head, initially 0, and the
    result of each head is normalised (GroupNorm). Neither is done here.

    Weights are computed as logarithms: the logarithm of 1 - sigmoid(z) is -softplus(z), and the sum of these over the
    nearer keys is exact for shares close to 0 or 1. As weights sum to 1, the softmax of these logarithms returns them.

    Args:
        options: fields of `StickBreakingOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="Stick-breaking attention",
        mechanism="decay",
        summary="each key takes a share of the attention that the keys nearer to the query have left",
        equation=r"\text{weight}(t, s) = \sigma(z_{t,s}) \prod_{u=s+1}^{t-1} \left(1 - \sigma(z_{t,u})\right), \qquad "
        r"\text{weight}(t, t) = \prod_{u<t} \left(1 - \sigma(z_{t,u})\right), \qquad z_{t,s} = q_t^\top k_s",
        terms=r"$\sigma$ is the logistic function.",
        cache="keys and values",
        paper=Paper(
            "Tan et al.",
            2024,
            "Scaling Stick-Breaking Attention: An Efficient Implementation and In-depth Study",
            "2410.17980",
        ),
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = StickBreakingOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)

    def scores(self, block: Rows, *tensors: Tensor) -> Tensor:
        logits, own = block.dots(self.head_dim**-0.5), block.distances() == 0
        # The logarithm of the share of the stick that a key leaves. Keys that a query does not see leave all of it.
        left = F.logsigmoid(-logits).masked_fill(own | ~block.visible, 0.0)
        log_weights = F.logsigmoid(logits) + sums_of_later_keys(left)
        return torch.where(own, left.sum(-1, keepdim=True), log_weights)
