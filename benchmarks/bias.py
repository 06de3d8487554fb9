"""Compares variants of the kernels for a bias by distance on one GPU: block sizes, and how biases are loaded.

    python -m bearings.benchmarks.bias --length 4096 --head-dim 64
    python -m bearings.benchmarks.bias --length 4096 --head-dim 64 --indirect

Prints milliseconds of the forward pass, and of the forward and backward pass, next to the baseline of the attention
benchmark. Each variant differs from "default" in one setting.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import triton.language as tl

from ..kernels.attention import bias, flash
from ..kernels.attention.distance import distance_attention
from . import attention, attention_contenders
from .sweep import BASELINE, parsed_on_gpu, print_failure
from .timing import time_alternating

# Block sizes by kernel: queries, keys, warps, stages. The table's gradient has square blocks.
SIZES = {
    "forward": [(64, 64, 4, 2), (64, 64, 4, 4), (128, 64, 8, 3), (128, 64, 4, 3), (64, 128, 4, 3), (128, 128, 8, 3)],
    "query": [(64, 64, 4, 2), (128, 64, 8, 3), (128, 32, 8, 3), (64, 128, 8, 2)],
    "key": [(64, 64, 4, 2), (64, 64, 8, 2), (32, 64, 4, 2), (32, 128, 8, 3), (64, 128, 8, 2)],
    "table": [(64, 64, 8, 2), (64, 64, 4, 3), (64, 64, 4, 2), (32, 32, 4, 3), (128, 128, 8, 2)],
}


@contextmanager
def blocks(kernel: str, size: tuple[int, int, int, int]) -> Iterator[None]:
    """Use one block size for `kernel`."""
    default = flash.blocks_of
    flash.prepared.cache_clear()  # launches are remembered with their block sizes
    try:
        with patch.object(flash, "blocks_of", lambda name, *given: [size] if name == kernel else default(name, *given)):
            yield
    finally:
        flash.prepared.cache_clear()


def main() -> None:
    """Time all variants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--table", choices=["table", "short"], default="table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--indirect", action="store_true", help="load tiles of biases through shared memory (tl.load)")
    given = parsed_on_gpu(parser)
    if given.indirect:
        bias.DIRECT = tl.constexpr(False)  # before any kernel is compiled
    inputs = attention_contenders.make_inputs(given.length, given.head_dim)
    call = attention_contenders.ours(distance_attention, "triton", given.table)(inputs)
    baseline = attention_contenders.baseline(inputs)

    def report(name: str, call=call) -> None:
        try:
            calls = {"forward": call, "training": attention.with_backward(call, inputs)}
            ms = time_alternating(calls, given.rounds)
            error = "" if call is baseline else f"   error {attention.error_of(call(), given.table, inputs):.1e}"
            print(f"{name:32} {ms['forward']:8.3f} {ms['training']:8.3f}{error}", flush=True)
        except Exception as problem:
            print_failure(name, problem)

    report(BASELINE, baseline)
    report("default")
    for kernel, sizes in SIZES.items():
        for size in sizes:
            with blocks(kernel, size):
                report(f"{kernel} {size}")
    report("default, again")
    report(BASELINE, baseline)


if __name__ == "__main__":
    main()
