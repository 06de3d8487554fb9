"""Plots results of `benchmarks/attention.py`: time relative to the baseline by length, one panel per head dimension.

python -m bearings.benchmarks.plot attention.csv attention.png
"""

import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"rope": "#000000", "nope": "#999999", "pope": "#0072B2", "fox": "#D55E00"}  # Okabe and Ito palette
MARKERS = "osD^vPX*<>"


def plot(source: Path, target: Path) -> None:
    """Read the CSV `source` and write the picture `target`."""
    with open(source, newline="") as file:
        rows = list(csv.DictReader(file))
    widths = sorted({int(row["head_dim"]) for row in rows})
    figure, axes = plt.subplots(2, len(widths), figsize=(5 * len(widths), 8), sharex=True, sharey="row", squeeze=False)
    for column, width in enumerate(widths):
        for row_of_axes, key in enumerate(("forward_ratio", "training_ratio")):
            axis = axes[row_of_axes][column]
            names = dict.fromkeys(row["name"] for row in rows)
            for number, name in enumerate(names):
                own = [row for row in rows if row["name"] == name and int(row["head_dim"]) == width]
                if own:
                    lengths, ratios = zip(*sorted((int(row["length"]), float(row[key])) for row in own), strict=True)
                    style = {"color": COLOURS[own[0]["encoding"]], "marker": MARKERS[number % len(MARKERS)]}
                    axis.plot(lengths, ratios, label=name, linewidth=1, markersize=5, **style)
            axis.set(xscale="log", yscale="log", title=f"{key.removesuffix('_ratio')}, D = {width}")
            axis.set_xscale("log", base=2)
            axis.axhline(1, color="#cccccc", linewidth=0.8, zorder=0)
    axes[0][0].set_ylabel("time / RoPE compiled + cuDNN")
    axes[1][0].set_ylabel("time / RoPE compiled + cuDNN")
    for axis in axes[-1]:
        axis.set_xlabel("tokens")
    axes[0][-1].legend(bbox_to_anchor=(1.02, 1), loc="upper left", fontsize=8, frameon=False)
    figure.suptitle(f"{rows[0]['device']}, bfloat16, causal", y=0.95)
    figure.savefig(target, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    plot(*map(Path, sys.argv[1:]))
