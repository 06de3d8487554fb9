"""Lists the kernels of each contender of the attention and PaTH benchmarks with their times. Writes a CSV.

    python -m bearings.benchmarks.kernels --lengths 4096 --head-dims 64 --only "PoPE, auto" --out kernels.csv

One forward and backward pass is marked for `benchmarks/counters.py`. In addition to attention operators there is a
compiled Transformer block with PaTH, including projections and MLP, which shows the share of time spent on PaTH.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ..encodings.contract.context import Context
from ..encodings.contract.state import TailState
from ..encodings.path import PaTH
from ..lightning_modules.blocks import Attention, FusedBlock, SwiGLU
from ..lightning_modules.fused_stream import Stream
from . import attention, attention_contenders, path
from .attention_contenders import TOKENS
from .sweep import print_failure, sweep, sweep_arguments

PASSES = 10
HEADS = 16
SHOWN = 20  # kernels on the terminal


class PlainDirections(PaTH):
    """Directions computed with PyTorch operations and fused by torch.compile, for sequences without a cache."""

    def reflections(self, x: Tensor, context: Context, state: TailState | None = None):
        return super().reflections(x, replace(context, plan=replace(context.plan, implementation="torch")), state)


def of_attention(name: str) -> Callable[[int, int], Callable[[], object]]:
    def make(length: int, head_dim: int) -> Callable[[], object]:
        inputs = attention_contenders.make_inputs(length, head_dim)
        return attention.with_backward(attention_contenders.CONTENDERS[name][1](inputs), inputs)

    return make


def of_path(name: str) -> Callable[[int, int], Callable[[], object]]:
    def make(length: int, head_dim: int) -> Callable[[], object]:
        inputs = path.make_inputs(max(TOKENS // length, 1), length, HEADS, head_dim)
        return path.training(*path.CONTENDERS[name](inputs))

    return make


def of_block(encoding: type[PaTH]) -> Callable[[int, int], Callable[[], object]]:
    def make(length: int, head_dim: int) -> Callable[[], object]:
        sizes = (HEADS * head_dim, HEADS, HEADS, head_dim)
        block = FusedBlock(sizes[0], Attention(sizes[0], encoding(*sizes)), SwiGLU(sizes[0], 4 * sizes[0]), 0.0).cuda()
        block.compile(fullgraph=True)
        x = torch.randn(max(TOKENS // length, 1), length, sizes[0], device="cuda", requires_grad=True)

        def call() -> Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                stream, branch = block(Stream(x), Context.of(block.attention.encoding, x))
                return stream + branch

        return path.training(call, [x, *block.parameters()])

    return make


CONTENDERS = {name: of_attention(name) for name in attention_contenders.CONTENDERS}
CONTENDERS |= {name: of_path(name) for name in ("PaTH", "PaTH-FoX")}
CONTENDERS |= {"a block with PaTH": of_block(PaTH), "a block with PaTH, plain directions": of_block(PlainDirections)}


def measure(length: int, head_dim: int, chosen: list[str], rounds: int) -> list[dict]:
    """One row per kernel and contender: its launches and microseconds in one forward and backward pass."""
    rows = []
    for name in chosen:
        try:
            run = CONTENDERS[name](length, head_dim)
            for _ in range(3):
                run()
            torch.cuda.synchronize()
        except Exception as error:
            print_failure(f"{name} at T={length} D={head_dim}", error)
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
    """Print the slowest kernels of each contender."""
    for name in dict.fromkeys(row["name"] for row in rows):
        own = sorted((row for row in rows if row["name"] == name), key=lambda row: -row["us"])
        total = sum(row["us"] for row in own)
        print(f"{own[0]['length']:6} {own[0]['head_dim']:4} {name}: {total:.0f} us", flush=True)
        for row in own[:SHOWN]:
            share = row["us"] / total
            print(f"{row['us']:12.1f} us {share:6.1%} {row['launches']:6.1f} x {row['kernel']}", flush=True)


def main() -> None:
    """Profile the contenders."""
    arguments: argparse.Namespace = sweep_arguments(__doc__, CONTENDERS, [64], Path("kernels.csv"))
    sweep(arguments, CONTENDERS, measure, show)


if __name__ == "__main__":
    main()
