"""SwiGLU's product by Triton against PyTorch's own, and the parts of the Transformer that use it."""

import pytest
import torch
import torch.nn.functional as F
from encodings_support import one_thread  # noqa: F401
from fused_support import DEVICE, poisoned_memory  # noqa: F401

from bearings.kernels.swiglu import silu_product, silu_product_op
from bearings.lightning_modules.transformer import SwiGLU

pytestmark = pytest.mark.usefixtures("one_thread", "poisoned_memory")


@pytest.mark.parametrize("shape", [(3, 5, 2 * 7), (2, 2 * 1376), (1, 2 * 1024)])
def test_product_and_gradient(shape):
    torch.manual_seed(0)
    x = torch.randn(shape, device=DEVICE, requires_grad=True)
    gate, up = x.chunk(2, -1)
    expected = F.silu(gate) * up
    grad = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad(expected, x, grad)
    got = silu_product_op(x)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(torch.autograd.grad(got, x, grad)[0], wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(silu_product(x), expected, rtol=1e-5, atol=1e-6)


def test_opcheck():
    torch.library.opcheck(silu_product_op, (torch.randn(2, 3, 8, device=DEVICE, requires_grad=True),))


def test_in_training_two_projections_are_one_product():
    torch.manual_seed(0)
    mlp, x = SwiGLU(6, 10).to(DEVICE), torch.randn(2, 3, 6, device=DEVICE)
    found = []
    for training in (True, False):
        mlp.train(training).zero_grad()
        out = mlp(x)
        out.square().sum().backward()
        found.append([out.detach(), *(p.grad.clone() for p in mlp.parameters())])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
