"""Addition and RMSNorm in Triton compared with PyTorch, and in a Transformer."""

import pytest
import torch
import torch.nn.functional as F
from encodings_support import one_thread  # noqa: F401
from fused_support import DEVICE, GPU, poisoned_memory  # noqa: F401

from bearings.encodings.base import Encoding
from bearings.kernels.layers import added_norm as module
from bearings.kernels.layers.added_norm import added_norm, added_norm_op
from bearings.lightning_modules import fused_stream
from bearings.lightning_modules.blocks import EPSILON
from bearings.lightning_modules.transformer import Transformer

F32, F16 = torch.float32, torch.float16

pytestmark = pytest.mark.usefixtures("one_thread", "poisoned_memory")


@pytest.mark.parametrize(("dtype", "branch_dtype"), [(F32, F32), (F32, F16), (F16, F16), (F16, F32)], ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 768), (40, 33)])
def test_sum_norm_and_gradients(shape, dtype, branch_dtype):
    torch.manual_seed(0)
    x, branch = (torch.randn(shape, device=DEVICE).to(each) for each in (dtype, branch_dtype))
    leaves = [x.requires_grad_(), branch.requires_grad_(), torch.randn(shape[-1:], device=DEVICE, requires_grad=True)]
    total = (leaves[0].float() + leaves[1].float()).to(dtype)
    expected = total, F.rms_norm(total.float(), leaves[2].shape, leaves[2], EPSILON)
    grads = [torch.randn(shape, device=DEVICE).to(each.dtype) for each in expected]
    wanted = torch.autograd.grad(expected, leaves, grads)
    got = added_norm_op(*leaves, EPSILON, torch.float32)[:2]
    found = torch.autograd.grad(got, leaves, grads)
    for one, other in zip((*got, *found), (*expected, *wanted), strict=True):
        assert one.dtype == other.dtype
        exact = one.dtype == dtype == F32
        torch.testing.assert_close(one, other, rtol=1e-5 if exact else 2e-3, atol=1e-5 if exact else 2e-3)


def test_float64_keeps_its_precision():
    x, branch = (torch.randn(3, 8, dtype=torch.float64, device=DEVICE, requires_grad=True) for _ in range(2))
    weight = torch.randn(8, dtype=torch.float64, device=DEVICE, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *leaves: added_norm(*leaves, EPSILON), (x, branch, weight))


def test_opcheck():
    x, branch = (torch.randn(2, 3, 8, device=DEVICE, requires_grad=True) for _ in range(2))
    weight = torch.rand(8, device=DEVICE, requires_grad=True)
    torch.library.opcheck(added_norm_op.registered, (x, branch, weight, EPSILON, torch.float32))


@pytest.mark.parametrize("compiled", [False, True])
def test_model_gradients_match_pytorch(monkeypatch, compiled):
    torch.compiler.reset()
    tokens, targets = torch.randint(50, (2, 2, 40), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    found = []
    for by_triton in (False, True):
        model = Transformer(50, Encoding, width=48, layers=2, heads=4).to(DEVICE)
        with monkeypatch.context() as patch:
            if by_triton:
                patch.setattr(
                    fused_stream, "added_norm", lambda x, b, w, _: added_norm_op(x, b, w, EPSILON, x.dtype)[:2]
                )
            else:
                patch.setattr(module, "INSTALLED", False)
            if compiled and by_triton:
                model.compile_parts(backend="inductor" if GPU else "aot_eager")
            model.nats(tokens, targets).backward()
        found.append(dict(model.named_parameters()))
    for name, parameter in found[0].items():
        error = (found[1][name].grad - parameter.grad).norm() / parameter.grad.norm()
        assert error < 1e-5, name


def test_weight_with_gaps_between_its_elements():
    torch.manual_seed(0)
    x, branch = (torch.randn(3, 8, device=DEVICE, requires_grad=True) for _ in range(2))
    weight = torch.randn(16, device=DEVICE)[::2].requires_grad_()
    found, expected = added_norm_op(x, branch, weight, EPSILON, F32)[1], F.rms_norm(x + branch, (8,), weight, EPSILON)
    torch.testing.assert_close(found, expected)
    grad = torch.randn(3, 8, device=DEVICE)
    given = (x, branch, weight)
    torch.testing.assert_close(*(torch.autograd.grad(out, given, grad) for out in (found, expected)))


@pytest.mark.parametrize(("branch", "weight"), [((1, 8), (8,)), ((2, 3, 8), (8,)), ((3, 7), (8,)), ((3, 8), (7,))])
def test_wrong_shapes_raise(branch, weight):
    """The kernel would read beyond a tensor that is too small."""
    with pytest.raises(ValueError, match=r"branch \[.* with x \[3, 8\]: the shapes must be \[3, 8\] and \[8\]"):
        added_norm(torch.randn(3, 8, device=DEVICE), torch.randn(branch), torch.randn(weight), EPSILON)
