"""How every plot is drawn and written: one style, SVG for light and dark pages, and the CSV with its numbers."""

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.backends.backend_mixed import MixedModeRenderer
from matplotlib.backends.backend_svg import FigureCanvasSVG, RendererSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath
from matplotlib.ticker import FuncFormatter

from ..core.terminal import printable
from ..core.theme import COLOURS, LIGHT, themed
from .tables import Row, write_csv

INK, QUIET, TINT, PAPER = (LIGHT[name] for name in ("ink", "quiet", "tint", "paper"))
BLUE, VERMILION, GREEN = (LIGHT[name] for name in ("blue", "vermilion", "green"))
# Each colour has its own dash and marker, so that curves are distinct in black and white.
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 1)))
STYLES = tuple(
    {"color": light, "linestyle": dash, "marker": marker}
    for (light, _), dash, marker in zip(COLOURS.values(), DASHES, "os^DvPX", strict=True)
)
# Encodings that have the same style in every plot, in the order of STYLES. Other models take the styles that are left.
STYLED = ("nope", "path", "path_fox", "pope", "rope", "fox")
MOST = 150  # characters of a label
NAME = 50  # characters in a line of a name at the left of a plot
METRICS = "DejaVu Sans"  # comes with Matplotlib and is wider than the fonts that browsers use instead
FONTS = "'Segoe UI', 'Liberation Sans', Arial, sans-serif"

STYLE: Any = {
    "font.family": METRICS,
    "svg.fonttype": "none",  # text stays text: it can be searched, and the file is a third of the size
    "svg.hashsalt": "bearings",  # the same ids each time, so that the same records give the same file
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titley": 1.0,  # above the frame, because Matplotlib measures all ticks again to place it itself
    "axes.edgecolor": QUIET,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT["line"],
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.facecolor": PAPER,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}
styled = rc_context(STYLE)  # decorates functions that draw


@dataclass(frozen=True)
class Plot:
    """A plot that was written: `stem` plus .svg and .csv; `title` and `caption` describe what it shows."""

    stem: Path
    title: str
    caption: str

    @property
    def svg(self) -> Path:
        return self.stem.with_name(self.stem.name + ".svg")

    @property
    def csv(self) -> Path:
        return self.stem.with_name(self.stem.name + ".csv")


def literal(text: str) -> str:
    """`text` as a label that Matplotlib shows unchanged: dollar signs would begin a formula."""
    return printable(text if len(text) <= MOST else f"{text[:MOST]}…").replace("$", r"\$")


def wrapped(text: str, width: int = 30) -> str:
    """`literal`, in lines of at most `width` characters."""
    return literal("\n".join(textwrap.wrap(text, width)))


def axis_of_lengths(axes: Axes, trained: Iterable[int], above: int) -> None:
    """A logarithmic x-axis with a line at each trained length, whose label is `above` points above the frame."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.tick_params(axis="x", labelrotation=30)
    for length in trained:
        axes.axvline(length, color=QUIET, linewidth=1.2, linestyle=":")
        place = {"xy": (length, 1), "xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate(f"trained: {length:,}", xytext=(3, above), color=QUIET, fontsize=8.5, **place)


def rows_of_names(axes: Axes, names: Sequence[str]) -> None:
    """A row for each name, from top to bottom. The last is at a height of 0, the others at 1, 2 and so on."""
    axes.set_yticks(range(len(names)), [wrapped(name, NAME) for name in reversed(names)])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")


def draw_over_seeds(axes: Axes, at: Sequence[float], values: np.ndarray, label: str, style: Mapping) -> list[Row]:
    """Draw the mean over seeds of `values [S, N]`, and a band from the lowest to the highest. Returns the numbers."""
    mean, least, most = values.mean(0), values.min(0), values.max(0)
    axes.plot(at, mean, label=label, **style)
    draw_band(axes, at, least, most, style, alpha=0.15)
    figures = zip(mean.tolist(), least.tolist(), most.tolist(), strict=True)
    return [{"mean": one, "least": low, "most": high, "seeds": len(values)} for one, low, high in figures]


def draw_band(axes: Axes, at: Any, low: np.ndarray, high: np.ndarray, style: Mapping, alpha: float) -> None:
    """Shade the area from `low` to `high`, if there is one: with a single seed there is none."""
    if not np.array_equal(low, high):
        axes.fill_between(at, low, high, color=style["color"], alpha=alpha, linewidth=0)


def legend_above(figure: Figure, named: Mapping[str, Artist]) -> None:
    """A legend above the plot, of as many columns as fit."""
    longest = max(len(line) for label in named for line in label.splitlines())
    columns = int(12 * figure.get_figwidth() // (longest + 7))  # 12 characters per inch; 7 for a line and gaps
    figure.legend([*named.values()], [*named], loc="outside upper center", ncols=max(1, min(len(named), columns)))


def one_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend above the plot for all panels."""
    named = {}
    for axes in panels:
        for artist, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, artist)
    legend_above(figure, named)


class _Canvas(FigureCanvasSVG):
    """Places what is in a figure with a renderer that has the sizes of texts in earlier figures."""

    def get_renderer(self) -> RendererAgg:
        return _renderer_of_layouts(self.figure.dpi)


@cache
def _renderer_of_layouts(dpi: float) -> RendererAgg:
    return RendererAgg(1, 1, dpi)


class _Renderer(RendererSVG):
    """Draws as `RendererSVG` does, with the sizes of texts in earlier figures."""

    def get_text_width_height_descent(self, s: str, prop: FontProperties, ismath: Any) -> tuple[float, float, float]:
        return _size(s, prop, ismath)


@lru_cache(4096)
def _size(text: str, font: FontProperties, formula: Any) -> tuple[float, float, float]:
    return TextToPath().get_text_width_height_descent(text, font, formula)


def write_plot(figure: Figure, stem: Path, rows: Sequence[Row], title: str, caption: str) -> Plot:
    """Write the figure as SVG, and `rows` as the CSV of its numbers."""
    if (layout := figure.get_layout_engine()) is not None:
        _Canvas(figure)
        layout.execute(figure)
        figure.set_layout_engine("none")
    plot = Plot(stem, title, caption)
    write_svg(figure, plot.svg)
    write_csv(plot.csv, rows)
    return plot


def write_svg(figure: Figure, path: Path) -> None:
    """Write the figure as an SVG for light and dark pages."""
    path.write_text(themed(svg_of(figure)), encoding="utf-8", newline="\n")


def svg_of(figure: Figure) -> str:
    """The figure as SVG in light colours, without a date."""
    FigureCanvasSVG(figure)  # its renderer places what has no place yet
    file, (width, height), dpi = io.StringIO(), figure.get_size_inches(), figure.dpi
    figure.dpi = 72  # of SVG
    without = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    shapes = _Renderer(72 * width, 72 * height, file, image_dpi=round(dpi), metadata=without)
    renderer: Any = MixedModeRenderer(figure, width, height, dpi, shapes)
    figure.draw(renderer)
    renderer.finalize()
    return file.getvalue().replace(f"'{METRICS}'", FONTS)
