"""Measures the CPU time of launching attention operators, on inputs so small that the GPU waits. Writes a CSV.

    python -m bearings.benchmarks.launching --out launching.csv

Times are microseconds until a call returns: of a forward pass, and of a forward and backward pass. Ratios are relative
to RoPE compiled by PyTorch with cuDNN attention in the same run.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ..kernels.attention.pope import pope_attention
from ..kernels.attention.rope import rope_attention
from ..kernels.path.attention import path_attention
from . import attention_contenders
from .attention import with_backward
from .attention_contenders import Inputs, make_inputs, ours
from .sweep import BASELINE, print_failure, sweep, sweep_arguments

CALLS = 20  # between synchronisations; after many, launches would wait for space in the queue
IMPLEMENTATIONS = ("auto", "cudnn", "fa4", "triton")


def path(i: Inputs) -> Callable[[], torch.Tensor]:
    w = torch.nn.functional.normalize(i.k.detach(), dim=-1).requires_grad_()
    beta = torch.rand(w.shape[:3], device=w.device, requires_grad=True)
    return lambda: path_attention(*i[:3], w, beta, i.q.shape[-1] ** -0.5, implementation="triton")


CONTENDERS = {BASELINE: attention_contenders.CONTENDERS[BASELINE][1]}
CONTENDERS |= {f"RoPE, {name}": ours(rope_attention, name) for name in IMPLEMENTATIONS}
CONTENDERS |= {f"PoPE, {name}": ours(pope_attention, name, "delta") for name in IMPLEMENTATIONS}
CONTENDERS |= {"PaTH, triton": path}


def one_sequence(length: int, head_dim: int) -> Inputs:
    """Inputs of one sequence, which need less time on the GPU than on the CPU."""
    i = make_inputs(length, head_dim)
    shared = ("delta", "table", "short")
    return Inputs(**{n: x if n in shared else x[:1].detach().requires_grad_() for n, x in i._asdict().items()})


def microseconds(call: Callable[[], object]) -> float:
    """CPU time of a call."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    spent = time.perf_counter() - begin
    torch.cuda.synchronize()
    return spent / CALLS * 1e6


def measure(length: int, head_dim: int, chosen: list[str], rounds: int) -> list[dict]:
    """One row per contender. All take turns."""
    i, calls = one_sequence(length, head_dim), {}
    for name in chosen:
        try:
            call = CONTENDERS[name](i)
            calls[name] = call, with_backward(call, i)
            for _ in range(3):
                calls[name][1]()
        except Exception as error:
            print_failure(f"{name} at T={length} D={head_dim}", error)
            calls.pop(name, None)
    times = {name: ([], []) for name in calls}
    for _ in range(4 * rounds):
        for name, both in calls.items():
            for call, found in zip(both, times[name], strict=True):
                found.append(microseconds(call))
    medians = {name: [statistics.median(x) for x in both] for name, both in times.items()}
    return [
        {"length": length, "head_dim": head_dim, "name": name, "forward_us": forward, "training_us": training}
        | {"training_ratio": training / medians[BASELINE][1]}
        for name, (forward, training) in medians.items()
    ]


def show(rows: list[dict]) -> None:
    """Print a short table."""
    for row in rows:
        figures = f"{row['forward_us']:8.1f} us {row['training_us']:8.1f} us {row['training_ratio']:6.2f}"
        print(f"{row['length']:6} {row['head_dim']:4} {row['name']:26} {figures}", flush=True)


def main() -> None:
    """Run the sweep."""
    sweep(sweep_arguments(__doc__, CONTENDERS, [64], Path("launching.csv"), [16, 1024]), CONTENDERS, measure, show)


if __name__ == "__main__":
    main()
