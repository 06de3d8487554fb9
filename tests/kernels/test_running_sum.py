"""Running sums over the tokens of a row."""

import torch

from bearings.kernels.layers.running_sum import running_sum


def test_it_is_the_sum_up_to_each_token_with_its_gradient():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(running_sum(x), x.cumsum(1))
    assert torch.autograd.gradcheck(running_sum, (x,))
    torch.library.opcheck(running_sum.registered, (x,))
