"""The curves of one run, from metrics.csv."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..core.checked_files import read_cells, whole


def read_curve(path: Path) -> list[dict[str, float]]:
    """Rows of metrics.csv without empty cells, and without a row that is being written. Empty if there is no file.

    Raises:
        ValueError: a row is incomplete, has no step, or has a value that is not a number.
    """
    if not path.exists():
        return []
    names, rows = read_cells(path, ["step"], growing=True)
    step = names.index("step")
    for row in rows:
        whole(row[step])
    return [{name: float(text) for name, text in zip(names, row, strict=True) if text} for row in rows]


def validations(curve: Iterable[Mapping[str, float]]) -> dict[int, float]:
    """Nats/token on the validation split by step, without those that are not finite, which no checkpoint has."""
    return {int(row["step"]): row["valid_nll"] for row in curve if math.isfinite(row.get("valid_nll", math.nan))}


def plot_losses(metrics: Path, stem: Path, names: Mapping[str, str]) -> list[Path]:
    """Training and validation loss against the optimiser step, from metrics.csv, as `stem.svg` and `stem.png`."""
    from matplotlib import rc_context  # late: Matplotlib takes half a second
    from matplotlib.figure import Figure

    from .drawing import BLUE, STYLE, VERMILION, write_svg
    from .plots import running_median

    curve = read_curve(metrics)
    points = {
        column: [(row["step"], row[column]) for row in curve if column in row] for column in ("train_nll", "valid_nll")
    }
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_suffix(ending) for ending in (".svg", ".png")]
    with rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        axes = figure.add_subplot()
        if points["train_nll"]:
            steps, losses = zip(*points["train_nll"], strict=True)
            axes.plot(steps, losses, color=BLUE, linewidth=0.5, alpha=0.35)
            axes.plot(steps, running_median(losses), color=BLUE, label="training batch, running median")
        if points["valid_nll"]:
            axes.plot(*zip(*points["valid_nll"], strict=True), "s--", color=VERMILION, label="validation split")
        title = f"{names['domain']}, {names['encoding']}, {names['model']}"
        axes.set(xlabel="optimiser step", ylabel="loss, nats/token", title=title)
        axes.legend()
        write_svg(figure, paths[0])
        figure.savefig(paths[1], dpi=150)
    return paths
