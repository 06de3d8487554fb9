"""Shared by all benchmarks: the command line, the commit of the measured source, and atomic writing of rows."""

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.whole_files import written_whole
from ..session.provenance import git_state


def parser_of(doc: str | None, out: Path | None = None) -> argparse.ArgumentParser:
    """A parser with `--out`, which is required unless `out` is its default, and `--commit`, which `source` gets."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=out, required=out is None)
    parser.add_argument("--commit", help="commit of the source tree, if it is not a git checkout")
    return parser


def source(given: str | None = None, state: Mapping[str, str | None] | None = None) -> str:
    """The commit of the source tree, followed by + if there are uncommitted changes.

    Args:
        given: commit to report outside a git checkout; default: "unknown".
        state: an earlier result of `git_state`; default: the current one.
    """
    state = state or git_state()
    return (state["commit"] or given or "unknown") + ("+" if state["dirty"] else "")


def write_rows(path: Path, rows: Sequence[Mapping]) -> None:
    """Write a CSV with all columns that occur in any row. The file is replaced atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
