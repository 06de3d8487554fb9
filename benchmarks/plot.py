"""Plots the results of `benchmarks/attention.py`: time relative to the baseline by length, a panel per head dimension.

python -m bearings.benchmarks.plot attention.csv attention.svg
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..core.checked_files import read_csv
from ..reporting.drawing import QUIET, styled, write_svg
from ..reporting.plots import styles_of

MARKERS = "osD^vPX*<>"
PASSES = {"forward_ratio": "forward", "training_ratio": "forward and backward"}


@styled
def plot(source: Path, target: Path) -> None:
    """Read the CSV `source`, write the SVG `target`."""
    rows = read_csv(source)
    widths = sorted({int(row["head_dim"]) for row in rows})
    figure = Figure(figsize=(3.2 + 3.6 * len(widths), 7.6), layout="constrained")
    panels = figure.subplots(2, len(widths), sharex=True, sharey="row", squeeze=False)
    names, handles = list(dict.fromkeys(row["name"] for row in rows)), {}
    (styles,) = styles_of([{row["encoding"] for row in rows}])
    for column, width in enumerate(widths):
        for axes, (key, title) in zip(panels[:, column], PASSES.items(), strict=True):
            for number, name in enumerate(names):
                own = [row for row in rows if row["name"] == name and int(row["head_dim"]) == width]
                if own:
                    lengths, ratios = zip(*sorted((int(row["length"]), float(row[key])) for row in own), strict=True)
                    style = {"color": styles[own[0]["encoding"]]["color"], "marker": MARKERS[number % len(MARKERS)]}
                    (handles[name],) = axes.plot(lengths, ratios, linewidth=1, **style)
            axes.set(xscale="log", yscale="log", title=f"{title}, head size {width}")
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.tick_params(axis="x", labelrotation=30)
            axes.axhline(1, color=QUIET, linewidth=0.8, zorder=0)
    figure.supxlabel("sequence length, tokens", fontsize=10)
    figure.supylabel("time relative to RoPE, compiled + cuDNN", fontsize=10)
    figure.legend(handles.values(), handles, loc="outside right upper", fontsize=8)
    figure.suptitle(f"{rows[0]['device']}, bfloat16, causal", fontsize=11)
    write_svg(figure, target)


if __name__ == "__main__":
    plot(*map(Path, sys.argv[1:]))
