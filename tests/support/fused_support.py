"""Inputs, oracle and budget of the operators that Triton and cuDNN compute."""

import math

import pytest
import torch
from torch import Tensor

from bearings.kernels import reference
from bearings.kernels.attention.fox import fox_attention
from bearings.kernels.attention.nope import nope_attention
from bearings.kernels.attention.plain import causal_attention
from bearings.kernels.attention.pope import pope_attention
from bearings.kernels.attention.rope import rope_attention
from bearings.kernels.documents import Documents

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
BASE = 100.0
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * GPU  # the interpreter multiplies bfloat16 wrongly
every_operator = pytest.mark.parametrize("name", ["nope", "rope", "pope", "fox"])


@pytest.fixture
def poisoned_memory():
    """Memory comes filled with NaN, so that an element nobody writes shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def draw(name: str, queries: int, keys: int, head_dim: int, dtype: torch.dtype, heads=(4, 2), batch=2) -> dict:
    """Inputs of one operator, rounded to `dtype` beforehand."""
    torch.manual_seed(queries + keys + head_dim)

    def random(*shape):
        return torch.randn(*shape, device=DEVICE)

    inputs = {"q": random(batch, queries, heads[0], head_dim).to(dtype)}
    inputs |= {x: random(batch, keys, heads[1], head_dim).to(dtype) for x in "kv"}
    if name == "pope":
        inputs["delta"] = -2 * math.pi * torch.rand(heads[1], head_dim, device=DEVICE)
    if name == "fox":
        inputs["gates"] = torch.nn.functional.logsigmoid(random(batch, keys, heads[0]).double() + 2)
    return inputs


def limits_of(i: dict, documents: Tensor | None, window: int | None = None, spare: int = 3) -> Documents | None:
    """Limits of attention from ids and a window, with `spare` empty documents in `cu_seqlens`."""
    if documents is not None:
        limits = Documents.of(documents, int((documents[:, 1:] != documents[:, :-1]).sum()) + len(documents) + spare)
    else:
        limits = None if window is None else Documents.single(*i["k"].shape[:2], i["k"].device)
    return limits if limits is None or window is None else limits.within(window)


def by_kernel(name: str, i: dict, documents: Tensor | None, implementation: str, window: int | None = None) -> Tensor:
    given = {"documents": limits_of(i, documents, window), "implementation": implementation}
    if name == "nope":
        return nope_attention(i["q"], i["k"], i["v"], **given)
    if name == "rope":
        return rope_attention(i["q"], i["k"], i["v"], BASE, **given)
    if name == "pope":
        return pope_attention(i["q"], i["k"], i["v"], i["delta"], BASE, **given)
    return fox_attention(i["q"], i["k"], i["v"], i["gates"].cumsum(1), **given)


def plain(name: str, i: dict, documents: Tensor | None, window: int | None = None) -> Tensor:
    """PyTorch's operations in the inputs' own dtype."""
    if name != "fox":
        return by_kernel(name, i, documents, "torch", window)
    sums = i["gates"].cumsum(1).transpose(1, 2)
    bias = sums[..., -i["q"].shape[1] :].unsqueeze(-1) - sums.unsqueeze(-2)
    packed = None if documents is None else Documents.of(documents)
    return causal_attention(i["q"], i["k"], i["v"], packed, bias=bias)


def exact(name: str, i: dict, documents: Tensor | None, window: int | None = None) -> Tensor:
    if window is not None:
        return plain(name, i, documents, window)  # the reference has no windows
    q, k, v, positions = i["q"], i["k"], i["v"], torch.arange(i["k"].shape[1], device=DEVICE)
    if name == "nope":
        return reference.nope_attention(q, k, v, documents)
    if name == "rope":
        return reference.rope_attention(q, k, v, positions, BASE, documents)
    if name == "pope":
        return reference.pope_attention(q, k, v, positions, i["delta"], BASE, documents)
    return reference.fox_attention(q, k, v, i["gates"], documents)


def outcome(function, inputs: dict, grad: Tensor) -> dict[str, Tensor]:
    """The output and the gradient of every input, in float64."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    out = function(leaves)
    out.backward(grad.to(out.dtype))
    return {"out": out.detach().double(), **{name: x.grad.double() for name, x in leaves.items()}}


def check_budget(
    name: str, inputs: dict, documents: Tensor | None, implementation: str, window: int | None = None
) -> None:
    """The error is at most twice that of the plain computation, plus the rounding of dP and of its mean over a row.

    Where they cancel, as in a row of one key, the plain computation happens to be exact.
    """
    grad = torch.randn(inputs["q"].shape, device=DEVICE).to(inputs["q"].dtype)
    kernel = outcome(lambda i: by_kernel(name, i, documents, implementation, window), inputs, grad)
    low = outcome(lambda i: plain(name, i, documents, window), inputs, grad)
    high = outcome(
        lambda i: exact(name, i, documents, window), {n: x.double() for n, x in inputs.items()}, grad.double()
    )
    for what, wanted in high.items():
        size = max(wanted.norm().item(), grad.norm().item())
        error, budget = ((found[what] - wanted).norm().item() / size for found in (kernel, low))
        rounding = 2 * torch.finfo(inputs["q"].dtype).eps
        assert error <= 2 * budget + rounding, f"{what}: error {error:.1e}, of the plain computation {budget:.1e}"
