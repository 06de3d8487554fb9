"""The loss curves of one run."""

import csv
from collections.abc import Mapping
from pathlib import Path


def plot_losses(metrics: Path, stem: Path, names: Mapping[str, str]) -> list[Path]:
    """Training and validation loss against the optimiser step, from metrics.csv, as `stem.svg` and `stem.png`."""
    from matplotlib import rc_context  # late: Matplotlib takes half a second
    from matplotlib.figure import Figure

    from .drawing import BLUE, STYLE, VERMILION, write_svg
    from .plots import running_median

    with open(metrics, newline="") as file:
        rows = list(csv.DictReader(file))
    points = {
        column: [(int(row["step"]), float(row[column])) for row in rows if row[column]]
        for column in ("train_nll", "valid_nll")
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
