"""Drift of the metrics of samples with position, as plots."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ..domains.base import Measures
from .drawing import INK, Plot, draw_band, legend_above, literal, styled, wrapped, write_plot
from .intervals import mean_interval
from .sample_metrics import SAMPLE, TEST, TEST_SPLIT, metric_names, with_metric
from .statistics import FEWEST_CLUSTERS
from .tables import Row


@styled
def drift_plot(
    found: Mapping[str, Sequence[Sequence[Row]]],
    measures: Measures | None,
    styles: Mapping[str, dict],
    stem: Path,
    title: str,
) -> Plot | None:
    """Each metric by position, of samples and of the test split; None if too few samples have two segments."""
    any_rows, rows = next(iter(found.values()))[0], []
    names = metric_names(any_rows)
    figure = Figure(figsize=(9.6, 2.9 * math.ceil(len(names) / 3) + 0.5), layout="constrained")
    panels = figure.subplots(math.ceil(len(names) / 3), 3, squeeze=False, sharex=True).reshape(-1)
    named = {}
    extent, axis = (measures.extent, measures.axis) if measures else (1.0, "segment")
    everyone = {TEST_SPLIT: ([any_rows], TEST), **{model: (seeds, SAMPLE) for model, seeds in found.items()}}
    for axes, name in zip(panels, names, strict=False):
        for label, (seeds, origin) in everyone.items():
            curve = _curve(seeds, origin, name)
            if not curve:
                continue
            style = styles.get(label, {"color": INK, "linestyle": "-", "linewidth": 2.4})
            at = [(place + 0.5) * extent for place in curve]
            mean, low, high = np.array([each[:3] for each in curve.values()]).T
            (named[wrapped(label)],) = axes.plot(at, mean, label=wrapped(label), **style)
            draw_band(axes, at, low, high, style, alpha=0.15)
            rows += [
                {"metric": name, "model": label, "segment": place, "position": (place + 0.5) * extent}
                | {"mean": mean, "interval": (low, high), "pieces": pieces}
                for place, (mean, low, high, pieces) in curve.items()
            ]
        axes.set_title(literal(measures.headings.get(name, name) if measures else name))
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    if not any(row["model"] != TEST_SPLIT and row["segment"] for row in rows):
        return None
    for axes in panels[: len(names)]:
        axes.set_xlabel(literal(axis))
    legend_above(figure, named)
    caption = (
        f"Mean over pieces at each position, where at least {FEWEST_CLUSTERS} pieces are long enough. Band: 95 % "
        "interval over pieces. Samples that stay music remain near the test split."
    )
    return write_plot(figure, stem, rows, title, caption)


def _curve(seeds: Sequence[Sequence[Row]], origin: str, name: str) -> dict[int, tuple[float, float, float, int]]:
    """Mean, ends of its interval over pieces, and pieces by segment, where there are enough pieces."""
    values: dict[int, list[float]] = {}
    for rows in seeds:
        for row in with_metric(rows, origin, name):
            values.setdefault(row["segment"], []).append(row[name])
    found = {}
    for segment, each in sorted(values.items()):
        if len(each) >= FEWEST_CLUSTERS:
            found[segment] = float(np.mean(each)), *mean_interval(each), len(each)
    return found
