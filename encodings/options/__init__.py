"""Options of the encodings: `RoPEOptions` belong to `RoPE`. Does not import PyTorch."""

# ruff: noqa: F403
from .base import *
from .content import *
from .distance import *
from .inputs import *
from .layers import *
from .rotation import *
