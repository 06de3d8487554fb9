"""The plot of a task that is made harder: wrong answers of each seed against the one setting that differs."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from .drawing import QUIET, Plot, legend_above, styled, wrapped, write_plot
from .legible import MOST
from .naming import settings_of
from .plots import styles_of
from .solving import solving
from .study import Comparison
from .tables import by_value

WIDTH = 0.5  # of the markers of one value, side by side; neighbouring values are 1 apart


@styled
def errors_plot(comparisons: Sequence[Comparison], folder: Path) -> Plot | None:
    """Wrong answers on the first split, by the value of the setting in which comparisons of one task differ.

    None if there is no such setting, a comparison has no right answers, or there are more models than line styles.
    """
    settings = [settings_of(each.different) for each in comparisons]
    names = {each.partition("=")[0] for found in settings for each in found}
    labels = {label for each in comparisons for label in each.labels}
    alike = len({(each.domain, each.solved) for each in comparisons}) == 1 and comparisons[0].solved is not None
    if not (alike and len(comparisons) > 1 and len(names) == 1 and all(settings) and len(labels) <= MOST):
        return None
    values = [found[0].partition("=")[2] for found in settings]
    places = sorted(range(len(values)), key=lambda at: by_value(values[at]))
    (styles,), (name,) = styles_of([labels]), names
    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    axes, named, rows = figure.add_subplot(), {}, []
    for number, label in enumerate(sorted(labels)):
        shift = WIDTH * (number / max(1, len(labels) - 1) - 0.5)
        middle = []
        for at, place in enumerate(places):
            comparison = comparisons[place]
            contestant = next((each for each in comparison.contestants if each.label == label), None)
            found = contestant and solving(comparison, comparison.splits[0], contestant)
            if not (contestant and found):
                continue
            errors = [100 * (1 - accuracy) for accuracy in found.accuracies]
            seeds = sorted(contestant.runs)
            axes.plot([at + shift] * len(errors), errors, **{**styles[label], "linestyle": "none"}, alpha=0.7)
            middle.append((at + shift, median(errors)))
            rows += [
                {"model": label, name: values[place], "seed": seed, "wrong_percent": error}
                for seed, error in zip(seeds, errors, strict=True)
            ]
        if middle:
            line = {key: styles[label][key] for key in ("color", "linestyle")}
            axes.plot(*zip(*middle, strict=True), **line, zorder=1)
            (named[wrapped(label)],) = axes.plot([], [], **styles[label])
    if not rows:
        return None
    limit = 100 * (1 - (comparisons[0].solved or 0))
    axes.axhline(limit, color=QUIET, linewidth=1.2, linestyle=":")
    axes.set_xticks(range(len(places)), [values[place] for place in places])
    axes.set(xlabel=name, ylabel="wrong answers", xlim=(-0.5, len(places) - 0.5))
    axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])
    axes.yaxis.set_major_formatter(PercentFormatter(symbol=" %"))
    axes.grid(False, axis="x")
    legend_above(figure, named)
    caption = (
        f"Markers: wrong answers of each seed on the {comparisons[0].splits[0]} split. Lines: their medians. "
        f"Dotted: the task counts as solved with at most {limit:.3g} % wrong."
    )
    return write_plot(figure, folder / "errors", rows, f"{comparisons[0].domain}: wrong answers by {name}", caption)
