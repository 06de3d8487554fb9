"""The SwiGLU product in Triton compared with PyTorch, and in a Transformer."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from encodings_support import one_thread  # noqa: F401
from fused_support import DEVICE, GPU, poisoned_memory  # noqa: F401

from bearings.kernels.layers.swiglu import silu_product, silu_product_op
from bearings.lightning_modules import blocks
from bearings.lightning_modules.transformer import Transformer
from bearings.session.configuration import build
from bearings.session.settings import file_of

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


def test_float64_keeps_its_precision():
    x = torch.randn(3, 8, dtype=torch.float64, device=DEVICE, requires_grad=True)
    assert torch.autograd.gradcheck(silu_product, x)


def test_opcheck():
    torch.library.opcheck(silu_product_op.registered, (torch.randn(2, 3, 8, device=DEVICE, requires_grad=True),))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("encoding", ["rope", "pope", "fox"])
def test_model_gradients_match_pytorch(monkeypatch, encoding, compiled):
    if not GPU and encoding != ("rope" if compiled else "pope"):
        pytest.skip("one encoding is enough for the interpreter")
    torch.compiler.reset()
    sizes = {"width": 64, "layers": 1, "heads": 4, "kv_heads": 2}
    tokens, targets = torch.randint(50, (2, 2, 40), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    documents = torch.arange(40, device=DEVICE).expand(2, 40) // 23
    found = []
    for implementation in ("torch", "triton"):
        block = {**file_of("encoding", encoding), "implementation": implementation}
        model = Transformer(50, partial(build, block, "encoding"), **sizes).to(DEVICE).train(implementation == "triton")
        if implementation == "triton":
            monkeypatch.setattr(blocks, "silu_product", silu_product_op)
            if compiled:
                model.compile_parts(backend="inductor" if GPU else "aot_eager")
        model.nats(tokens, targets, documents).backward()
        found.append(dict(model.named_parameters()))
    for name, parameter in found[0].items():
        error = (found[1][name].grad - parameter.grad).norm() / parameter.grad.norm()
        assert error < 1e-5, name


def test_an_odd_number_of_channels_raises():
    """The kernel would leave the last channel out and shift the rows after the first."""
    with pytest.raises(ValueError, match=r"x \[2, 5\]: gate and up need an even number of channels"):
        silu_product(torch.randn(2, 5, device=DEVICE))
