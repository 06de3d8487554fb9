"""Which kernels does each contender of the attention benchmark run, and for how long? Writes a CSV.

    python -m bearings.benchmarks.kernels --lengths 4096 --head-dims 64 --only "PoPE, auto" --out kernels.csv

One forward and backward pass is marked for `benchmarks/counters.py`, with nothing else in it.
"""

import argparse
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from bearings.benchmarks.attention import CONTENDERS, make_inputs, with_backward
from bearings.benchmarks.sweep import sweep, sweep_arguments

PASSES = 10


def measure(length: int, head_dim: int, chosen: list[str], rounds: int) -> list[dict]:
    """A row for each kernel of each contender: its launches and microseconds in one forward and backward pass."""
    rows = []
    for name in chosen:
        inputs = make_inputs(length, head_dim)
        try:
            run = with_backward(CONTENDERS[name][1](inputs), inputs)
            for _ in range(3):
                run()
            torch.cuda.synchronize()
        except Exception as error:
            print(f"{name} at T={length} D={head_dim}: {type(error).__name__} {str(error).splitlines()[:1]}")
            continue
        torch.cuda.profiler.start()
        run()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            for _ in range(PASSES * rounds):
                run()
            torch.cuda.synchronize()
        for event in found.key_averages():
            if event.device_time_total:
                times = {"launches": event.count / PASSES / rounds, "us": event.device_time_total / PASSES / rounds}
                rows.append({"name": name, "length": length, "head_dim": head_dim, "kernel": event.key[:90], **times})
    return rows


def show(rows: list[dict]) -> None:
    """The dearest kernels of each contender on the terminal."""
    for name in dict.fromkeys(row["name"] for row in rows):
        own = sorted((row for row in rows if row["name"] == name), key=lambda row: -row["us"])
        print(f"{own[0]['length']:6} {own[0]['head_dim']:4} {name}: {sum(row['us'] for row in own):.0f} us", flush=True)
        for row in own[:8]:
            print(f"{row['us']:12.1f} us {row['launches']:6.1f} x {row['kernel']}", flush=True)


def main() -> None:
    """Profile the contenders."""
    arguments: argparse.Namespace = sweep_arguments(__doc__, CONTENDERS, [64], Path("kernels.csv"))
    sweep(arguments, CONTENDERS, measure, show)


if __name__ == "__main__":
    main()
