"""Base of encodings whose scores or weights only the row-block attention of kernels/attention/rows.py computes."""

import torch

from ...kernels.choice import Plan
from ..base import Encoding


class RowEncoding(Encoding):
    """An encoding that calls `attend_rows` in its `forward`. It supports the implementations auto and torch."""

    def plan(
        self,
        device: torch.device,
        dtype: torch.dtype,
        length: int,
        documents: bool = False,
        cached: int | None = None,
    ) -> Plan:
        if self.implementation not in ("auto", "torch"):
            raise ValueError(
                f"implementation={self.implementation}: only torch supports {type(self).__name__}; "
                "use implementation=auto or torch"
            )
        return Plan("torch", "torch", f"only torch supports {type(self).__name__}")
