"""Shared by comparisons with published code: what it returned, and encodings with the same inputs and parameters."""

import json
from pathlib import Path

import torch
from encodings_support import ENCODINGS, Inputs, attend
from fixtures.recorders.common import inputs, wave
from torch import Tensor, nn

from bearings.encodings.base import Encoding

HEADS, WIDTH = 2, 16
FLOAT32 = {"rtol": 0.0, "atol": 2e-6}  # some of the recorded code computes in float32
EXACT = {"rtol": 0.0, "atol": 1e-8}  # recorded with 9 digits


def recorded(name: str) -> dict:
    path = Path(__file__).parents[1] / "fixtures" / "published" / f"{name}.json"
    return json.loads(path.read_text())


def make(name: str, heads: int = HEADS, head_dim: int = 8, **options) -> Encoding:
    return ENCODINGS[name](WIDTH, heads, heads, head_dim, **options).double()


def output_of(
    encoding: Encoding, tokens: int = 8, order: list[int] | None = None, factor: float | Tensor = 1
) -> Tensor:
    """`[T, H, D]` for the inputs that the recorded code got.

    `order` is the channels of q and k in which the code's pairs are ours; `factor` multiplies q.
    """
    q, k, v = inputs(tokens, encoding.kv_heads, encoding.head_dim)
    if order is not None:
        q, k = q[..., order], k[..., order]
    with torch.no_grad():
        return attend(encoding, Inputs(wave(1, tokens, WIDTH, step=0.3), q * factor, k, v))[0]


def bias_of(encoding: Encoding) -> Tensor:
    """`[H, T, T]`, T = head_dim: what is added to scores, relative to the diagonal; -inf for future keys."""
    tokens = encoding.head_dim
    zeros, each = torch.zeros(1, tokens, encoding.heads, tokens).double(), torch.eye(tokens).double()
    values = each.view(1, tokens, 1, tokens).expand(-1, -1, encoding.heads, -1)
    with torch.no_grad():
        weights = attend(encoding, Inputs(zeros[..., 0, :], zeros, zeros, values))[0].transpose(0, 1)
    return weights.log() - weights.diagonal(dim1=-2, dim2=-1).log().unsqueeze(-1)


def assign(encoding: nn.Module, **values) -> nn.Module:
    """Set parameters by name."""
    with torch.no_grad():
        for name, value in values.items():
            encoding.get_parameter(name).copy_(torch.as_tensor(value).view_as(encoding.get_parameter(name)))
    return encoding


def by_distance(bias: Tensor) -> Tensor:
    """`[H, T]`, the bias of the last query at distances 0, 1, ..."""
    return bias[:, -1].flip(-1)


def expect(found: Tensor, values: list | float, **tolerance: float) -> None:
    torch.testing.assert_close(found, torch.tensor(values, dtype=torch.float64), **tolerance)
