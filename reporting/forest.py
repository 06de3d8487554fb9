"""The forest plot: differences from the reference with their intervals and the margin of equivalence."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from .drawing import BLUE, GREEN, INK, NAME, TINT, VERMILION, Plot, rows_of_names, styled, wrapped, write_plot
from .scores import Score
from .tables import Row

MANY = 8  # more rows are drawn closer together
LINES = {  # of the intervals, by what they cover: name, height above the middle of the row, and style
    "both": ("seeds and clusters", 0.0, {"color": BLUE, "linewidth": 4}),
    "seeds": ("seeds", 0.2, {"color": VERMILION, "linewidth": 1.6, "linestyle": "--"}),
    "clusters": ("clusters", -0.2, {"color": GREEN, "linewidth": 1.6}),
}


def forest_rows(found: Sequence[Score], percent: bool) -> list[Row]:
    """A row for each difference, lowest first. `percent`: of the reference's nats/token, to share an axis."""
    rows = []
    places = list(dict.fromkeys((score.comparison.name, score.split) for score in found))
    for score in sorted(found, key=lambda score: _order(score, places)):
        if score.compared is None:
            continue
        against, difference = score.compared
        scale = 100 / difference.level if percent else 1.0
        place = f"{score.place}: " if percent and len(places) > 1 else ""
        row: Row = {"model": place + score.contestant.label, "against": against.label}
        row |= {"difference": scale * difference.value, "margin": scale * difference.margin}
        for basis in LINES:
            pair = getattr(difference, basis)
            row[basis] = pair and (scale * pair[0], scale * pair[1])
        rows.append(row)
    return rows


def lowest(rows: Sequence[Row], most: int) -> list[Row]:
    """The `most` rows with the lowest differences, in the same order."""
    kept = sorted(range(len(rows)), key=lambda place: rows[place]["difference"])[:most]
    return [rows[place] for place in sorted(kept)]


def _order(score: Score, places: Sequence[tuple[str, str]]) -> tuple[int, float]:
    share = 0.0 if score.difference is None else score.difference.value / score.difference.level
    return places.index((score.comparison.name, score.split)), share


@styled
def forest_plot(
    found: Sequence[Score], stem: Path, title: str, percent: bool = False, most: int | None = None
) -> Plot | None:
    """Differences from the reference; None where nothing is compared.

    Args:
        percent: as in `forest_rows`.
        most: largest number of rows; those with the highest differences are left out.
    """
    rows = every = forest_rows(found, percent)
    if not rows:
        return None
    if most is not None:
        rows = lowest(every, most)
    references = {row["against"] for row in rows}
    names = [row["model"] if len(references) == 1 else f"{row['model']} vs {row['against']}" for row in rows]
    edge = edge_of(rows)
    arrows = 1.5 if any(reach(row) > edge for row in rows) else 0.0
    width = max(7.2, 5.2 + 0.075 * min(max(map(len, names)), NAME)) + arrows
    figure = Figure(figsize=(width, 1.5 + (0.48 if len(rows) <= MANY else 0.3) * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    draw_forest(axes, rows, names, edge)
    unit = "% of its nats/token" if percent else "nats/token"
    to = rows[0]["against"] if len(references) == 1 else "the reference"
    axes.set_xlabel(wrapped(f"difference from {to}, {unit} (lower is better)", 70))
    figure.legend(handles=legend_of(rows), loc="outside upper center", ncols=4)
    shown = "" if len(rows) == len(every) else f" Shown: the {len(rows)} lowest of {len(every)} differences."
    return write_plot(figure, stem, rows, title, _caption(rows, edge) + shown)


def _caption(rows: Sequence[Row], edge: float) -> str:
    """What `draw_forest` draws for `rows`."""
    inside = [row for row in rows if reach(row) <= edge]
    partial = any(row[basis] is None for row in inside for basis in LINES)
    missing = "; one that is missing had too few of them" if partial else ""
    arrows = " Arrows: values outside the axis, with their intervals." if len(inside) < len(rows) else ""
    return (
        "Dot: difference from the reference; left of 0 is better. Bars and lines: 95 % intervals over seeds and "
        f"clusters together, over seeds, and over clusters (related test documents){missing}. Shaded: the margin "
        f"within which two encodings count as equal.{arrows}"
    )


def draw_forest(axes: Axes, rows: Sequence[Row], names: Sequence[str], edge: float) -> None:
    """Draw `rows` from top to bottom; one that goes further from 0 than `edge` becomes an arrow with its numbers."""
    gap = "\n" if len(rows) <= MANY else " "
    for at, row in enumerate(reversed(rows)):
        axes.fill_between([-row["margin"], row["margin"]], at - 0.42, at + 0.42, color=TINT, linewidth=0, zorder=0)
        if reach(row) > edge:
            low, high = row["both"] or row["clusters"] or row["seeds"] or (None, None)
            text = f"{'→' if row['difference'] > 0 else '←'} {row['difference']:+.3g}"
            text += "" if low is None else f"{gap}({low:+.3g} to {high:+.3g})"
            axes.text(1.01, at, text, transform=axes.get_yaxis_transform(), va="center", fontsize=9)
            continue
        for basis, (_, lift, style) in LINES.items():
            if row[basis]:
                axes.plot(row[basis], [at + lift] * 2, solid_capstyle="butt", zorder=2, **style)
        axes.plot(row["difference"], at, "o", color=INK, zorder=3)
    axes.axvline(0, color=INK, linewidth=0.8, zorder=1)
    rows_of_names(axes, names)


def legend_of(rows: Sequence[Row]) -> list[Line2D | Patch]:
    """Legend entries for the kinds of lines that `draw_forest` draws for `rows`."""
    shown = [(name, style) for basis, (name, _, style) in LINES.items() if any(row[basis] for row in rows)]
    lines = [Line2D([], [], label=name, **style) for name, style in shown]
    return [*lines, Patch(facecolor=TINT, label="margin of equivalence")]


def reach(row: Row) -> float:
    """How far a row goes from 0."""
    return max(map(abs, _ends(row)))


def _ends(row: Row) -> list[float]:
    """The difference, and both ends of its intervals."""
    return [row["difference"], *chain.from_iterable(row[basis] or () for basis in LINES)]


def edge_of(rows: Sequence[Row]) -> float:
    """How far the axis goes: one encoding that fails must not press all others into a point.

    Rows whose intervals are all below 0 are within it.
    """
    reaches = sorted(max(reach(row), row["margin"]) for row in rows)
    usual = max(each for each in reaches if each <= 5 * reaches[(len(rows) - 1) // 2])
    return max([usual, *(reach(row) for row in rows if max(_ends(row)) < 0)])
