"""Compiles the Triton kernels for several GPUs, without a GPU, and records whether they fit. Writes a CSV.

    python -m bearings.benchmarks.shared_memory --capabilities 8.0 9.0 --out shared_memory.csv

Each operator runs forward and backward on small CPU tensors with a driver that launches nothing. The rows are the
kernels that a GPU of that compute capability would launch, with all tile sizes that are tried; the first that fits is
used. Head dimensions are the largest that each entry in the tables of tile sizes covers. float16 needs as much shared
memory as bfloat16.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from ..kernels.attention.decode import decode
from ..kernels.attention.dispatch import FEW
from ..kernels.attention.fused import attention
from ..kernels.layers import added_norm, swiglu
from ..kernels.loss.cross_entropy import scaled_op
from ..kernels.loss.softmax_rows import score_rows
from ..kernels.path.cache import FRAME, new_turns
from ..kernels.path.decode import decode_token
from ..kernels.path.direction import path_directions
from ..kernels.path.flash import path_flash_attention
from .absent_gpu import SHARED_MEMORY, absent_gpu
from .record import parser_of, source, write_rows

HEADS = 4
DTYPES = (torch.bfloat16, torch.float32)
# Channels of scores and values.
PLAIN, WIDE = ((64, 64), (128, 128)), ((128, 64), (256, 128), (64, 128))
VOCABULARY = 50304


class Case(NamedTuple):
    """One operator in one configuration.

    Attributes:
        name: the operator and what distinguishes the configuration.
        score_dim, value_dim: channels per head of the scores and of the values; 0 for operators without heads.
        dtype: dtype of the inputs.
        run: runs the operator.
    """

    name: str
    score_dim: int
    value_dim: int
    dtype: torch.dtype
    run: Callable[[], object]


def draw(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape).to(dtype).requires_grad_()


def borders(length: int) -> Tensor:
    """One document, `[2, 1, length]`."""
    return torch.tensor([0, length], dtype=torch.int32).view(2, 1, 1).repeat(1, 1, length)


def attend(
    dtype: torch.dtype, score: int, value: int, form: str = "plain", gated=False, table=0, packed=False, length=130
):
    """Forward and backward pass of attention over `length` tokens; `table` is the number of distances with a bias."""
    width = score // 2 if form == "polar" else score
    q, k, v = (draw(dtype, 1, length, HEADS, size) for size in (width, width, value))
    attention(
        q, k, v,
        draw(torch.float32, HEADS, width) if form == "polar" else None,
        draw(torch.float64, 1, length, HEADS) if gated else None,
        draw(torch.float32, HEADS, table) if table else None,
        borders(length) if packed else None,
        None, None, form, (1.0,) * (width if form == "polar" else width // 2), 1.0, "triton", "triton",
    )[0].sum().backward()  # fmt: skip


@torch.no_grad()
def decode_one(dtype: torch.dtype, width: int, form: str, kv_heads: int, gated=False, packed=False, table=0, tokens=1):
    length = 4096
    q, k = draw(dtype, 1, tokens, HEADS, width), draw(dtype, 1, length, kv_heads, width)
    decode(
        q, k, k,
        draw(torch.float32, kv_heads, width) if form == "polar" else None,
        draw(torch.float64, 1, length, HEADS) if gated else None,
        draw(torch.float32, HEADS, table) if table else None,
        borders(length) if packed else None,
        form, (1.0,) * (width if form == "polar" else width // 2), 1.0,
    )  # fmt: skip


def path(dtype: torch.dtype, width: int, value: int, packed_and_gated: bool):
    """Forward and backward pass over several chunks. Shorter sequences need the same kernels or fewer."""
    length = 2100 if max(width, value) == 64 else 1100
    q, k, w = (draw(dtype, 1, length, heads, width) for heads in (2, 1, 1))
    v, beta = draw(dtype, 1, length, 1, value), draw(torch.float32, 1, length, 1)
    sums = draw(torch.float64, 1, length, 2) if packed_and_gated else None
    path_flash_attention(q, k, v, w, beta, 1.0, borders(length) if packed_and_gated else None, sums).sum().backward()


@torch.no_grad()
def path_decode(dtype: torch.dtype, width: int, kv_heads: int, gated: bool):
    length = 4 * FRAME
    q, w = draw(dtype, 1, 1, HEADS, width), draw(torch.float32, 1, kv_heads, width)
    k, sums = draw(dtype, 1, length, kv_heads, width), draw(torch.float64, 1, length, HEADS) if gated else None
    turns = new_turns(1, length, kv_heads, width, k)
    turns.held = 2 * FRAME
    decode_token(q, w, w[..., 0], 1.0, k, k, turns, sums)


def directions(dtype: torch.dtype, width: int):
    u, taps = draw(dtype, 1, 130, HEADS * width), draw(torch.float32, 3, HEADS * width)
    path_directions(u, taps, None, HEADS, True).sum().backward()


def loss(dtype: torch.dtype):
    logits, targets = torch.zeros(4, VOCABULARY, dtype=dtype), torch.zeros(4, dtype=torch.int64)
    nats, right = torch.zeros(4), torch.zeros(4, dtype=torch.bool)
    score_rows(logits, targets, nats, right, -100)
    score_rows(logits, targets, nats, None, -100)
    scaled_op(logits, torch.ones(()))


def layers(dtype: torch.dtype):
    x, branch, weight = draw(torch.float32, 4, 1024), draw(dtype, 4, 1024), draw(torch.float32, 1024)
    total, normed, _ = added_norm.added_norm_op(x, branch, weight, 1e-5, dtype)
    (total.sum() + normed.sum()).backward()
    swiglu.silu_product_op(draw(dtype, 4, 4096)).sum().backward()


def cases() -> Iterator[Case]:
    """Every operator, in the configurations that change the code of its kernels."""
    for dtype in DTYPES:
        for score, value in (*PLAIN, *WIDE):
            yield Case("attention", score, value, dtype, partial(attend, dtype, score, value))
            yield Case("attention, packed", score, value, dtype, partial(attend, dtype, score, value, packed=True))
        for width, value in PLAIN:
            run = partial(attend, dtype, width, value)
            yield Case("RoPE", width, value, dtype, partial(run, form="rotary"))
            yield Case("PoPE", 2 * width, value, dtype, partial(attend, dtype, 2 * width, value, form="polar"))
            yield Case("FoX", width, value, dtype, partial(run, gated=True))
            yield Case("FoX, packed", width, value, dtype, partial(run, gated=True, packed=True))
            yield Case("bias by distance", width, value, dtype, partial(run, table=130))
            yield Case(
                "bias by distance, short table, packed", width, value, dtype, partial(run, table=40, packed=True)
            )
            for kv_heads, kind in ((HEADS, ""), (1, ", grouped heads")):
                for form in ("plain", "rotary", "polar"):
                    run_one = partial(decode_one, dtype, width, form, kv_heads)
                    yield Case(f"decoding, {form}{kind}", width, value, dtype, run_one)
                run_one = partial(decode_one, dtype, width, "plain", kv_heads)
                yield Case(
                    f"decoding, FoX, packed{kind}", width, value, dtype, partial(run_one, gated=True, packed=True)
                )
                yield Case(f"decoding, bias by distance{kind}", width, value, dtype, partial(run_one, table=4096))
                for gated, name in ((False, "PaTH"), (True, "PaTH-FoX")):
                    run_one = partial(path_decode, dtype, width, kv_heads, gated)
                    yield Case(f"decoding, {name}{kind}", width, value, dtype, run_one)
            several = partial(decode_one, dtype, width, kv_heads=1, tokens=FEW)
            yield Case(f"decoding {FEW} tokens, polar, grouped heads", width, value, dtype, partial(several, "polar"))
            run_one = partial(several, "plain", gated=True, packed=True)
            yield Case(f"decoding {FEW} tokens, FoX, packed, grouped heads", width, value, dtype, run_one)
            yield Case("PaTH's directions", width, 0, dtype, partial(directions, dtype, width))
            yield Case("PaTH", width, value, dtype, partial(path, dtype, width, value, False))
            yield Case("PaTH-FoX, packed", width, value, dtype, partial(path, dtype, width, value, True))
        yield Case("loss", 0, 0, dtype, partial(loss, dtype))
        yield Case("norm and SwiGLU", 0, 0, dtype, partial(layers, dtype))


def measure(capability: str, case: Case) -> list[dict]:
    """One row per kernel and tile size that the case compiles."""
    gpu, made_by = absent_gpu(capability), {"triton": triton.__version__}
    shape = {"score_dim": case.score_dim, "value_dim": case.value_dim, "dtype": str(case.dtype).removeprefix("torch.")}
    try:
        case.run()
    except Exception as error:
        gpu.rows.append({"error": " ".join(f"{type(error).__name__}: {error}".split())[:200]})
    return [{"capability": capability, "operator": case.name, **shape, **row, **made_by} for row in gpu.rows]


def without_repetitions(rows: Iterable[dict]) -> list[dict]:
    """The rows, without kernels that an earlier operator also launches with the same tiles and resources."""
    found = {}
    for row in rows:
        found.setdefault(tuple((name, value) for name, value in row.items() if name != "operator"), row)
    return list(found.values())


def main() -> None:
    """Compile everything in parallel, and write the CSV after every case."""
    parser = parser_of(__doc__, Path("shared_memory.csv"))
    parser.add_argument("--capabilities", nargs="+", choices=[*SHARED_MEMORY], default=[*SHARED_MEMORY])
    parser.add_argument("--only", default="", help="part of the names of the operators to compile")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes; default: one per core")
    arguments = parser.parse_args()
    commit = source(arguments.commit)
    tasks = [(capability, case) for capability in arguments.capabilities for case in cases()]
    tasks = [task for task in tasks if arguments.only in task[1].name]
    rows = {}
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        # Those that take longest start first.
        order = sorted(range(len(tasks)), key=lambda i: -tasks[i][1].name.startswith("PaTH"))
        running = {pool.submit(measure, *tasks[i]): i for i in order}
        for done in as_completed(running):
            capability, case = tasks[running[done]]
            rows[running[done]] = new = done.result()
            ordered = without_repetitions(row for _, each in sorted(rows.items()) for row in each)
            write_rows(arguments.out, [row | {"commit": commit} for row in ordered])
            over = sum(not row.get("fits", True) for row in new)
            failed = [row["error"] for row in new if "error" in row]
            shape = f"{case.dtype} {case.score_dim}/{case.value_dim}"
            print(f"{capability:5}{shape} {case.name}: {len(new)} kernels, {over} too large", *failed, flush=True)


if __name__ == "__main__":
    main()
