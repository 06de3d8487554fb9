"""A sweep over lengths and head dimensions, with one CSV row per contender that includes device and versions."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from ..core.errors import one_line
from .record import parser_of, source, write_rows

BASELINE = "RoPE, compiled + cuDNN"  # all ratios are relative to it; it runs in every sweep
LENGTHS = (1024, 4096, 16384, 32768, 65536)
RECOMPILE_LIMIT = 1024


def allow_recompiling() -> None:
    """Raise PyTorch's limit of recompilations, because all contenders compile the same function."""
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = RECOMPILE_LIMIT


def sweep_arguments(
    doc: str | None, contenders: Iterable[str], head_dims: list[int], out: Path, lengths: Sequence[int] = LENGTHS
) -> argparse.Namespace:
    """Parse the command line of a benchmark."""
    parser = parser_of(doc, out)
    parser.add_argument("--lengths", nargs="+", type=int, default=lengths)
    parser.add_argument("--head-dims", nargs="+", type=int, default=head_dims)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(contenders),
        default=list(contenders),
        metavar="NAME",
        help=f"contenders to run, out of {', '.join(contenders)}; the baseline always runs",
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which contenders take turns")
    return parsed_on_gpu(parser)


def parsed_on_gpu(parser: argparse.ArgumentParser, given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line `given`, by default that of this process. Ends it with a message if there is no GPU."""
    arguments = parser.parse_args(given)
    if not torch.cuda.is_available():
        parser.error("no CUDA GPU is visible; this benchmark needs one")
    return arguments


def print_failure(what: str, error: Exception) -> None:
    """One line about a contender that cannot be measured, for example because memory is too small."""
    print(f"{what}: {type(error).__name__}: {one_line(error)}", flush=True)


def aligned(row: Mapping[str, Any], columns: Sequence[str], width: int) -> str:
    """The numbers of a row as text of `width` characters each; spaces for columns that it lacks."""
    return "".join(f"{row[column]:{width}.3g}" if column in row else " " * width for column in columns)


def made_by(commit: str | None) -> dict[str, object]:
    """Columns of every row: device, versions and commit; for `commit` see `source`."""
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "commit": source(commit),
    }


def sweep(
    arguments: argparse.Namespace,
    contenders: Iterable[str],
    measure: Callable[[int, int, list[str], int], Iterable[dict]],
    show: Callable[[list[dict]], None],
) -> None:
    """Call `measure(length, head_dim, names, rounds)` and `show` for every shape; update the CSV after each row."""
    origin = made_by(arguments.commit)
    chosen = [name for name in contenders if name in arguments.only or name == BASELINE]
    rows: list[dict] = []
    for head_dim in arguments.head_dims:
        for length in arguments.lengths:
            torch.compiler.reset()
            new = []
            for row in measure(length, head_dim, chosen, arguments.rounds):
                new.append(row)
                rows.append(row | origin)
                write_rows(arguments.out, rows)
            show(new)
