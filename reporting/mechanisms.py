"""Plots of attention by distance and of what encodings have learnt, from the `mechanisms/*.csv` of runs."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..core.checked_files import DAMAGE, NAME, figure, read_csv, whole, why
from ..core.errors import UserError
from ..core.legend_records import legends_of
from ..core.legends import Elements, Legend
from .drawing import BLUE, INK, PAPER, QUIET, VERMILION, Plot, literal, styled, wrapped, write_plot
from .study import Comparison, Contestant, Run, file_name

ATTENTION = "attention"  # measured for every encoding; the other files are portraits of one encoding
QUANTILES = ("q05", "q25", "q50", "q75", "q95")
LARGEST = 1e6  # absolute value that is drawn
MOST_HEADS = 1500  # in one plot: Matplotlib draws at most 2^16 pixels
MOST_NAMED = 36  # heads, each with a label
MANY = 1000  # crosses, from which a bitmap of them is smaller than their shapes
SOURCE = "in a few documents of the validation split"


@styled
def attention_plot(comparison: Comparison, styles: Mapping[str, dict], folder: Path) -> Plot | None:
    """Share of attention by distance, mean over layers and heads; None if no run has measured it."""
    figure, rows = Figure(figsize=(7.2, 3.9), layout="constrained"), []
    axes = figure.add_subplot()
    for contestant in comparison.contestants:
        seeds = [_by_distance(read) for run in contestant.runs.values() if (read := _read(run, ATTENTION))]
        if not seeds:
            continue
        places = sorted(set.intersection(*map(set, seeds)))
        shares = np.array([[seed[place] for place in places] for seed in seeds])
        style = styles[contestant.label]
        at = np.arange(len(places))
        axes.plot(at, 100 * shares.mean(0), label=wrapped(contestant.label), **style)
        axes.fill_between(at, 100 * shares.min(0), 100 * shares.max(0), color=style["color"], alpha=0.18, linewidth=0)
        ranges = [f"{low:,}" if low == high else f"{low:,}–{high:,}" for low, high in places]
        axes.set_xticks(at, ranges, rotation=40, ha="right", rotation_mode="anchor")
        for place, share in zip(places, shares.T, strict=True):
            row = {"model": contestant.label, "low": place[0], "high": place[1], "mean": float(share.mean())}
            rows.append({**row, "least": float(share.min()), "most": float(share.max()), "seeds": len(seeds)})
    if not rows:
        return None
    axes.set(xlabel="distance from query back to key, tokens", ylabel="share of attention, %", ylim=(0, None))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    caption = (
        f"How much attention goes to keys at each distance, {SOURCE}: mean over layers, heads and the queries of the "
        "second half of the context. Points are ranges of distance that double in width. Band: lowest to highest seed."
    )
    title = f"{comparison.name}: attention by distance"
    return write_plot(figure, folder / f"{comparison.slug}-attention", rows, title, caption)


def portrait_plots(contestant: Contestant, comparison: Comparison, folder: Path) -> list[Plot]:
    """What the contestant's encoding has learnt, each portrait from the lowest seed that has it."""
    legends = {seed: legends_of(run.manifest) for seed, run in sorted(contestant.runs.items())}
    found = []
    for name in sorted({name for each in legends.values() for name in each}):
        for seed, legend in ((seed, each[name]) for seed, each in legends.items() if name in each):
            run = contestant.runs[seed]
            read = _read(run, name, legend)
            if read and len({(row["layer"], row["head"]) for row in read}) <= MOST_HEADS:
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
    read: Sequence[Mapping[str, str]],
    legend: Legend,
    elements: Elements,
    subject: str,
    stem: Path,
    title: str,
) -> Plot:
    """A map with a row for each head and a column for each of its elements."""
    heads = list(dict.fromkeys((int(row["layer"]), int(row["head"])) for row in read))
    values = np.array([float(row[name]) for row in read]).reshape(len(heads), -1)
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
def _quantiles_plot(read: Sequence[Mapping[str, str]], legend: Legend, subject: str, stem: Path, title: str) -> Plot:
    """A bar for each head: the middle half of its tokens, nine tenths as a line, the median as a dot."""
    rows = _quantiles(read)
    heads = [(int(row["layer"]), int(row["head"])) for row in rows]
    figure = Figure(figsize=(7.2, _height(heads)), layout="constrained")
    axes = figure.add_subplot()
    at, drawn = range(len(rows)), {key: [row[key] for row in rows] for key in QUANTILES}
    axes.hlines(at, drawn["q05"], drawn["q95"], color=BLUE, linewidth=1)
    axes.hlines(at, drawn["q25"], drawn["q75"], color=BLUE, linewidth=4)
    axes.plot(drawn["q50"], at, "o", color=INK, markersize=3.5, markeredgecolor=PAPER, markeredgewidth=0.5)
    axes.set(xlabel=literal(legend.axis), ylim=(len(rows) - 0.4, -0.6))
    axes.grid(False, axis="y")
    _name_heads(axes, heads, QUIET)
    caption = f"{subject}, {SOURCE}. Thick bar: half of the tokens; thin line: nine tenths; dot: the median."
    return write_plot(figure, stem, rows, title, caption)


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


