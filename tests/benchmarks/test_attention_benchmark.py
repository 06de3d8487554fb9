"""The benchmark of attention operators, as far as it runs without a GPU."""

import pytest
import torch

pytest.importorskip("triton")

from bearings.benchmarks.attention import mode_of
from bearings.benchmarks.attention_contenders import deterministic


def test_deterministic_contenders_stay_so_until_the_gradient_is_computed():
    modes = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            modes.append(torch.are_deterministic_algorithms_enabled())
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            modes.append(torch.are_deterministic_algorithms_enabled())
            return grad

    x = torch.ones(3, requires_grad=True)
    call = deterministic(lambda inputs: lambda: Watched.apply(x))(None)
    with mode_of(call):
        call().sum().backward()
    assert modes == [True, True]
    assert not torch.are_deterministic_algorithms_enabled()
