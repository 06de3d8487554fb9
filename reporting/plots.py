"""The plots of a report, each as SVG, PNG and the CSV behind it; colours for the colour-blind, marks for grey print."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from ..core.terminal import printable
from .lengths import (
    form_of,
    forms_of_all,
    longest_context,
    nats_by_context,
    nats_by_position,
)
from .scores import Score
from .study import Comparison, Study
from .tables import Row, write_csv

# Okabe and Ito's set; with a dash and a mark each, for print without colour.
STYLES = (
    {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    {"color": "#CC79A7", "linestyle": ":", "marker": "D"},
    {"color": "#000000", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "#E69F00", "linestyle": (0, (8, 2)), "marker": "P"},
    {"color": "#56B4E9", "linestyle": (0, (1, 1)), "marker": "X"},
)
FORMS = {
    **{"none": "-", "yarn": "--", "ntk": "-.", "interpolation": ":"},
    **{"dynamic_ntk": (0, (6, 1, 1, 1, 1, 1)), "llama3": (0, (8, 3)), "longrope": (0, (1, 4))},
}
# Columns of metrics.csv that are no diagnostic of an encoding.
ORDINARY = re.compile(r"step|train_nll|valid_.*|learning_rate|gradient_norm|tokens_per_s|data_wait|mfu")
MOST = 150  # characters of a label
DRAWN = 300  # points of a curve; the CSV has them all


@dataclass(frozen=True)
class Plot:
    """A plot that was written: `stem` plus .svg, .png and .csv; `title` and `caption` tell what it shows."""

    stem: Path
    title: str
    caption: str


def styles_of(study: Study) -> dict[str, dict]:
    """A line style for each contestant's label, the same in every plot of a study."""
    labels = sorted({contestant.label for comparison in study.comparisons for contestant in comparison.contestants})
    return {label: STYLES[number % len(STYLES)] for number, label in enumerate(labels)}


def loss_plot(comparison: Comparison, styles: Mapping[str, dict], folder: Path) -> Plot:
    """Training and validation loss against the step: a line for the mean over seeds, a band for their range."""
    return _curves(
        comparison,
        styles,
        {"train_nll": "training batch", "valid_nll": "validation split"},
        folder / f"{comparison.slug}-loss",
        f"{comparison.title}: loss",
        "nats/token",
    )


def diagnostics_plot(comparison: Comparison, styles: Mapping[str, dict], folder: Path) -> Plot | None:
    """What encodings log about their own parameters, such as the share of PoPE's delta that is frozen."""
    names = {
        name: name.replace("_", " ")
        for contestant in comparison.contestants
        for run in contestant.runs.values()
        for row in run.curve
        for name in row
        if not ORDINARY.fullmatch(name)
    }
    if not names:
        return None
    stem = folder / f"{comparison.slug}-diagnostics"
    title = f"{comparison.title}: what the encodings log of themselves"
    return _curves(comparison, styles, names, stem, title, "mean of layers")


