"""Measures the speed of attention with each encoding and in other packages on one GPU. Writes a CSV and a plot.

    python -m bearings.benchmarks.attention --lengths 4096 16384 --head-dims 64 128 --out attention.csv

All contenders run in one process and take turns. Times are medians. Ratios are relative to a baseline in the same run:
RoPE compiled by PyTorch with cuDNN attention. Contenders are listed in attention_contenders.py; one that fails or is
not installed is reported and skipped.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from ..kernels.attention.pope import pope_key, pope_query
from ..kernels.attention.rope import rotate
from ..kernels.documents import Documents
from .attention_contenders import BASE, CONTENDERS, DECODERS, Inputs, make_inputs
from .plot import plot
from .sweep import BASELINE, aligned, print_failure, sweep, sweep_arguments
from .timing import graphed, time_alternating


@torch.no_grad()
def error_of(out: Tensor, encoding: str, i: Inputs, documents: Documents | None = None) -> float:
    """Relative error of one head compared with float64, at 256 queries spread over the sequence."""
    length = i.k.shape[1]
    rows = torch.linspace(0, out.shape[1] - 1, min(256, out.shape[1]), device="cuda").long()
    at = torch.arange(length, device="cuda")
    seen = rows + length - out.shape[1]
    q, k, v = i.q[:1, rows, :1].double(), i.k[:1, :, :1].double(), i.v[:1, :, :1].double()
    if encoding == "rope":
        q, k = rotate(q, seen, BASE), rotate(k, at, BASE)
    if encoding == "pope":
        q, k = pope_query(q, seen, BASE), pope_key(k, at, i.delta[:1].double(), BASE)
    scores = torch.einsum("bthd,bshd->ts", q, k) * i.q.shape[-1] ** -0.5
    if encoding == "fox":
        scores += i.sums[0, seen, :1] - i.sums[0, :, 0]
    if encoding in ("table", "short"):
        table = getattr(i, encoding)[0]
        scores += table[(seen[:, None] - at).clamp(0, len(table) - 1)]
    first = torch.zeros_like(seen) if documents is None else documents.borders[0, 0, seen]
    hidden = (at > seen[:, None]) | (at < first[:, None])
    exact = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v[0, :, 0]
    return ((out[0, rows, 0].double() - exact).norm() / exact.norm()).item()


def leaves_of(call: Callable[[], Tensor], i: Inputs) -> tuple[Tensor, ...]:
    """All tensors that receive a gradient."""
    return (*i, *getattr(call, "leaves", ()))


def mode_of(call: Callable[[], Tensor]) -> AbstractContextManager[None]:
    """The context in which both passes run."""
    return getattr(call, "mode", nullcontext)()


def check_and_weigh(call: Callable[[], Tensor], encoding: str, i: Inputs) -> dict:
    """Error, memory, and whether three backward passes are bitwise identical."""
    error = error_of(call(), encoding, i, getattr(call, "documents", None))
    grad, found = torch.randn(i.v.shape, device="cuda", dtype=torch.bfloat16), []
    for _ in range(3):
        for leaf in leaves_of(call, i):
            leaf.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with mode_of(call):
            out = call()
            saved = torch.cuda.memory_allocated() - before
            out.backward(grad)
        peak = torch.cuda.max_memory_allocated() - before
        del out
        found.append([leaf.grad.clone() for leaf in leaves_of(call, i) if leaf.grad is not None])
    same = all(torch.equal(a, b) for again in found[1:] for a, b in zip(found[0], again, strict=True))
    return {"error": error, "saved_mib": saved / 2**20, "peak_mib": peak / 2**20, "repeatable": same}


def with_backward(call: Callable[[], Tensor], i: Inputs) -> Callable[[], None]:
    grad = torch.randn(i.v.shape, device="cuda", dtype=torch.bfloat16)

    def run():
        for leaf in leaves_of(call, i):
            leaf.grad = None
        with mode_of(call):
            call().backward(grad)

    return run


def measure(length: int, head_dim: int, chosen: list[str], rounds: int) -> list[dict]:
    """One row per contender for one shape."""
    i, calls, rows = make_inputs(length, head_dim), {}, {}
    for name in chosen:
        encoding, make = CONTENDERS[name]
        try:
            call = make(i)
            rows[name] = {"encoding": encoding, "length": length, "head_dim": head_dim, "name": name}
            rows[name] |= check_and_weigh(call, encoding, i)
            calls[name] = call
        except Exception as error:
            print_failure(f"{name} at T={length} D={head_dim}", error)
            rows.pop(name, None)
    forward = time_alternating(calls, rounds)
    training = time_alternating({name: with_backward(call, i) for name, call in calls.items()}, rounds)
    one = make_inputs(length, head_dim, new=1)
    with torch.no_grad():
        decoders = {name: make(one) for name, make in DECODERS.items() if name in rows}
        for name, call in decoders.items():
            rotated = "nope" if name == BASELINE else rows[name]["encoding"]
            rows[name]["decode_error"] = error_of(call(), rotated, one)
        decode = time_alternating({name: graphed(call) for name, call in decoders.items()}, rounds)
    for name, row in rows.items():
        row |= {"forward_ms": forward[name], "training_ms": training[name]}
        row |= {"forward_ratio": forward[name] / forward[BASELINE]}
        row |= {"training_ratio": training[name] / training[BASELINE]}
        if name in decode:
            row |= {"decode_us": 100 * decode[name], "decode_ratio": decode[name] / decode[BASELINE]}
    return list(rows.values())


def show(rows: list[dict]) -> None:
    """Print a short table."""
    columns = ("forward_ms", "forward_ratio", "training_ms", "training_ratio", "decode_us", "decode_ratio")
    columns += ("saved_mib", "peak_mib", "error")
    print(f"{'':41}" + "".join(f"{column:>15}" for column in columns) + "  repeatable")
    for row in rows:
        figures = aligned(row, columns, 15)
        print(f"{row['length']:6} {row['head_dim']:4} {row['name']:29.29} {figures}  {row['repeatable']}", flush=True)


def main() -> None:
    """Run the sweep and plot it."""
    arguments = sweep_arguments(__doc__, CONTENDERS, [32, 64, 128], Path("attention.csv"))
    sweep(arguments, CONTENDERS, measure, show)
    plot(arguments.out, arguments.out.with_suffix(".svg"))


if __name__ == "__main__":
    main()
