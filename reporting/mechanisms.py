"""Plots of what encodings have learned, from the portraits in the `mechanisms/*.csv` of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..core.legend_records import legends_of
from ..core.legends import Elements, Legend
from .contestant import Contestant
from .drawing import INK, PAPER, QUIET, VERMILION, Plot, literal, styled, wrapped, write_plot
from .naming import file_name, parenthesised
from .study import Comparison

MOST_HEADS = 1500  # in one plot: Matplotlib draws at most 2^16 pixels
MOST_NAMED = 36  # heads, each with a label
MANY = 1000  # crosses; from this number on, a bitmap of them is smaller than vector shapes
WIDE = 80  # characters in the width of a plot with several panels
SOURCE = "in a few documents of the validation split"


@dataclass(frozen=True)
class Portrait:
    """A portrait of a model, from its lowest seed that has it: the columns of its file, and what they mean."""

    label: str
    seed: int
    read: Mapping[str, np.ndarray]
    legend: Legend


def portrait_plots(comparison: Comparison, styles: Mapping[str, dict], folder: Path) -> list[Plot]:
    """What encodings have learned: a plot of each quantity, with all models that log it, and a map for each model."""
    found: dict[str, list[Portrait]] = {}
    for contestant in comparison.contestants:
        for name, portrait in _portraits(contestant).items():
            found.setdefault(name, []).append(portrait)
    drawn = []
    for name, portraits in sorted(found.items()):
        title, stem = f"{comparison.name}: {name.replace('_', ' ')}", folder / f"{comparison.slug}-{file_name(name)}"
        if together := [each for each in portraits if each.legend.elements is None]:
            whose = ", ".join(parenthesised(each.label) for each in together)
            heads = stem.with_name(f"{stem.name}-heads")
            drawn.append(_quantiles_plot(together, styles, heads, f"{title} of {whose}"))
        for each in portraits:
            if each.legend.elements is not None:
                of_one = stem.with_name(f"{stem.name}-{file_name(each.label)}")
                drawn.append(_elements_plot(name, each, each.legend.elements, of_one, f"{title} of {each.label}"))
    return drawn


def _portraits(contestant: Contestant) -> dict[str, Portrait]:
    """The contestant's portraits by name, without those that have too many heads."""
    found: dict[str, Portrait] = {}
    for seed, run in sorted(contestant.runs.items()):
        for name, legend in legends_of(run.manifest).items():
            read = run.measured.mechanisms.get(name)
            if name not in found and read and len({*_heads(read)}) <= MOST_HEADS:
                found[name] = Portrait(contestant.label, seed, read, legend)
    return found


@styled
def _elements_plot(name: str, portrait: Portrait, elements: Elements, stem: Path, title: str) -> Plot:
    """A map with a row for each head and a column for each of its elements."""
    heads = list(dict.fromkeys(_heads(portrait.read)))
    values = portrait.read[name].reshape(len(heads), -1)
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
    _name_heads(axes, heads)
    _part_layers(axes, heads, PAPER)
    bar = figure.colorbar(image, ax=axes, ticks=[*elements.ticks.values()], label=literal(portrait.legend.axis))
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
    subject = _subject([portrait])
    caption = f"{subject}; {elements.note}." if elements.note else f"{subject}."
    if elements.frozen:
        caption += f" Crosses: {elements.frozen}, {100 * frozen.mean():.1f} % of all."
    return write_plot(figure, stem, rows, title, caption)


@styled
def _quantiles_plot(portraits: Sequence[Portrait], styles: Mapping[str, dict], stem: Path, title: str) -> Plot:
    """A panel for each model, with a bar for each head: the middle half of its tokens, nine tenths as a line."""
    heads = sorted({head for each in portraits for head in _heads(each.read)})
    several, rows = len(portraits) > 1, []
    figure = Figure(figsize=(9.6 if several else 7.2, _height(heads)), layout="constrained")
    panels = figure.subplots(1, len(portraits), squeeze=False, sharex=True, sharey=True)[0]
    for axes, portrait in zip(panels, portraits, strict=True):
        read, colour = portrait.read, styles[portrait.label]["color"]
        at = [heads.index(head) for head in _heads(read)]
        axes.hlines(at, read["q05"], read["q95"], color=colour, linewidth=1)
        axes.hlines(at, read["q25"], read["q75"], color=colour, linewidth=4)
        axes.plot(read["q50"], at, "o", color=INK, markersize=3.5, markeredgecolor=PAPER, markeredgewidth=0.5)
        axes.set_xlabel(wrapped(portrait.legend.axis, WIDE // len(portraits)))
        axes.grid(False, axis="y")
        _part_layers(axes, heads, QUIET)
        if several:
            axes.set_title(wrapped(portrait.label, WIDE // len(portraits)))
        columns = {key: column.tolist() for key, column in read.items()}
        numbers = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        rows += [{"model": portrait.label, "seed": portrait.seed, **each} for each in numbers]
    panels[0].set_ylim(len(heads) - 0.4, -0.6)
    _name_heads(panels[0], heads)
    marks = "Thick bar: half of the tokens; thin line: nine tenths; dot: the median."
    return write_plot(figure, stem, rows, title, f"{_subject(portraits)}, {SOURCE}. {marks}")


def _subject(portraits: Sequence[Portrait]) -> str:
    """What the portraits show, and of which seeds."""
    of: dict[int, list[str]] = {}
    for each in portraits:
        of.setdefault(each.seed, []).append(parenthesised(each.label))
    seeds = " and ".join(f"seed {seed} of {', '.join(labels)}" for seed, labels in of.items())
    seeds = seeds if len(of) > 1 else f"seed {portraits[0].seed}"
    captions = "; ".join(dict.fromkeys(each.legend.caption for each in portraits if each.legend.caption))
    return f"{captions} of {seeds}" if captions else f"S{seeds[1:]}"


def _heads(read: Mapping[str, np.ndarray]) -> list[tuple[int, int]]:
    """Layer and head of each row."""
    return list(zip(read["layer"].tolist(), read["head"].tolist(), strict=True))


def _height(heads: Sequence[tuple[int, int]]) -> float:
    """Inches of a plot with a row for each head: less for each where there are many."""
    return 1.3 + min(0.2 * len(heads), max(6.0, 0.06 * len(heads)))


def _name_heads(axes: Axes, heads: Sequence[tuple[int, int]]) -> None:
    """Name every head, or only every layer where there are too many to read."""
    if len(heads) <= MOST_NAMED:
        axes.set_yticks(range(len(heads)), [f"layer {layer}, head {head}" for layer, head in heads], fontsize=8)
    else:
        firsts = _firsts(heads)
        axes.set_yticks(firsts, [f"layer {heads[i][0]}" for i in firsts], fontsize=8)
        axes.set_ylabel("heads of each layer")


def _part_layers(axes: Axes, heads: Sequence[tuple[int, int]], colour: str) -> None:
    """Draw a line between two layers."""
    for first in _firsts(heads)[1:]:
        axes.axhline(first - 0.5, color=colour, linewidth=0.8)


def _firsts(heads: Sequence[tuple[int, int]]) -> list[int]:
    """The place of the first head of each layer."""
    return [i for i, (layer, _) in enumerate(heads) if i == 0 or layer != heads[i - 1][0]]
