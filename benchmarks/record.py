"""What all benchmarks record alike: the source that was measured, and rows that are written whole."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.whole_files import written_whole
from ..session.provenance import git_state


def source(given: str | None = None, state: Mapping[str, str | None] | None = None) -> str:
    """The commit of the source tree, with a + where it has changes; `given` outside a checkout, else unknown.

    `state` is that of another time, by `git_state`.
    """
    state = state or git_state()
    return (state["commit"] or given or "unknown") + ("+" if state["dirty"] else "")


def write_rows(path: Path, rows: Sequence[Mapping]) -> None:
    """A CSV of every column that a row has, written whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
