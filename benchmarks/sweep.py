"""A sweep over lengths and head sizes, one CSV row a contender, device and versions beside it."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import triton

from .record import source, write_rows

YARDSTICK = "RoPE, compiled + cuDNN"  # what all ratios are to; it runs in every sweep


def sweep_arguments(doc: str | None, contenders: Iterable[str], head_dims: list[int], out: Path) -> argparse.Namespace:
    """The command line of a benchmark that sweeps."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 4096, 16384, 32768, 65536])
    parser.add_argument("--head-dims", nargs="+", type=int, default=head_dims)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(contenders),
        default=list(contenders),
        metavar="NAME",
        help=f"contenders, of {', '.join(contenders)}; the yardstick always runs",
    )
    parser.add_argument("--rounds", type=int, default=5, help="turns of the alternating versions")
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--commit", help="of the source tree, where it is not a git checkout")
    return parser.parse_args()


def sweep(
    arguments: argparse.Namespace,
    contenders: Iterable[str],
    measure: Callable[[int, int, list[str], int], list[dict]],
    show: Callable[[list[dict]], None],
) -> None:
    """`measure(length, head_dim, names, rounds)` every shape, show it, and write the CSV as shapes are done."""
    made_by = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "commit": source(arguments.commit),
    }
    chosen = [name for name in contenders if name in arguments.only or name == YARDSTICK]
    rows: list[dict] = []
    for head_dim in arguments.head_dims:
        for length in arguments.lengths:
            torch.compiler.reset()
            new = measure(length, head_dim, chosen, arguments.rounds)
            rows += [row | made_by for row in new]
            show(new)
            write_rows(arguments.out, rows)
