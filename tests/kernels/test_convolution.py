"""The causal convolution over tokens."""

import pytest
import torch

from bearings.kernels.layers.convolution import causal_convolution


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("pieces", [[1] * 9, [9], [2, 0, 7]])
def test_pieces_equal_the_whole_sequence(pieces, width):
    torch.manual_seed(0)
    u, taps = torch.randn(2, 9, 3, dtype=torch.float64), torch.randn(width, 3, dtype=torch.float64)
    expected = [sum(taps[i] * u[:, t - i] for i in range(min(width, t + 1))) for t in range(9)]
    outs, tail = [], None
    for part in u.split(pieces, 1):
        out, tail = causal_convolution(part, taps, tail)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), torch.stack(expected, 1))
    assert torch.equal(tail, u[:, 10 - width :])


@pytest.mark.parametrize("shape", [(2, 1, 3), (2, 3, 3), (1, 2, 3)])
def test_a_tail_of_another_shape_raises(shape):
    """A shorter one would shift the tokens."""
    with pytest.raises(ValueError, match=r"with u \[2, 4, 3\], 3 taps: the shape must be \[2, 2, 3\]"):
        causal_convolution(torch.randn(2, 4, 3), torch.randn(3, 3), torch.randn(shape))
