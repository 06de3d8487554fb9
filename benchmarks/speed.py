"""Draw the README's speed figure from benchmarks/results: training of whole models, and attention kernels.

python -m bearings.benchmarks.speed
"""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from ..core.checked_files import read_csv
from ..reporting.drawing import BLUE, INK, QUIET, styled, svg_of
from ..reporting.overview import write_figure

RESULTS = Path(__file__).parent / "results"
ASSETS = RESULTS.parents[1] / "docs" / "assets"
OURS = {"rope": "RoPE", "pope": "PoPE", "fox": "FoX", "path": "PaTH", "path_fox": "PaTH-FoX"}
THEIRS = {"nanogpt": "nanoGPT", "gpt2": "transformers, GPT-2", "llama": "transformers, Llama"}
LENGTH, WIDTH = "16384", "64"  # of the attention kernels shown: tokens, and channels of a head
# Rows of the kernels' CSV files: of this repository, and of others.
KERNELS = {"RoPE, fa4": "RoPE", "PoPE, auto": "PoPE", "FoX, triton": "FoX", "PaTH": "PaTH", "PaTH-FoX": "PaTH-FoX"}
OTHERS = (
    *("RoPE, compiled + cuDNN", "RoPE, compiled + FlashAttention-4", "NoPE, flex_attention", "PoPE-pytorch"),
    "FoX, flash-linear-attention",
    *("PaTH, flash-linear-attention", "PaTH-FoX, flash-linear-attention"),
)


@styled
def speed() -> str:
    """Tokens per second of models of GPT-2's size at their fastest, next to the time of attention, on one H200."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows = sorted(read_csv(RESULTS / "training_h200.csv"), key=lambda row: float(row["tokens_per_s"]))
    fastest = {(row["contender"], row["vocabulary"]): float(row["tokens_per_s"]) / 1000 for row in rows}
    bars = {name: (fastest[key, "50257"], True) for key, name in OURS.items()}
    bars |= {name: (fastest[key, "50304"], False) for key, name in THEIRS.items()}
    _draw(left, dict(sorted(bars.items(), key=lambda bar: bar[1][0])), "{:.0f}")
    shape = f"{float(rows[0]['parameters']) / 1e6:.0f}M parameters, {int(rows[0]['length']):,} tokens"
    left.set(xlabel="thousand tokens/s (higher is better)", title=f"Training: {shape}")
    times = {
        row["name"]: float(row["training_ratio"])
        for file in ("attention_h200.csv", "path_h200.csv")
        for row in read_csv(RESULTS / file)
        if (row["length"], row["head_dim"]) == (LENGTH, WIDTH)
    }
    bars = {title: (times[name], True) for name, title in KERNELS.items()}
    bars |= {name: (times[name], False) for name in OTHERS}
    _draw(right, dict(sorted(bars.items(), key=lambda bar: -bar[1][0])), "{:.1f}", start=1)
    right.axvline(1, color=INK, linewidth=0.8)
    right.set(xscale="log", xlabel="time relative to RoPE, compiled + cuDNN")
    right.set_title(f"Attention: {int(LENGTH):,} tokens, lower is better")
    right.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    right.set_xlim(left=0.7)
    kinds = Patch(color=BLUE, label="bearings"), Patch(color=QUIET, label="other implementations")
    figure.legend(handles=kinds, loc="outside upper center", ncols=2)
    return svg_of(figure)


def _draw(axes: Axes, bars: dict[str, tuple[float, bool]], form: str, start: float = 0) -> None:
    """A bar from `start` per name: its end, and whether it is of this repository."""
    for at, (end, ours) in enumerate(bars.values()):
        axes.barh(at, end - start, left=start, color=BLUE if ours else QUIET, height=0.7)
        place = {"xy": (max(end, start), at), "xytext": (3, 0), "textcoords": "offset points"}
        axes.annotate(form.format(end), va="center", fontsize=9, **place)
    axes.set_yticks(range(len(bars)), list(bars))
    for label, (_, ours) in zip(axes.get_yticklabels(), bars.values(), strict=True):
        label.set_color(INK if ours else QUIET)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.margins(x=0.14)


if __name__ == "__main__":
    for path in write_figure(ASSETS, "speed", speed()):
        print(f"wrote {path}")
