"""How benchmarks time calls, and measure their memory and errors."""

import statistics
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from triton.testing import do_bench

from .sweep import BASELINE

SLOW = 40.0  # milliseconds; slower contenders are timed in one round only


def time_alternating(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each call over `rounds` rounds. Slow calls, except the baseline, run in one round."""
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            if not times[name] or times[name][0] < SLOW or name == BASELINE:
                times[name].append(do_bench(call, warmup=5, rep=30, return_mode="median"))
    return {name: statistics.median(values) for name, values in times.items()}


def graphed(call: Callable[[], object], steps: int = 10) -> Callable[[], None]:
    """`steps` calls as one CUDA graph, which removes launch overhead."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(steps):
            call()
    return partial(_replay, graph, call)


def _replay(graph: torch.cuda.CUDAGraph, call: Callable[[], object]) -> None:
    """Replay the graph of `call`. Holding `call` keeps the tensors that the graph reads."""
    graph.replay()


def peak(call: Callable[[], object]) -> float:
    """Peak memory of a call in MiB, without memory that was already allocated."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def distance(got: Tensor, expected: Tensor) -> float:
    """Relative error of `got`."""
    return ((got.double() - expected).norm() / expected.norm()).item()
