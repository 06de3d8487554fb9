"""The benchmark of layers: contenders compute the part they are compared on, and those that cannot are reported."""

import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from bearings.benchmarks import layer_parts, layers
from bearings.benchmarks.epilogues import EpilogueMLP, interleaved, separated
from bearings.benchmarks.layer_parts import OURS, PARTS, Part
from bearings.benchmarks.layers import Exact, Ready, parsed, ready_contenders, worst
from bearings.benchmarks.training import Size

SMALL = Size(layers=2, width=32, heads=2, vocabulary=70, length=8, batch=2)


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch):
    monkeypatch.setattr(layer_parts, "DEVICE", "cpu")
    monkeypatch.setattr(layers, "autocast", lambda: torch.autocast("cpu", torch.bfloat16))
    torch.manual_seed(0)


@pytest.mark.parametrize("name", PARTS)
def test_ours_computes_the_part_to_the_rounding_of_bfloat16(name):
    inputs = PARTS[name].inputs(SMALL)
    exact = Exact(PARTS[name].plain, inputs)
    one = Ready(PARTS[name].contenders[OURS](), inputs, exact.grads)
    assert worst(one.forward(), exact.outputs) < 0.02
    assert worst(one.train(), exact.gradients) < 0.02


def test_errors_are_of_the_worst_output():
    expected = [torch.ones(4).double(), torch.ones(4).double()]
    assert worst([torch.ones(4), torch.full((4,), 1.5)], expected) == 0.5


def test_absent_packages_and_failures_are_reported(capsys, monkeypatch):
    monkeypatch.setattr(layers, "checked", lambda one, expected: {})

    def absent():
        import no_such_package  # pyright: ignore[reportMissingImports]

        return no_such_package

    def broken(x):
        raise RuntimeError("out of shared memory\nmore")

    part = Part(lambda size: [], torch.exp, {"absent": absent, "broken": lambda: broken, OURS: lambda: torch.exp})
    inputs = [torch.randn(3, requires_grad=True)]
    assert [name for name, _, _ in ready_contenders(part, inputs, "exp, 124M")] == [OURS]
    assert capsys.readouterr().out.splitlines() == [
        "absent, exp, 124M: ModuleNotFoundError: No module named 'no_such_package'",
        "broken, exp, 124M: RuntimeError: out of shared memory more",
    ]


def test_table_has_a_row_per_contender_with_ratios_to_ours(monkeypatch):
    row = {"error": 0.0, "error_gradients": 0.0, "replayed": False}
    passes = SimpleNamespace(forward=lambda: None, train=lambda: None)
    found = [(OURS, passes, dict(row)), ("only forward", passes, {"error": 0.0, "replayed": False})]
    monkeypatch.setattr(layers, "ready_contenders", lambda *given: found)
    monkeypatch.setattr(layers, "SIZES", {"124M": SMALL})
    monkeypatch.setattr(layers, "time_alternating", lambda calls, rounds: dict(zip(calls, (2.0, 3.0), strict=False)))
    ours, other = layers.measure("swiglu", "124M", 1)
    assert (ours["part"], ours["size"], ours["tokens"], ours["name"]) == ("swiglu", "124M", 16, OURS)
    assert (ours["forward_ratio"], ours["training_ratio"], other["forward_ratio"]) == (1.0, 1.0, 1.5)
    assert "training_ms" not in other
    layers.show([ours, other])


def test_needs_a_gpu(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        parsed(["--out", "x.csv"])
    assert "needs one" in capsys.readouterr().err


def test_interleaved_rows_are_gate_and_up_in_turn():
    weight = torch.arange(6.0).unsqueeze(1)
    assert interleaved(weight, torch.bfloat16).flatten().tolist() == [0, 3, 1, 4, 2, 5]
    assert torch.equal(separated(interleaved(weight, torch.float64)), weight.double())


def pairs(both):
    """Gate and up from adjacent columns."""
    return both.unflatten(-1, (-1, 2)).unbind(-1)


def gemm_gated(a, b, activation, **settings):
    gate, up = pairs(a @ b)
    return a @ b, F.silu(gate) * up


def gemm_dgated(a, b, both, activation, **settings):
    with torch.enable_grad():
        both = both.detach().requires_grad_()
        gate, up = pairs(both)
        product = F.silu(gate) * up
        (dboth,) = torch.autograd.grad(product, both, a @ b)
    return dboth, product.detach()


def test_mlp_by_epilogues_has_the_gradients_of_the_mlp(monkeypatch):
    """With quack's two products as their documentation defines them; their kernels need a GPU."""
    quack = SimpleNamespace(gemm_gated=gemm_gated, gemm_dgated=gemm_dgated)
    monkeypatch.setitem(sys.modules, "quack", SimpleNamespace(gemm_interface=quack))
    monkeypatch.setitem(sys.modules, "quack.gemm_interface", quack)
    shapes = (5, 4), (12, 4), (4, 6)
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.allclose(EpilogueMLP.apply(*inputs), PARTS["mlp"].plain(*inputs))
    assert torch.autograd.gradcheck(EpilogueMLP.apply, inputs)
