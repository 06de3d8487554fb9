"""Where attention goes and what heads distinguish: plots and a table of the measurements in `mechanisms/*.csv`."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .contestant import Contestant
from .drawing import INK, QUIET, Plot, draw_band, one_legend, styled, wrapped, write_plot
from .mechanisms import SOURCE
from .study import Comparison
from .tables import Row, Table

FIRST = 4  # tokens, as in StreamingLLM
SINK = 0.3  # share of attention on the first token from which a head is a sink (Gu et al.)
Ranges = dict[tuple[int, int], float]


@styled
def attention_plot(comparison: Comparison, styles: Mapping[str, dict], folder: Path) -> Plot | None:
    """Share of attention by distance, mean over layers and heads; None if no run has measured it."""
    rows = _rows(comparison, "attention", "mass")
    if not rows:
        return None
    figure = Figure(figsize=(7.2, 3.9), layout="constrained")
    axes = figure.add_subplot()
    _draw(axes, rows, styles)
    axes.set(xlabel="distance from query back to key, tokens", ylabel="share of attention, %", ylim=(0, None))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    caption = (
        f"How much attention goes to keys at each distance, {SOURCE}: mean over layers, heads and the queries of the "
        "second half of the context. Points are ranges of distance that double in width. Band: lowest to highest seed."
    )
    title = f"{comparison.name}: attention by distance"
    return write_plot(figure, folder / f"{comparison.slug}-attention", rows, title, caption)


@styled
def positions_plot(comparison: Comparison, styles: Mapping[str, dict], folder: Path) -> Plot | None:
    """Share of attention by the position of the key, in single layers and through all; None if not measured."""
    titles = {"positions": "attention within layers", "rollout": "through all layers (rollout)"}
    found = {name: _rows(comparison, name, "mass") for name in titles}
    if not any(found.values()):
        return None
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        _draw(axes, found[name], styles)
        uniform = [_seeds(contestant, name, "uniform") for contestant in comparison.contestants]
        for each in {tuple(seeds[0].items()): None for seeds in uniform if seeds}:
            at = np.arange(len(each))
            axes.plot(at, [100 * share for _, share in each], ":", color=INK, label="uniform attention", zorder=3)
        axes.set_title(title)
        axes.set(xlabel="position of the key, tokens", ylabel="share, %", ylim=(0, None))
    one_legend(figure, panels)
    caption = (
        f"How much attention goes to keys at each position, {SOURCE}, from queries in the second half of the context: "
        "mean over layers and heads (left), and how much of each input position arrives through all layers if half of "
        "each layer's output is its input (right). Dotted: equal attention to all keys that a query sees. Through "
        "several layers it favours early positions, because of the causal mask. Ranges of position double in width. "
        "Band: lowest to highest seed."
    )
    title = f"{comparison.name}: attention by position"
    return write_plot(figure, folder / f"{comparison.slug}-positions", _named(found), title, caption)


@styled
def distinction_plot(comparison: Comparison, styles: Mapping[str, dict], folder: Path) -> Plot | None:
    """How often heads prefer the nearer key, and the same key after an exchange; None if not measured."""
    labels = {
        "locality": ("the nearer key gets more attention", "distance d of the nearer key; the other is at 2d"),
        "consistency": ("order of two keys kept when exchanged", "distance between the two keys, tokens"),
    }
    found = {name: _rows(comparison, name, "share") for name in labels}
    if not any(found.values()):
        return None
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (name, (title, label)) in zip(panels, labels.items(), strict=True):
        _draw(axes, found[name], styles)
        axes.axhline(50, color=QUIET, linewidth=1.2, linestyle=":")
        axes.set_title(title)
        axes.set(xlabel=label, ylim=(0, 102))
    panels[0].set_ylabel("share of comparisons, %")
    one_legend(figure, panels)
    caption = (
        f"Whether heads distinguish positions and tokens, {SOURCE}: mean over layers and heads. Left: at 50 % (dotted) "
        "a head is no more likely to prefer a key at distance d than one at 2d. Right: 100 % means that the tokens "
        "decide which of two keys gets more attention, 0 % that their positions do, and 50 % that neither does "
        "consistently. Band: lowest to highest seed."
    )
    title = f"{comparison.name}: what attention distinguishes"
    return write_plot(figure, folder / f"{comparison.slug}-distinction", _named(found), title, caption)


def sinks_table(comparison: Comparison) -> Table | None:
    """Share of attention on the first tokens; None if no run has measured it."""
    rows: list[Row] = []
    for contestant in comparison.contestants:
        measured = (run.measured.mechanisms.get("positions") for run in contestant.runs.values())
        seeds = [(read, heads) for read in measured if read and (heads := _on_first(read, 1, "mass"))]
        if not seeds:
            continue
        shares = [np.mean(heads) for _, heads in seeds]
        sinks = [np.mean([share > SINK for share in heads]) for _, heads in seeds]
        on_several = [np.mean(_on_first(read, FIRST, "mass")) for read, _ in seeds]
        rows.append(
            {
                "model": contestant.label,
                "seeds": len(seeds),
                "first": float(np.mean(shares)),
                "several": float(np.mean(on_several)),
                "uniform": float(np.mean(_on_first(seeds[0][0], FIRST, "uniform"))),
                "sinks": float(np.mean(sinks)),
                "strongest": max(share for _, heads in seeds for share in heads),
            }
        )
    if not rows:
        return None
    columns = {
        "model": ("model", str),
        "seeds": ("seeds", str),
        "first": ("on the first token", _percent),
        "several": (f"on the first {FIRST}", _percent),
        "uniform": (f"on the first {FIRST} if uniform", _percent),
        "sinks": (f"heads with over {100 * SINK:.0f} % on the first", _percent),
        "strongest": ("largest share of a head", _percent),
    }
    notes = [
        f"Share of attention on the first tokens of a document, {SOURCE}: mean over layers, heads and the queries of "
        "the second half of the context. Far more than with uniform attention is an attention sink (Xiao et al., arXiv "
        f"2309.17453); the threshold of {100 * SINK:.0f} % is that of Gu et al. (arXiv 2410.10781).",
    ]
    title = f"{comparison.name}: attention sinks"
    return Table(f"{comparison.slug}-sinks", title, columns, rows, notes, folded=True)


def _on_first(read: Mapping[str, np.ndarray], tokens: int, value: str) -> list[float]:
    """The share of each head on positions below `tokens`, a power of two."""
    near, found = read["low"] < tokens, dict[tuple, float]()
    heads = [read[key][near].tolist() for key in ("layer", "head") if key in read]
    for *head, share in zip(*heads, read[value][near].tolist(), strict=True):
        found[*head,] = found.get((*head,), 0.0) + share
    return [*found.values()]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _rows(comparison: Comparison, name: str, value: str) -> list[Row]:
    """The mean over layers and heads of each model by range, and its lowest and highest seed."""
    rows = []
    for contestant in comparison.contestants:
        seeds = _seeds(contestant, name, value)
        for place in sorted(set.intersection(*map(set, seeds))) if seeds else []:
            shares = [seed[place] for seed in seeds]
            row = {"model": contestant.label, "low": place[0], "high": place[1], "mean": float(np.mean(shares))}
            rows.append({**row, "least": min(shares), "most": max(shares), "seeds": len(seeds)})
    return rows


def _named(found: Mapping[str, Sequence[Row]]) -> list[Row]:
    """The rows of all quantities, with their names."""
    return [{"quantity": name, **row} for name, rows in found.items() for row in rows]


def _draw(axes: Axes, rows: Sequence[Row], styles: Mapping[str, dict]) -> None:
    """Draw a curve for each model of `_rows`, with a band over seeds."""
    widest = dict[int, int]()  # the last range of an encoding with a window ends early
    for row in rows:
        widest[row["low"]] = max(row["high"], widest.get(row["low"], 0))
    lows = sorted(widest)
    for label, group in groupby(rows, lambda row: row["model"]):
        here, style = [*group], styles[label]
        at = [lows.index(row["low"]) for row in here]
        mean, least, most = 100 * np.array([[row[key] for row in here] for key in ("mean", "least", "most")])
        axes.plot(at, mean, label=wrapped(label), **style)
        draw_band(axes, at, least, most, style, alpha=0.18)
    ranges = [f"{low:,}" if low == widest[low] else f"{low:,}–{widest[low]:,}" for low in lows]
    axes.set_xticks(range(len(lows)), ranges, rotation=40, ha="right", rotation_mode="anchor")


def _seeds(contestant: Contestant, name: str, value: str) -> list[Ranges]:
    """For each seed that has the measurement, the mean of `value` over layers and heads by range."""
    found = []
    for run in contestant.runs.values():
        if read := run.measured.mechanisms.get(name):
            places = {low: read["low"] == low for low in dict.fromkeys(read["low"].tolist())}
            found.append(  # a layer with a window has a shorter last range
                {(low, int(read["high"][at].max())): float(read[value][at].mean()) for low, at in places.items()}
            )
    return found
