"""Pictures of a run."""

import csv
from collections.abc import Mapping
from pathlib import Path


def plot_losses(metrics: Path, stem: Path, names: Mapping[str, str]) -> list[Path]:
    """Training and validation loss against the step, from metrics.csv, as `stem.svg` and `stem.png`."""
    from matplotlib.figure import Figure  # late: matplotlib takes half a second

    with open(metrics, newline="") as file:
        rows = list(csv.DictReader(file))
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for column, label, style in (
        ("train_nll", "training batch", {"color": "#56b4e9", "linewidth": 1}),
        ("valid_nll", "validation split", {"color": "#d55e00", "linewidth": 2, "marker": "o", "markersize": 4}),
    ):
        points = [(int(row["step"]), float(row[column])) for row in rows if row[column]]
        axes.plot(*zip(*points, strict=True), label=label, **style) if points else None
    axes.set(xlabel="step", ylabel="nats per token", title=f"{names['domain']}, {names['encoding']}, {names['model']}")
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_suffix(ending) for ending in (".svg", ".png")]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths
