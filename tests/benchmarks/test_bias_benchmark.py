"""The benchmark of block sizes for biases, as far as it runs without a GPU."""

import pytest
import torch

pytest.importorskip("triton")

from bearings.benchmarks.bias import blocks
from bearings.kernels.attention import flash
from bearings.kernels.layout import layout_of


def test_block_sizes_apply_to_launches_that_are_remembered():
    layout = layout_of(torch.zeros(1, 32, 2, 16))

    def tiles():
        return flash.prepared("forward", 32, 2, layout, layout, layout, (), ()).choices[0][1]["BM"]

    default = tiles()
    with blocks("forward", (2 * default, 32, 4, 1)):
        assert tiles() == 2 * default
    assert tiles() == default
