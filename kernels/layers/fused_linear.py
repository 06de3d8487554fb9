"""Several projections of one input as one matrix product."""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

ALIGNED = 8  # 16-bit matrix products are fast if rows are multiples of 16 bytes


class FusedLinear(nn.Linear):
    """Several projections of one input as one matrix product, without biases.

    Args:
        width: number of input channels.
        outputs: number of channels of each projection by name, in the order of the output columns.
    """

    def __init__(self, width: int, outputs: Mapping[str, int]):
        super().__init__(width, sum(outputs.values()), bias=False)
        self.outputs = dict(outputs)

    def parts(self) -> dict[str, Tensor]:
        """The weight of each projection by name: views of rows of the fused weight."""
        return dict(zip(self.outputs, self.weight.split(list(self.outputs.values())), strict=True))

    def forward(self, x: Tensor) -> Tensor:
        """Project `x [..., width]` to `[..., sum of outputs]`."""
        missing = -self.out_features % ALIGNED
        if not missing:
            return super().forward(x)
        return F.linear(x, F.pad(self.weight, (0, 0, 0, missing)))[..., : self.out_features]
