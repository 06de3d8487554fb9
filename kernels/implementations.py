"""Names of the implementations of attention. Imports no PyTorch."""

from typing import Literal

Implementation = Literal["auto", "triton", "cudnn", "fa4", "torch"]