def _by_distance(rows: Sequence[Mapping[str, str]]) -> dict[tuple[int, int], float]:
    shares: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        shares.setdefault((int(row["low"]), int(row["high"])), []).append(float(row["mass"]))
    return {place: float(np.mean(each)) for place, each in shares.items()}


def read_mechanism(path: Path, legend: Legend | None = None) -> list[dict[str, str]]:
    """Rows of a `mechanisms/*.csv`. Files other than attention.csv are drawn only if they have a legend.

    Raises:
        UserError: it does not have the columns or values that a plot needs.
    """
    name, elements = path.stem, legend and legend.elements
    try:
        if not NAME.fullmatch(name):
            raise ValueError("its name may only have letters, digits and ._-")
        columns = ("low", "high", "mass") if name == ATTENTION else ("layer", "head", name) if elements else ()
        rows = read_csv(path, columns)
        if name == ATTENTION:
            for row in rows:
                if whole(row["low"]) > whole(row["high"]) or not 0 <= figure(row["mass"]) < 1.001:
                    raise ValueError(f"the row {','.join(row.values())[:60]} has no valid share of attention")
        elif elements:
            heads = [(whole(row["layer"]), whole(row["head"])) for row in rows if abs(figure(row[name])) < LARGEST]
            sizes = [len([*group]) for _, group in groupby(heads)]
            known = map(len, elements.facts.values())
            if len({*sizes, *known}) > 1 or len({*heads}) < len(sizes) or len(heads) < len(rows):
                raise ValueError("its heads do not have the same number of elements each")
        elif legend and rows:
            _quantiles(rows)
        return rows
    except DAMAGE as error:
        raise UserError(f"{path} is damaged ({why(error)}): delete it and measure it again") from error


def _quantiles(rows: Sequence[Mapping[str, str]]) -> list[dict[str, float]]:
    """The numbers in rows of quantiles. Raises ValueError for other columns, or quantiles in descending order."""
    if {*rows[0]} != {"layer", "head", *QUANTILES}:
        raise ValueError(f"its columns are {', '.join(rows[0])}, not layer, head, {', '.join(QUANTILES)}")
    found = [{key: figure(value) if key in QUANTILES else whole(value) for key, value in row.items()} for row in rows]
    for row in found:
        values = [row[key] for key in QUANTILES]
        if values != sorted(values) or max(map(abs, values)) > LARGEST:
            raise ValueError(f"the quantiles {values} are not in ascending order")
    return found


def _read(run: Run, name: str, legend: Legend | None = None) -> list[dict[str, str]]:
    path = run.directory.mechanisms / f"{name}.csv"
    return read_mechanism(path, legend) if path.exists() else []
