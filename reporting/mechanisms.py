"""Plots of what trained encodings look like inside, from the `mechanisms/*.csv` of runs."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ..core.checked_files import DAMAGE, NAME, figure, read_csv, whole, why
from ..core.errors import UserError
from .plots import Plot, literal, tidy, write_plot
from .study import Comparison, Contestant, Run, file_name

# What is told beside the axis of a known quantity; others bear their name.
QUANTITIES = {
    "beta": "beta of each token: 0 leaves keys as they are, 1 projects, 2 reflects",
    "forget_gate": "forget gate of each token: 1 forgets nothing, 0 all",
}

QUANTILES = ("q05", "q25", "q50", "q75", "q95")
LARGEST = 1e6  # of what is drawn
MOST_HEADS = 1500  # in a picture: Matplotlib draws no more than 2^16 pixels
MANY = 1000  # marks, from which a picture of them is smaller than their shapes


def attention_plot(comparison: Comparison, styles: Mapping[str, dict], folder: Path) -> Plot | None:
    """Share of attention against distance, mean over layers and heads; None where nobody looked."""
    figure, rows = Figure(figsize=(6.4, 3.9), layout="constrained"), []
    axes = figure.add_subplot()
    for contestant in comparison.contestants:
        seeds = [_by_distance(read) for run in contestant.runs.values() if (read := _read(run, "attention"))]
        if not seeds:
            continue
        places = sorted(set.intersection(*map(set, seeds)))
        shares = np.array([[seed[place] for place in places] for seed in seeds])
        style = styles[contestant.label]
        at = np.arange(len(places))
        axes.plot(at, shares.mean(0), label=literal(contestant.label), linewidth=1.6, markersize=5, **style)
        axes.fill_between(at, shares.min(0), shares.max(0), color=style["color"], alpha=0.18, linewidth=0)
        axes.set_xticks(at, [f"{low}" if low == high else f"{low}-{high}" for low, high in places], rotation=40)
        for place, share in zip(places, shares.T, strict=True):
            row = {"model": contestant.label, "low": place[0], "high": place[1], "mean": float(share.mean())}
            rows.append({**row, "least": float(share.min()), "most": float(share.max()), "seeds": len(seeds)})
    if not rows:
        return None
    axes.set(xlabel="tokens between key and query", ylabel="share of attention", ylim=(0, None))
    axes.legend(frameon=False, fontsize=9)
    tidy(axes)
    caption = (
        "Where attention goes, by distance, in a few documents of the validation split: mean over layers, heads and "
        "the queries of the second half. Band: from the lowest to the highest seed."
    )
    title = f"{comparison.title}: attention against distance"
    return write_plot(figure, folder / f"{comparison.slug}-attention", rows, title, caption)


def portrait_plots(contestant: Contestant, comparison: Comparison, folder: Path) -> list[Plot]:
    """What the contestant's encoding has learnt, such as delta, beta, forget gates, from the lowest seed that tells."""
    files = [file for run in contestant.runs.values() for file in run.directory.mechanisms.glob("*.csv")]
    found = []
    for name in sorted({file.stem for file in files} - {"attention"}):
        for seed in sorted(contestant.runs):
            read = _read(contestant.runs[seed], name)
            heads = {(row.get("layer"), row.get("head")) for row in read}
            if read and ("q50" in read[0] or name == "delta") and len(heads) <= MOST_HEADS:
                draw = _delta_plot if name == "delta" else partial(_quantiles_plot, name)
                found.append(draw(read, contestant.runs[seed], contestant, comparison, folder))
                break
    return found


