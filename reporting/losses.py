"""The curves of one run, from metrics.csv."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..core.checked_files import read_cells, wholes


@dataclass(frozen=True)
class Series:
    """The values of a column of metrics.csv, and the steps of the rows that have one."""

    steps: np.ndarray
    values: np.ndarray


Curve = Mapping[str, Series]  # by column


def read_curve(path: Path) -> Curve:
    """The columns of metrics.csv that have values, without a row that is being written. Empty if there is no file.

    Raises:
        ValueError: a row is incomplete, has no step, or has a value that is not a number.
    """
    if not path.exists():
        return {}
    names, rows = read_cells(path, ["step"], growing=True)
    columns = dict(zip(names, zip(*rows, strict=True), strict=bool(rows)))
    steps, curve = wholes(columns.get("step", ())), {}
    for name, texts in columns.items():
        if values := [float(text) for text in texts if text]:
            there = steps if len(values) == len(steps) else steps[[bool(text) for text in texts]]
            curve[name] = Series(there, np.array(values))
    return curve


def validations(curve: Curve) -> dict[int, float]:
    """Nats/token on the validation split by step, without those that are not finite, which no checkpoint has."""
    if (found := curve.get("valid_nll")) is None:
        return {}
    pairs = zip(found.steps.tolist(), found.values.tolist(), strict=True)
    return {step: nats for step, nats in pairs if math.isfinite(nats)}


def plot_losses(metrics: Path, stem: Path, names: Mapping[str, str]) -> list[Path]:
    """Training and validation loss against the optimiser step, from metrics.csv, as `stem.svg` and `stem.png`."""
    from matplotlib import rc_context  # late: Matplotlib takes half a second
    from matplotlib.figure import Figure

    from .drawing import BLUE, STYLE, VERMILION, write_svg
    from .plots import running_median

    curve = read_curve(metrics)
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_suffix(ending) for ending in (".svg", ".png")]
    with rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        axes = figure.add_subplot()
        if trained := curve.get("train_nll"):
            axes.plot(trained.steps, trained.values, color=BLUE, linewidth=0.5, alpha=0.35)
            smooth = running_median(trained.values)
            axes.plot(trained.steps, smooth, color=BLUE, label="training batch, running median")
        if validated := curve.get("valid_nll"):
            axes.plot(validated.steps, validated.values, "s--", color=VERMILION, label="validation split")
        title = f"{names['domain']}, {names['encoding']}, {names['model']}"
        axes.set(xlabel="optimiser step", ylabel="loss, nats/token", title=title)
        axes.legend()
        write_svg(figure, paths[0])
        figure.savefig(paths[1], dpi=150)
    return paths
