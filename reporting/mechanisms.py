"""Plots of what encodings have learnt, from the portraits in the `mechanisms/*.csv` of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..core.legend_records import legends_of
from ..core.legends import Elements, Legend
from .contestant import Contestant
from .drawing import BLUE, INK, PAPER, QUIET, VERMILION, Plot, literal, styled, write_plot
from .naming import file_name
from .study import Comparison

MOST_HEADS = 1500  # in one plot: Matplotlib draws at most 2^16 pixels
MOST_NAMED = 36  # heads, each with a label
MANY = 1000  # crosses; from this number on, a bitmap of them is smaller than vector shapes
SOURCE = "in a few documents of the validation split"


def portrait_plots(contestant: Contestant, comparison: Comparison, folder: Path) -> list[Plot]:
    """What the contestant's encoding has learnt, each portrait from the lowest seed that has it."""
    legends = {seed: legends_of(run.manifest) for seed, run in sorted(contestant.runs.items())}
    found = []
    for name in sorted({name for each in legends.values() for name in each}):
        for seed, legend in ((seed, each[name]) for seed, each in legends.items() if name in each):
            read = contestant.runs[seed].measured.mechanisms.get(name)
            if read and len({*_heads(read)}) <= MOST_HEADS:
                title = f"{comparison.name}: {name.replace('_', ' ')} of {contestant.label}"
                stem = folder / f"{comparison.slug}-{file_name(name)}-{file_name(contestant.label)}"
                subject = f"{legend.caption} of seed {seed}" if legend.caption else f"Seed {seed}"
                if legend.elements is None:
                    found.append(_quantiles_plot(read, legend, subject, stem, title))
                else:
                    found.append(_elements_plot(name, read, legend, legend.elements, subject, stem, title))
                break
    return found


@styled
def _elements_plot(
    name: str,
    read: Mapping[str, np.ndarray],
    legend: Legend,
    elements: Elements,
    subject: str,
    stem: Path,
    title: str,
) -> Plot:
    """A map with a row for each head and a column for each of its elements."""
    heads = list(dict.fromkeys(_heads(read)))
    values = read[name].reshape(len(heads), -1)
    low, high = min(elements.ticks.values()), max(elements.ticks.values())
    frozen = (values > high) | (values < low) if elements.frozen else np.zeros(values.shape, bool)
    seen = np.clip(values, low, high) if elements.period is None else high - np.mod(high - values, elements.period)
    figure = Figure(figsize=(7.2, _height(heads)), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(False)
    image = axes.imshow(seen, cmap="cividis", vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    for colour, width_pt in ((PAPER, 2.6), (VERMILION, 1.2)):  # with an edge, so that they show on dark and light
        style = {"linestyle": "", "marker": "x", "color": colour, "markeredgewidth": width_pt}
        axes.plot(*np.nonzero(frozen)[::-1], markersize=5, rasterized=frozen.sum() > MANY, **style)
    axes.set_xlabel(literal(elements.axis))
    _name_heads(axes, heads, PAPER)
    bar = figure.colorbar(image, ax=axes, ticks=[*elements.ticks.values()], label=literal(legend.axis))
    bar.ax.set_yticklabels([literal(label) for label in elements.ticks])
    rows = [
        {
            "layer": layer,
            "head": head,
            "element": c,
            **{fact: numbers[c] for fact, numbers in elements.facts.items()},
            name: float(values[i, c]),
            "frozen": bool(frozen[i, c]),
        }
        for i, (layer, head) in enumerate(heads)
        for c in range(values.shape[1])
    ]
    caption = f"{subject}; {elements.note}." if elements.note else f"{subject}."
    if elements.frozen:
        caption += f" Crosses: {elements.frozen}, {100 * frozen.mean():.1f} % of all."
    return write_plot(figure, stem, rows, title, caption)


@styled
def _quantiles_plot(read: Mapping[str, np.ndarray], legend: Legend, subject: str, stem: Path, title: str) -> Plot:
    """A bar for each head: the middle half of its tokens, nine tenths as a line, the median as a dot."""
    heads = _heads(read)
    figure = Figure(figsize=(7.2, _height(heads)), layout="constrained")
    axes = figure.add_subplot()
    at = range(len(heads))
    axes.hlines(at, read["q05"], read["q95"], color=BLUE, linewidth=1)
    axes.hlines(at, read["q25"], read["q75"], color=BLUE, linewidth=4)
    axes.plot(read["q50"], at, "o", color=INK, markersize=3.5, markeredgecolor=PAPER, markeredgewidth=0.5)
    axes.set(xlabel=literal(legend.axis), ylim=(len(heads) - 0.4, -0.6))
    axes.grid(False, axis="y")
    _name_heads(axes, heads, QUIET)
    columns = {key: column.tolist() for key, column in read.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    caption = f"{subject}, {SOURCE}. Thick bar: half of the tokens; thin line: nine tenths; dot: the median."
    return write_plot(figure, stem, rows, title, caption)


def _heads(read: Mapping[str, np.ndarray]) -> list[tuple[int, int]]:
    """Layer and head of each row."""
    return list(zip(read["layer"].tolist(), read["head"].tolist(), strict=True))


def _height(heads: Sequence[tuple[int, int]]) -> float:
    """Inches of a plot with a row for each head: less for each where there are many."""
    return 1.3 + min(0.2 * len(heads), max(6.0, 0.06 * len(heads)))


def _name_heads(axes: Axes, heads: Sequence[tuple[int, int]], line: str) -> None:
    """Name every head, or only every layer where there are too many to read, with a line between two layers."""
    firsts = [i for i, (layer, _) in enumerate(heads) if i == 0 or layer != heads[i - 1][0]]
    if len(heads) <= MOST_NAMED:
        axes.set_yticks(range(len(heads)), [f"layer {layer}, head {head}" for layer, head in heads], fontsize=8)
    else:
        axes.set_yticks(firsts, [f"layer {heads[i][0]}" for i in firsts], fontsize=8)
        axes.set_ylabel("heads of each layer")
    for first in firsts[1:]:
        axes.axhline(first - 0.5, color=line, linewidth=0.8)