def _delta_plot(
    read: Sequence[Mapping[str, str]], run: Run, contestant: Contestant, comparison: Comparison, folder: Path
) -> Plot:
    """PoPE's delta by head and frequency."""
    names = list(dict.fromkeys((int(row["layer"]), int(row["head"])) for row in read))
    deltas = np.array([float(row["delta"]) for row in read]).reshape(len(names), -1)
    settings, width = run.config["encoding"], deltas.shape[1]
    clamped = settings.get("clamp", "clamp") == "clamp"
    frozen = (deltas > 0) | (deltas < -2 * math.pi) if clamped else np.zeros(deltas.shape, bool)
    seen = np.clip(deltas, -2 * math.pi, 0) if settings.get("clamp") != "periodic" else -np.mod(-deltas, 2 * math.pi)
    figure = Figure(figsize=(7.2, 1.4 + 0.24 * len(deltas)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(seen, cmap="cividis", vmin=-2 * math.pi, vmax=0, aspect="auto", interpolation="nearest")
    for colour, width_pt in (("white", 2.6), ("#D55E00", 1.2)):  # edged, to be seen on dark and light
        style = {"linestyle": "", "marker": "x", "color": colour, "markeredgewidth": width_pt}
        axes.plot(*np.nonzero(frozen)[::-1], markersize=5, rasterized=frozen.sum() > MANY, **style)
    axes.set_xlabel("element c of the head, from the highest frequency to the lowest")
    axes.set_yticks(range(len(names)), [f"layer {layer}, head {head}" for layer, head in names], fontsize=8)
    bar = figure.colorbar(image, ax=axes, ticks=[-2 * math.pi, -math.pi, 0], label="delta, radians")
    bar.ax.set_yticklabels(["-2π", "-π", "0"])
    rows = [
        {
            "layer": layer,
            "head": head,
            "element": c,
            "theta": settings.get("base", 10000.0) ** (-c / width),
            "delta": float(deltas[i, c]),
            "frozen": bool(frozen[i, c]),
        }
        for i, (layer, head) in enumerate(names)
        for c in range(width)
    ]
    caption = (
        f"The learnt phase offset of seed {run.seed}; -2π and 0 are the same phase. Crosses: outside the clamp, where "
        f"no gradient passes, {100 * frozen.mean():.1f} % of all."
    )
    title = f"{comparison.title}: delta of {contestant.label}"
    return write_plot(figure, folder / f"{comparison.slug}-delta-{file_name(contestant.label)}", rows, title, caption)


def _quantiles_plot(
    quantity: str,
    read: Sequence[Mapping[str, str]],
    run: Run,
    contestant: Contestant,
    comparison: Comparison,
    folder: Path,
) -> Plot:
    """A bar a head: the middle half of its tokens, nine tenths as a line, the median as a dot."""
    rows = _quantiles(read)
    figure = Figure(figsize=(6.4, 1.2 + 0.17 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    at, drawn = range(len(rows)), {key: [row[key] for row in rows] for key in QUANTILES}
    axes.hlines(at, drawn["q05"], drawn["q95"], color="#56B4E9", linewidth=1.2)
    axes.hlines(at, drawn["q25"], drawn["q75"], color="#0072B2", linewidth=4)
    axes.plot(drawn["q50"], at, "o", color="black", markersize=3)
    axes.set_yticks(at, [f"layer {row['layer']}, head {row['head']}" for row in rows], fontsize=7)
    name = quantity.replace("_", " ")
    axes.set(xlabel=QUANTITIES.get(quantity, literal(f"{name} of each token")), ylim=(len(rows) - 0.4, -0.6))
    tidy(axes)
    caption = (
        f"Seed {run.seed}, in a few documents of the validation split. Bar: half of the tokens; line: nine tenths; "
        "dot: the median."
    )
    title = f"{comparison.title}: {name} of {contestant.label}"
    stem = folder / f"{comparison.slug}-{file_name(quantity)}-{file_name(contestant.label)}"
    return write_plot(figure, stem, rows, title, caption)


def _by_distance(rows: Sequence[Mapping[str, str]]) -> dict[tuple[int, int], float]:
    shares: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        shares.setdefault((int(row["low"]), int(row["high"])), []).append(float(row["mass"]))
    return {place: float(np.mean(each)) for place, each in shares.items()}


def read_mechanism(path: Path) -> list[dict[str, str]]:
    """Rows of a `mechanisms/*.csv`. Raises UserError where those that are drawn cannot be.

    An encoding of one's own may keep other columns, which are not.
    """
    try:
        if not NAME.fullmatch(path.stem):
            raise ValueError("its name is to consist of letters, digits and ._-")
        rows = read_csv(
            path, {"attention": ("low", "high", "mass"), "delta": ("layer", "head", "delta")}.get(path.stem, ())
        )
        if path.stem == "attention":
            for row in rows:
                if whole(row["low"]) > whole(row["high"]) or not 0 <= figure(row["mass"]) < 1.001:
                    raise ValueError(f"the row {','.join(row.values())[:60]} is no share of attention")
        elif path.stem == "delta":
            heads = [(whole(row["layer"]), whole(row["head"])) for row in rows if abs(figure(row["delta"])) < LARGEST]
            sizes = [len([*group]) for _, group in groupby(heads)]
            if len({*sizes}) > 1 or len({*heads}) < len(sizes) or len(heads) < len(rows):
                raise ValueError("its heads do not have the same number of elements each")
        elif rows and "q50" in rows[0]:
            _quantiles(rows)
        return rows
    except DAMAGE as error:
        raise UserError(f"{path} is damaged ({why(error)}): delete it and measure it again") from error


def _quantiles(rows: Sequence[Mapping[str, str]]) -> list[dict[str, float]]:
    """The figures of rows of quantiles. Raises ValueError for other columns, or quantiles that fall."""
    if {*rows[0]} != {"layer", "head", *QUANTILES}:
        raise ValueError(f"its columns are {', '.join(rows[0])}, not layer, head, {', '.join(QUANTILES)}")
    found = [{key: figure(value) if key in QUANTILES else whole(value) for key, value in row.items()} for row in rows]
    for row in found:
        values = [row[key] for key in QUANTILES]
        if values != sorted(values) or max(map(abs, values)) > LARGEST:
            raise ValueError(f"the quantiles {values} are not in ascending order")
    return found


def _read(run: Run, name: str) -> list[dict[str, str]]:
    path = run.directory.mechanisms / f"{name}.csv"
    return read_mechanism(path) if path.exists() else []
