"""Repeated launches: which compiled kernel runs with which arguments, and the choice of tiles that fit the GPU."""

import os
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")
launching = import_module("bearings.kernels.launching")
LIMIT = 100


class Kernel:
    """Stands in for a Triton kernel; `needs` is its shared memory by `SIZE`."""

    arg_names = ("X", "n", "Y", "SIZE")

    def __init__(self, needs):
        self.needs, self.compiled, self.launched = needs, [], []

    def run(self, grid, warmup, **arguments):
        assert warmup
        self.compiled.append((arguments["X"].dtype, arguments["X"].data_ptr() % 16 == 0, arguments["SIZE"]))
        return Compiled(self, arguments["SIZE"])


class Compiled:
    def __init__(self, kernel, size):
        self.kernel, self.size = kernel, size

    def __getitem__(self, grid):
        if self.kernel.needs[self.size] > LIMIT:
            raise launching.OutOfResources(self.kernel.needs[self.size], LIMIT, "shared memory")
        return lambda *arguments: self.kernel.launched.append((grid, arguments))


@pytest.fixture(autouse=True)
def compiling(monkeypatch):
    monkeypatch.setattr(launching, "INTERPRETED", False)
    active = SimpleNamespace(get_current_device=lambda: 0)
    monkeypatch.setattr(launching, "driver", SimpleNamespace(active=active))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a small GPU")


def launch_of(kernel):
    return launching.Launch(kernel, *(((size, 2), {"n": 7, "SIZE": size}) for size in kernel.needs))


def test_first_choice_that_fits_is_launched_with_all_arguments_in_order():
    kernel, x = Kernel({64: 200, 32: 100, 16: 50}), torch.zeros(4)
    launch = launch_of(kernel)
    for _ in range(2):
        launch(Y=None, X=x)
    assert kernel.launched == 2 * [((32, 2, 1), (x, 7, None, 32))]
    assert len(kernel.compiled) == 2  # once for each choice that was tried


def test_dtypes_and_alignment_select_the_compiled_kernel():
    kernel = Kernel({16: 50})
    launch = launch_of(kernel)
    long = torch.zeros(8)
    for x in (long, long.half(), long[1:], long[4:], long):
        launch(X=x, Y=None)
    assert kernel.compiled == [(torch.float32, True, 16), (torch.float16, True, 16), (torch.float32, False, 16)]
    assert len(kernel.launched) == 5


def test_error_if_nothing_fits():
    message = (
        r"a small GPU has too little shared memory for implementation=triton \(.*200.*\): use implementation=torch"
    )
    with pytest.raises(RuntimeError, match=message):
        launch_of(Kernel({64: 300, 32: 200}))(X=torch.zeros(4), Y=None)


def test_fits():
    kernel, given = Kernel({64: 200, 32: 100}), {"X": torch.zeros(0), "Y": None}
    assert [launching.fits(kernel, given, {"n": 7, "SIZE": size}) for size in (64, 32)] == [False, True]


REPEATED = """
import torch, triton
from bearings.benchmarks.absent_gpu import AbsentGPU, absent_gpu
AbsentGPU.load_binary = lambda self, *given: (object(), 0, 0, 0, 1024)  # registers are of no interest here
absent_gpu("9.0")
from bearings.kernels.path.direction import path_directions
from bearings.kernels.path.flash import path_flash_attention
q, k, v, u = (torch.rand(1, 130, 2, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(4))
beta, taps = torch.rand(1, 130, 2, requires_grad=True), torch.rand(3, 128, requires_grad=True)
sums = torch.zeros(1, 130, 2, dtype=torch.float64, requires_grad=True)
looked_up, run = [], triton.JITFunction.run
triton.JITFunction.run = lambda kernel, *given, **named: looked_up.append(kernel) or run(kernel, *given, **named)
for _ in range(2):
    print(len(looked_up))
    w = path_directions(u.flatten(2), taps, None, 2, True)
    path_flash_attention(q, k, v, w, beta, 0.125, None, sums).sum().backward()
print(len(looked_up))
"""


@pytest.mark.slow
def test_path_looks_up_no_kernel_in_a_second_call():
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    variables["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, "-c", REPEATED]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=variables).stdout
    none, first, second = map(int, printed.split())
    assert none == 0
    assert second == first > 10
