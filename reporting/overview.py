"""The figures of the repository's README: differences next to a sample, and nats/token against compute."""

import io
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pretty_midi
from matplotlib.figure import Figure

from ..core.theme import LIGHT, Theme, themed
from ..domains import pianoroll
from .contestant import Contestant
from .drawing import FONTS, legend_above, styled, svg_of
from .forest import draw_forest, forest_rows, legend_of, reach
from .plots import cost_rows, draw_cost, styles_of
from .scores import Score
from .tables import Row

THEMES: dict[str, Theme] = {"": "light", "-dark": "dark"}  # by the ending of a file's name
BARS = 4  # of the sample
LEFT, RIGHT, HEAD, GAP = 460, 420, 30, 12  # pixels: widths of the two halves, height of their headings, between them


def write_figure(folder: Path, name: str, svg: str) -> list[Path]:
    """Write `svg`, drawn in light colours, as `name.svg` and `name-dark.svg`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}{ending}.svg" for ending in THEMES]
    for path, theme in zip(paths, THEMES.values(), strict=True):
        path.write_text(themed(svg, theme), encoding="utf-8", newline="\n")
    return paths


@styled
def overview(found: Sequence[Score], titles: Mapping[str, str], sampled: Contestant) -> str:
    """A forest plot of differences from the reference, next to the first bars that a model wrote.

    Args:
        found: scores of several domains.
        titles: how to name each domain.
        sampled: the model whose first chorale is shown.
    """
    rows: list[Row] = []
    for domain, title in titles.items():
        here = [score for score in found if score.comparison.domain == domain]
        for row in forest_rows(here, percent=True):
            label = f"{title}: {row['model'].rpartition(': ')[2]}"
            rows.append({**row, "model": label, "seeds": None, "clusters": None})
    figure = Figure(figsize=(5.6, 5.7), layout="constrained")
    axes = figure.add_subplot()
    draw_forest(axes, rows, [row["model"] for row in rows], edge=max(map(reach, rows)))
    axes.set_xlabel(f"difference from {rows[0]['against']}, % of its nats/token (lower is better)")
    lines = legend_of(rows)
    lines[0].set_label("95 % interval")
    figure.legend(handles=lines, loc="outside upper center", ncols=2)
    score, seed = _first_score(sampled)
    axis = pianoroll.QUARTERS._replace(row=2 * pianoroll.QUARTERS.group)
    roll = pianoroll.as_svg(score, axis, "light", RIGHT, BARS * axis.group)
    halves = (
        (0, LEFT, "Difference from the reference encoding", svg_of(figure)),
        (LEFT + GAP, RIGHT, f"{BARS} bars written by {sampled.label} (seed {seed})", roll),
    )
    width, height, parts = LEFT + GAP + RIGHT, 0.0, []
    for x, wide, heading, svg in halves:
        across, down = map(float, svg.partition('viewBox="0 0 ')[2].partition('"')[0].split())
        inner = svg[svg.index("<svg") + 4 :]
        inner = re.sub(r' (width|height)="[^"]*"', "", inner[: inner.index(">")]) + inner[inner.index(">") :]
        parts.append(f'<text x="{x + 8}" y="20" font-weight="600" fill="{LIGHT["ink"]}">{heading}</text>')
        parts.append(f'<svg x="{x}" y="{HEAD}" width="{wide}" height="{wide * down / across:.0f}"{inner}')
        height = max(height, HEAD + wide * down / across)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
        f'viewBox="0 0 {width} {height:.0f}" font-family="{FONTS}" font-size="14">'
        f'<rect width="100%" height="100%" fill="{LIGHT["paper"]}"/>{"".join(parts)}</svg>\n'
    )


@styled
def results(found: Sequence[Score], titles: Mapping[str, str], named: Collection[str]) -> str:
    """Nats/token against compute, a panel per domain; without models whose loss is far above the others.

    Args:
        found: scores of several domains.
        titles: how to name each domain.
        named: encodings with a marker of their own; the others are grey points.
    """
    figure = Figure(figsize=(9.2, 2 * 2.5), layout="constrained")
    panels = figure.subplots(2, (len(titles) + 1) // 2, squeeze=False).flat
    (styles,), marked = styles_of([{*named}]), {}
    for axes, (domain, title) in zip(panels, titles.items(), strict=False):
        here = [score for score in found if score.comparison.domain == domain]
        above = draw_cost(axes, cost_rows(here), styles)
        axes.set_title(title)
        handles, labels = axes.get_legend_handles_labels()
        marked |= {label: handle for label, handle in zip(labels, handles, strict=True) if label not in above}
    figure.supxlabel("compute, MFLOP per token (forward and backward)", fontsize=10)
    figure.supylabel("nats/token (lower is better)", fontsize=10)
    legend_above(figure, dict(sorted(marked.items())))
    return svg_of(figure)


def _first_score(contestant: Contestant) -> tuple[pretty_midi.PrettyMIDI, int]:
    """The first MIDI file of the lowest seed that has one, and the seed. Raises LookupError where none has."""
    for seed in sorted(contestant.runs):
        for path in sorted((contestant.runs[seed].path / "samples").glob("*.mid")):
            return pretty_midi.PrettyMIDI(io.BytesIO(path.read_bytes())), seed
    raise LookupError(f"no run of {contestant.label} has kept a sample")
