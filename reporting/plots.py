"""Plots of a comparison: losses, nats against compute, and what encodings log."""

import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from .drawing import (
    QUIET,
    STYLED,
    STYLES,
    Plot,
    draw_band,
    legend_above,
    literal,
    styled,
    wrapped,
    write_plot,
)
from .losses import Series
from .naming import parenthesised
from .scores import Score
from .study import Comparison
from .tables import Row

# Columns of metrics.csv that are not diagnostics of an encoding.
ORDINARY = re.compile(
    r"step|train_nll|match_loss|distil_loss|valid_.*|learning_rate|gradient_norm|tokens_per_s|data_wait|mfu"
)
SMOOTHED = "train_nll"  # drawn as a running median, because the loss of one batch is noisy
DRAWN = 300  # points of a curve; the CSV has all of them
WINDOW = 20  # a running median covers 1/20 of a curve


def styles_of(together: Sequence[Set[str]]) -> list[dict[str, dict]]:
    """For each set of models' labels in `together`, a line style for each label, distinct within the set.

    A label has the same style in all sets if there are enough styles for that. The first label of each encoding in
    STYLED has the style of the encoding.
    """
    every = sorted(set().union(*together))
    first = {label.partition(",")[0]: label for label in reversed(every)}
    fixed = {first[encoding]: i for i, encoding in enumerate(STYLED) if encoding in first}
    found = {**fixed}
    for number, label in enumerate(label for label in every if label not in found):
        taken = {found[other] for labels in together if label in labels for other in labels & found.keys()}
        found[label] = next((i for i in range(len(STYLES)) if i not in taken), number % len(STYLES))
    return [_distinct(found, labels, fixed.keys()) for labels in together]


def _distinct(preferred: Mapping[str, int], labels: Set[str], fixed: Set[str]) -> dict[str, dict]:
    """The preferred style of each label, or one that no label prefers if it is taken. Those in `fixed` keep theirs."""
    spare = iter({*range(len(STYLES))} - {preferred[label] for label in labels})
    found: dict[str, int] = {}
    for label in sorted(labels, key=lambda label: (label not in fixed, label)):
        wanted = preferred[label]
        found[label] = wanted if wanted not in found.values() else next(spare, wanted)
    return {label: STYLES[i] for label, i in found.items()}


def loss_plot(comparison: Comparison, styles: Mapping[str, dict], folder: Path) -> Plot:
    """Training and validation loss against the optimiser step: the mean over seeds, and their range."""
    return _curves(
        comparison,
        styles,
        {"train_nll": "training batch, running median", "valid_nll": "validation split"},
        folder / f"{comparison.slug}-loss",
        f"{comparison.name}: loss",
        "loss, nats/token",
    )


def diagnostics_plot(comparison: Comparison, styles: Mapping[str, dict], folder: Path) -> Plot | None:
    """What encodings log about their parameters, such as the share of PoPE's delta that is frozen; None if nothing."""
    names = {
        name: name.replace("_", " ") for run in comparison.runs for name in run.curve if not ORDINARY.fullmatch(name)
    }
    if not names:
        return None
    stem = folder / f"{comparison.slug}-diagnostics"
    title = f"{comparison.name}: diagnostics of the encodings"
    return _curves(comparison, styles, names, stem, title, "mean over layers")


def cost_rows(found: Sequence[Score]) -> list[Row]:
    """Nats/token and training FLOPs per token of each model with known FLOPs; none for tasks with right answers."""
    rows = []
    for score in found:
        flops = score.contestant.flops_per_token
        if flops and not score.pooled and score.solving is None:
            row: Row = {"model": score.contestant.label, "mflops_per_token": flops / 1e6, "mean": score.nats.value}
            rows.append(row | {"interval": score.nats.seeds})
    return rows


def pareto_front(rows: Sequence[Row]) -> list[Row]:
    """The models that no cheaper model matches, cheapest first."""
    front: list[Row] = []
    for row in sorted(rows, key=lambda row: (row["mflops_per_token"], row["mean"])):
        if not front or row["mean"] < front[-1]["mean"]:
            front.append(row)
    return front


def draw_cost(axes: Axes, rows: Sequence[Row], styles: Mapping[str, dict]) -> list[str]:
    """Draw a point and its interval for each row, and the Pareto front. Returns the models that are above the frame.

    Models without a style are small grey points without a name.
    """
    front = pareto_front(rows)
    corners = [row["mflops_per_token"] for row in front], [row["mean"] for row in front]
    axes.step(*corners, where="post", color=QUIET, linewidth=0.8, zorder=1)
    named = [row for row in rows if row["model"] in styles]
    if others := [row for row in rows if row["model"] not in styles]:
        points = [row["mflops_per_token"] for row in others], [row["mean"] for row in others]
        axes.plot(*points, ".", color=QUIET, label="other models")
    for row in named:
        style = styles[row["model"]]
        at, mean, pair = row["mflops_per_token"], row["mean"], row["interval"]
        if pair:
            axes.plot([at, at], pair, color=style["color"], linewidth=1.6)
        axes.plot(at, mean, style["marker"], color=style["color"], markersize=8, label=wrapped(row["model"]))
    axes.margins(x=0.12)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    # A model that fails far above the others must not press them into a line.
    means = [row["mean"] for row in rows]
    reach = 4 if len(rows) <= len(STYLES) else 2
    edge = min(means) + reach * max(float(np.median(means)) - min(means), 0.01 * min(means))
    above = [row["model"] for row in rows if row["mean"] > edge]
    ends = np.concatenate([row["interval"] or (row["mean"],) for row in rows if row["mean"] <= edge])
    room = 0.15 * float(np.ptp(ends) or edge - min(means))
    axes.set_ylim(ends.min() - room, ends.max() + room)
    return above