def forest_plot(found: Sequence[Score], stem: Path, title: str, percent: bool = False) -> Plot | None:
    """Differences to the reference with their intervals: over both as a bar, over seeds and over clusters as lines.

    Args:
        percent: of the reference's nats a token, so that comparisons fit into one plot; a row's label then tells which.
    """
    rows = []
    for score in found:
        if score.compared is None:
            continue
        against, difference = score.compared
        scale = 100 / difference.level if percent else 1.0
        place = f"{score.comparison.title}, {score.split}: " if percent else ""
        row: Row = {"model": place + score.contestant.label, "against": against.label}
        row |= {"difference": scale * difference.value, "margin": scale * difference.margin}
        for basis in ("both", "seeds", "clusters"):
            pair = getattr(difference, basis)
            row[basis] = pair and (scale * pair[0], scale * pair[1])
        rows.append(row)
    if not rows:
        return None
    names = [literal(f"{row['model']} less {row['against']}") for row in rows]
    edge = edge_of(rows)
    beside = 1.5 if any(_reach(row) > edge for row in rows) else 0.0
    width = max(7.2, 5.2 + 0.08 * max(map(len, names))) + beside
    figure = Figure(figsize=(width, 1.5 + 0.52 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for at, row in enumerate(reversed(rows)):
        axes.fill_between([-row["margin"], row["margin"]], at - 0.42, at + 0.42, color="0.92", linewidth=0, zorder=0)
        if _reach(row) > edge:
            low, high = row["both"] or row["clusters"] or row["seeds"] or (None, None)
            told = f"{'→' if row['difference'] > 0 else '←'} {row['difference']:+.3g}"
            told += "" if low is None else f"\n({low:+.3g} to {high:+.3g})"
            axes.text(1.01, at, told, transform=axes.get_yaxis_transform(), va="center", fontsize=9)
            continue
        for basis, lift, style in (
            ("both", 0.0, {"color": "#0072B2", "linewidth": 4}),
            ("seeds", 0.2, {"color": "#D55E00", "linewidth": 1.6, "linestyle": "--"}),
            ("clusters", -0.2, {"color": "#009E73", "linewidth": 1.6}),
        ):
            if row[basis]:
                axes.plot(row[basis], [at + lift] * 2, solid_capstyle="butt", zorder=2, **style)
        axes.plot(row["difference"], at, "o", color="black", markersize=4.5, zorder=3)
    axes.axvline(0, color="black", linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(rows)), reversed(names))
    axes.set_ylim(-0.6, len(rows) - 0.4)
    unit = "% of the reference's nats/token" if percent else "nats/token"
    axes.set_xlabel(f"difference, {unit} (lower is better)")
    handles = [
        Line2D([], [], color="#0072B2", linewidth=4, label="seeds and clusters"),
        Line2D([], [], color="#D55E00", linewidth=1.6, linestyle="--", label="seeds"),
        Line2D([], [], color="#009E73", linewidth=1.6, label="clusters"),
        Line2D([], [], color="0.85", linewidth=8, label="margin"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    tidy(axes)
    caption = (
        "Dot: difference to the reference. Lines: 95 % intervals over seeds, over test clusters, and over both; one "
        "that is missing had too few seeds or clusters. Grey: the margin within which two encodings count as equal. "
        "Figures beside the plot lie beyond the axis, where their arrows point."
    )
    return write_plot(figure, stem, rows, title, caption)


def _reach(row: Row) -> float:
    """How far a row of the forest plot goes from 0."""
    return max(abs(end) for key in ("difference", "both", "seeds", "clusters") for end in np.atleast_1d(row[key] or 0))


def edge_of(rows: Sequence[Row]) -> float:
    """How far the forest plot's axis goes: one encoding that fails must not press all others into a point."""
    reaches = sorted(max(_reach(row), row["margin"]) for row in rows)
    return max(reach for reach in reaches if reach <= 5 * reaches[(len(rows) - 1) // 2])


def lengths_plot(
    found: Mapping[str, Sequence[Sequence[Row]]], styles: Mapping[str, dict], stem: Path, title: str
) -> Plot:
    """Nats a token by context, and by what a target saw under the longest of all; `found` as of `lengths_table`."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    axes, rows, longest = figure.subplots(1, 2), [], longest_context(found)
    widths = {form: 1.8 - 0.2 * i for i, form in enumerate(FORMS)}
    for model, seeds in found.items():
        trained = seeds[0][0]["trained"]
        for form in forms_of_all(seeds):
            width = widths[form_of(form)]
            style = {**styles[model], "linestyle": FORMS[form_of(form)], "linewidth": width}
            style |= {"markersize": 3 + 1.5 * width, "fillstyle": "full" if form == "none" else "none"}
            label = model if form == "none" else f"{model}, {form}"
            by_context = [nats_by_context(seed, form) for seed in seeds]
            by_position = [nats_by_position(seed, form, longest) for seed in seeds]
            for plot, quantity, curves in zip(
                axes, ("context", "tokens before"), (by_context, by_position), strict=True
            ):
                places = sorted(set.intersection(*map(set, curves)))
                values = np.array([[curve[place] for place in places] for curve in curves])
                at = [place[0] if isinstance(place, tuple) else place for place in places]
                plot.plot(at, values.mean(0), label=literal(label), **style)
                plot.fill_between(at, values.min(0), values.max(0), color=style["color"], alpha=0.15, linewidth=0)
                for place, mean, least, most in zip(at, values.mean(0), values.min(0), values.max(0), strict=True):
                    under = place if quantity == "context" else longest
                    row = {"model": model, "stretch": form, "quantity": quantity, "context": under, "tokens": place}
                    row |= {"mean": float(mean), "least": float(least), "most": float(most), "seeds": len(seeds)}
                    rows.append(row)
    seen = f"tokens seen, context of {longest:,}" if longest else "tokens seen: no context was scored of all"
    for plot, label in zip(axes, ("tokens of a context", seen), strict=True):
        plot.set_xscale("log", base=2)
        plot.axvline(trained, color="0.4", linewidth=1, linestyle=":")
        plot.set(xlabel=label, ylabel="nats/token")
        tidy(plot)
    # A model that fails far beyond all others must not press them into a line.
    middle = [row["mean"] for row in rows if row["stretch"] == "none"]
    for plot in axes:
        low, high = plot.get_ylim()
        plot.set_ylim(low, min(high, 2.5 * float(np.median(middle))))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    caption = (
        "Dotted: the trained length. Left: the same targets under each context. Right: all targets of the longest "
        "context that all were scored under, by how many tokens they saw. Band: from the lowest to the highest seed. "
        "Hollow, not solid: stretched. What fails far beyond the others leaves the frame; the table has it."
    )
    return write_plot(figure, stem, rows, title, caption)


def _curves(
    comparison: Comparison,
    styles: Mapping[str, dict],
    panels: Mapping[str, str],
    stem: Path,
    title: str,
    quantity: str,
) -> Plot:
    """A panel a column of metrics.csv, all on the same scale, which a spike may leave."""
    rows, extents = [], []
    figure = Figure(figsize=(max(4.2, 3.6 * len(panels)), 3.6), layout="constrained")
    plots = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (column, heading) in zip(plots, panels.items(), strict=True):
        for contestant in comparison.contestants:
            points: dict[float, list[float]] = {}
            for run in contestant.runs.values():
                for row in run.curve:
                    if column in row:
                        points.setdefault(row["step"], []).append(row[column])
            steps = sorted(points)
            if not steps:
                continue
            mean, low, high = ([float(f(points[step])) for step in steps] for f in (np.mean, np.min, np.max))
            extents.append((min(low), max(high), max(mean[0], np.quantile(high, 0.95))))
            style = styles[contestant.label]
            drawn = np.unique(np.linspace(0, len(steps) - 1, DRAWN).round().astype(int))
            at, *lines = (np.array(values)[drawn] for values in (steps, mean, low, high))
            every = max(1, len(drawn) // 8)
            axes.plot(
                at, lines[0], label=literal(contestant.label), linewidth=1.6, markersize=4.5, markevery=every, **style
            )
            axes.fill_between(at, *lines[1:], color=style["color"], alpha=0.18, linewidth=0)
            rows += [
                {
                    "quantity": column,
                    "model": contestant.label,
                    "step": int(step),
                    "mean": mean[place],
                    "least": low[place],
                    "most": high[place],
                    "seeds": len(points[step]),
                }
                for place, step in enumerate(steps)
            ]
        axes.set(xlabel="step", title=literal(heading))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        tidy(axes)
    plots[0].set_ylabel(quantity)
    plots[-1].legend(frameon=False, fontsize=9)
    caption = "Line: mean over seeds. Band: from the lowest to the highest seed."
    lows, highs, ordinary = zip(*extents, strict=True) if extents else ((0,), (0,), (0,))
    reach = max(ordinary) - min(lows)
    if max(highs) - min(lows) > 1.5 * reach:
        plots[0].set_ylim(min(lows) - 0.05 * reach, max(ordinary) + 0.05 * reach)
        caption += " A spike leaves the frame."
    return write_plot(figure, stem, rows, title, caption)


def literal(text: str) -> str:
    """`text` as a label that matplotlib shows as it is: dollar signs would begin a formula."""
    return printable(text if len(text) <= MOST else f"{text[:MOST]}…").replace("$", r"\$")


def tidy(axes: Axes) -> None:
    """A light grid behind, and no frame but the axes."""
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def write_plot(figure: Figure, stem: Path, rows: Sequence[Row], title: str, caption: str) -> Plot:
    """Write the figure, and `rows` as the CSV behind it."""
    if (layout := figure.get_layout_engine()) is not None:
        layout.execute(figure)
    figure.set_layout_engine("none")  # it is laid out: once for both files
    # Without a date and with the same ids each time, the same records give the same file.
    with rc_context({"svg.hashsalt": "bearings"}):
        figure.savefig(stem.with_name(stem.name + ".svg"), metadata={"Date": None})
    figure.savefig(stem.with_name(stem.name + ".png"), dpi=150)
    write_csv(stem.with_name(stem.name + ".csv"), rows)
    return Plot(stem, title, caption)
