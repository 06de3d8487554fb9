"""Operators called directly and through PyTorch's dispatcher."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from bearings.kernels.attention.pope import pope_attention
from bearings.kernels.loss.cross_entropy import summed_nats
from bearings.kernels.operator import on_its_gpu, operator

called = []


@operator("bearings_tests::cube")
def cube(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """`factor` times the cube of `x`, and its square."""
    called.append("cube")
    return factor * x**3, x**2


@cube.register_fake
def _(x, factor):
    return torch.empty_like(x), torch.empty_like(x)


@operator("bearings_tests::cube_backward")
def cube_backward(grad: Tensor, x: Tensor, factor: float) -> Tensor:
    called.append("cube_backward")
    return 3 * factor * grad * x**2


@cube_backward.register_fake
def _(grad, x, factor):
    return torch.empty_like(grad)


def _setup_context(ctx, inputs, output):
    x, ctx.factor = inputs
    ctx.save_for_backward(x)
    ctx.mark_non_differentiable(output[1])


def _backward(ctx, grad, _):
    return cube_backward(grad, *ctx.saved_tensors, ctx.factor), None


cube.register_autograd(_backward, setup_context=_setup_context)


@pytest.fixture(autouse=True)
def nothing_called():
    called.clear()


@pytest.mark.parametrize(
    "call", [cube, cube.registered, torch.compile(lambda *given: cube(*given), backend="aot_eager", fullgraph=True)]
)
def test_value_and_gradient(call):
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    out, square = call(x, 2.0)
    assert not square.requires_grad
    out.sum().backward()
    assert out.tolist() == [2, -16]
    assert x.grad.tolist() == [6, 24]
    assert called == ["cube", "cube_backward"]


def test_compiled_graph_holds_operators():
    graphs = []

    def keep(graph, example):
        graphs.append(graph.print_readable(print_output=False))
        return graph

    torch.compile(lambda x: cube(x, 2.0)[0] + 1, backend=keep, fullgraph=True)(torch.ones(2, requires_grad=True))
    assert "bearings_tests.cube" in graphs[0]


def test_dispatch_modes_see_the_operator():
    with FakeTensorMode() as mode:
        out, _ = cube(mode.from_tensor(torch.ones(3)), 2.0)
    assert out.shape == (3,)
    assert not called


def test_second_derivatives_are_refused():
    x = torch.ones(2, requires_grad=True)
    (first,) = torch.autograd.grad(cube(x, 2.0)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"cube_backward.* no autograd formula"):
        first.sum().backward()


def test_without_gradients_no_graph_is_recorded():
    x = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        assert cube(x, 1.0)[0].grad_fn is None
    assert cube(x.detach(), 1.0)[0].grad_fn is None
    assert type(cube(x, 1.0)[0].grad_fn).__name__ == "bearings_tests::cubeBackward"


def test_the_gpu_of_the_first_argument_is_the_current_one(monkeypatch):
    present = [0]

    @contextmanager
    def device(chosen):
        present.append(chosen.index)
        yield
        present.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: present[-1])
    seen = on_its_gpu(lambda x, factor=1: (x, present[-1], factor))
    for name, expected in (("cuda:0", 0), ("cuda:1", 1), ("cpu", 0)):
        x = SimpleNamespace(device=torch.device(name))
        assert seen(x, 2) == (x, expected, 2)
        assert seen(x, factor=3) == (x, expected, 3)
    assert present == [0]


@pytest.mark.gpu(2)
def test_kernels_run_on_the_gpu_of_their_inputs():
    """Also where another GPU is the current one, forward and backward, for whole rows and for a cache."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 40, 4, 16).unbind(0)
    delta, weight, targets = torch.randn(4, 16), torch.randn(2000, 16), torch.randint(2000, (320,))
    results = []
    for device in ("cuda:0", "cuda:1"):
        leaves = [x.to(device).requires_grad_() for x in (q, k, v, delta, weight)]
        q_there, k_there, v_there, delta_there, weight_there = leaves
        with torch.no_grad():
            newest = pope_attention(q_there[:, -1:], k_there, v_there, delta_there, implementation="triton")
        out = pope_attention(q_there, k_there, v_there, delta_there, implementation="triton")
        with torch.autocast("cuda", torch.bfloat16):
            loss = summed_nats(out.flatten(0, 2), weight_there, targets.to(device))
        loss.backward()
        results.append([x.detach().cpu() for x in (newest, out, loss, *(x.grad for x in leaves))])
    assert torch.cuda.current_device() == 0
    torch.testing.assert_close(*results)
