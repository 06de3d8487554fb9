"""Inputs of attention that every implementation refuses."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from encodings_support import one_thread  # noqa: F401
from fused_support import DEVICE, poisoned_memory  # noqa: F401

from bearings.kernels.attention.distance import distance_attention
from bearings.kernels.attention.fox import fox_attention
from bearings.kernels.attention.merge import attention_lse
from bearings.kernels.attention.nope import nope_attention
from bearings.kernels.attention.pope import pope_attention
from bearings.kernels.attention.rope import rope_attention, rotate
from bearings.kernels.documents import Documents

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("one_thread", "poisoned_memory")


def test_unsupported_inputs_raise_or_use_torch():
    q, k, v = (torch.randn(2, 4, heads, 16, device=DEVICE) for heads in (2, 1, 1))
    with pytest.raises(ValueError, match="scale=0"):
        nope_attention(q, k, v, scale=0.0)
    with pytest.raises(ValueError, match=r"documents \[1, 4\]"):
        nope_attention(q, k, v, Documents.of(torch.zeros(1, 4, dtype=torch.int64, device=DEVICE)))
    wide = torch.randn(2, 4, 1, 48, device=DEVICE)
    with pytest.raises(ValueError, match="only torch supports queries"):
        nope_attention(q, k, wide, implementation="triton")
    assert nope_attention(q, k, wide).shape == (2, 4, 2, 48)
    assert nope_attention(q[:0], k[:0], v[:0]).shape == (0, 4, 2, 16)


def wrong(**given):
    """Inputs of which one has a shape that does not fit the others, and what the error says about it."""
    inputs = {"q": (2, 4, 2, 16), "k": (2, 5, 1, 16), "v": (2, 5, 1, 16)}
    ((name, (shape, message)),) = given.items()
    tensors = {other: torch.randn(each, device=DEVICE) for other, each in (inputs | {name: shape}).items()}
    return tensors, message


@pytest.mark.parametrize("implementation", ["auto", "triton", "torch"])
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        wrong(k=((1, 5, 1, 16), r"keys \[1, 5, 1, 16\] with .*: the shape must be \[2, 5, 1, 16\]")),
        wrong(k=((2, 5, 1, 32), r"keys \[2, 5, 1, 32\] with .*: the shape must be \[2, 5, 1, 16\]")),
        wrong(v=((2, 4, 1, 16), r"values \[2, 4, 1, 16\] with .*: the shape must be \[2, 5, 1, 16\]")),
        wrong(v=((2, 5, 2, 16), r"values \[2, 5, 2, 16\] with .*: the shape must be \[2, 5, 1, 16\]")),
        wrong(delta=((16,), r"delta \[16\] with .*: the shape must be \[1, 16\]")),
        wrong(delta=((2, 16), r"delta \[2, 16\] with .*: the shape must be \[1, 16\]")),
        wrong(sums=((2, 4, 2), r"sums \[2, 4, 2\] with .*: the shape must be \[2, 5, 2\]")),
        wrong(sums=((2, 5, 1), r"sums \[2, 5, 1\] with .*: the shape must be \[2, 5, 2\]")),
    ],
)
def test_kernels_never_see_tensors_that_are_too_small(inputs, message, implementation):
    """They would read beyond them, where PyTorch broadcasts or raises an error."""
    operator = pope_attention if "delta" in inputs else fox_attention if "sums" in inputs else nope_attention
    with pytest.raises(ValueError, match=message):
        operator(**inputs, implementation=implementation)
    if operator is nope_attention:
        with pytest.raises(ValueError, match=message):
            attention_lse(**inputs, implementation=implementation)


@pytest.mark.parametrize("implementation", ["auto", "triton", "torch"])
@pytest.mark.parametrize("base", [torch.ones(8), np.ones(8), torch.tensor(100.0), 0, -5.0, math.nan], ids=repr)
def test_base_is_a_positive_number_or_a_list(base, implementation):
    """A tensor would be taken for bases, one per frequency."""
    q = torch.randn(1, 4, 2, 16, device=DEVICE)
    with pytest.raises(ValueError, match=r"base=.*: it must be a number above 0, or a list or tuple of 8 frequencies"):
        rope_attention(q, q, q, base, implementation=implementation)
    given = [rope_attention(q, q, q, kind(100), implementation=implementation) for kind in (int, np.float32)]
    assert torch.equal(*given)


@pytest.mark.parametrize("implementation", ["auto", "triton", "torch"])
def test_log_sum_exp_needs_a_positive_scale(implementation):
    q = torch.randn(1, 4, 2, 16, device=DEVICE)
    with pytest.raises(ValueError, match=r"scale=-0\.5: it must be above 0"):
        attention_lse(q, q, q, scale=-0.5, implementation=implementation)


@pytest.mark.parametrize("implementation", ["auto", "triton", "torch"])
def test_a_scale_that_is_not_a_number_is_refused(implementation):
    q, table = torch.randn(1, 4, 2, 16, device=DEVICE), torch.zeros(2, 3, device=DEVICE)
    given = {"scale": math.nan, "implementation": implementation}
    for call in (partial(nope_attention, q), partial(attention_lse, q), partial(distance_attention, q, table=table)):
        with pytest.raises(ValueError, match=r"scale=nan: it must be above 0"):
            call(k=q, v=q, **given)


@pytest.mark.parametrize("implementation", ["auto", "triton", "torch"])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_inputs_without_a_batch_are_refused(name, implementation):
    given = {each: torch.randn(1, 4, 2, 16, device=DEVICE) for each in "qkv"}
    given[name] = given[name][0]
    message = r"\[4, 2, 16\].*: the shapes? must be \["
    for operator in (nope_attention, rope_attention, attention_lse):
        with pytest.raises(ValueError, match=message):
            operator(**given, implementation=implementation)


def test_inputs_without_heads_are_refused():
    q = torch.randn(1, 4, 0, 16, device=DEVICE)
    with pytest.raises(ValueError, match="0 query heads, 0 key heads: the query heads must be a multiple"):
        nope_attention(q, q, q)


def test_a_table_without_heads_is_refused():
    q = torch.randn(1, 4, 2, 16, device=DEVICE)
    with pytest.raises(ValueError, match=r"table \[2\] with 2 query heads: it needs one row per query head"):
        distance_attention(q, q, q, torch.zeros(2, device=DEVICE))


@pytest.mark.parametrize("base", [100.0, [1.0] * 7], ids=repr)
def test_an_odd_number_of_channels_has_no_pairs(base):
    q = torch.randn(1, 4, 2, 15, device=DEVICE)
    with pytest.raises(ValueError, match="head_dim=15: RoPE needs a multiple of 2"):
        rope_attention(q, q, q, base)
    with pytest.raises(ValueError, match="head_dim=15: RoPE needs a multiple of 2"):
        rotate(q, torch.arange(4, device=DEVICE), base)