@styled
def cost_plot(found: Sequence[Score], styles: Mapping[str, dict], stem: Path, title: str) -> Plot | None:
    """Nats/token against training FLOPs per token, a point per model; None where fewer than two FLOPs are known."""
    rows = cost_rows(found)
    if len(rows) < 2:
        return None
    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    axes = figure.add_subplot()
    above = draw_cost(axes, rows, styles)
    axes.set(xlabel="compute, MFLOP per token (forward and backward)", ylabel="nats/token (lower is better)")
    figure.legend(loc="outside right upper")
    caption, front = "Towards the lower left: better and cheaper.", pareto_front(rows)
    if any(row["interval"] for row in rows):
        caption += " Line: 95 % interval over seeds."
    if len(front) > 1:
        caption += " Steps: the Pareto front, through the models that no cheaper model matches."
    else:
        caption += f" No other model is cheaper or better than {parenthesised(front[0]['model'])}."
    if above:
        caption += f" Above the frame: {', '.join(map(parenthesised, above))}; the table has the numbers."
    return write_plot(figure, stem, rows, title, caption)


@styled
def _curves(
    comparison: Comparison,
    styles: Mapping[str, dict],
    panels: Mapping[str, str],
    stem: Path,
    title: str,
    quantity: str,
) -> Plot:
    """A panel per column of metrics.csv, all on the same scale, which may cut off spikes."""
    rows, extents, named = [], [], {}
    figure = Figure(figsize=(9.6 if len(panels) > 1 else 7.2, 3.6), layout="constrained")
    plots = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (column, heading) in zip(plots, panels.items(), strict=True):
        for contestant in comparison.contestants:
            series = [run.curve[column] for run in contestant.runs.values() if column in run.curve]
            if not series:
                continue
            steps, seeds, (mean, low, high) = (found.tolist() for found in _over_seeds(series))
            smooth = column == SMOOTHED
            line = running_median(mean).tolist() if smooth else mean
            most, *bounds = (line, mean, mean) if smooth else (high, low, high)
            extents.append((min(bounds[0]), max(bounds[1]), max(line[0], np.quantile(most, 0.95))))
            style, label = styles[contestant.label], wrapped(contestant.label)
            drawn = np.unique(np.linspace(0, len(steps) - 1, DRAWN).round().astype(int))
            at, curve, *band = (np.array(values)[drawn] for values in (steps, line, low, high))
            every = max(1, len(drawn) // 8)
            (named[label],) = axes.plot(at, curve, label=label, markevery=every, **style)
            if smooth:
                axes.plot(at, np.array(mean)[drawn], color=style["color"], linewidth=0.5, alpha=0.35, zorder=1)
            else:
                draw_band(axes, at, *band, style=style, alpha=0.18)
            rows += [
                {
                    "quantity": column,
                    "model": contestant.label,
                    "step": step,
                    "mean": mean[place],
                    "least": low[place],
                    "most": high[place],
                    "seeds": seeds[place],
                }
                for place, step in enumerate(steps)
            ]
        axes.set(xlabel="optimiser step", title=literal(heading))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    plots[0].set_ylabel(quantity)
    if named:
        legend_above(figure, named)
    caption = "Line: mean over seeds. Band: lowest to highest seed."
    if SMOOTHED in panels:
        caption = f"{caption} Training: running median over 1/{WINDOW} of the curve; the thin line is not smoothed."
    lows, highs, ordinary = zip(*extents, strict=True) if extents else ((0,), (0,), (0,))
    reach = max(ordinary) - min(lows)
    if max(highs) - min(lows) > 1.5 * reach:
        plots[0].set_ylim(min(lows) - 0.05 * reach, max(ordinary) + 0.05 * reach)
        caption += " The highest values leave the frame."
    return write_plot(figure, stem, rows, title, caption)


def _over_seeds(series: Sequence[Series]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All steps, the number of seeds that have a value there, and its mean, minimum and maximum over them, `[3, N]`."""
    every, values = (np.concatenate([getattr(each, name) for each in series]) for name in ("steps", "values"))
    steps, counts = np.unique(every, return_counts=True)
    begins, values = np.cumsum(counts) - counts, values[np.argsort(every, kind="stable")]
    found = np.empty((3, len(steps)))
    for count in np.unique(counts):  # steps with equally many seeds are reduced together
        here = counts == count
        together = values[begins[here, None] + np.arange(count)]
        found[:, here] = together.mean(1), together.min(1), together.max(1)
    return steps, counts, found


def running_median(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The median of each value and its neighbours, over 1/WINDOW of the curve; the ends have fewer neighbours."""
    half = len(values) // (2 * WINDOW)
    padded = np.pad(np.array(values, float), half, constant_values=np.nan)
    return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=-1)
