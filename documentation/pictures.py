"""What an encoding does to attention, drawn from the encoding itself."""

from functools import cache

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from ..encodings.base import Encoding
from ..lightning_modules.portraits import probabilities

TOKENS, WIDTH, DRAWS = 64, 64, 32


@cache
@torch.inference_mode()
def attention(kind: type[Encoding]) -> torch.Tensor:
    """Attention `[TOKENS, TOKENS]` of one head when all tokens share a query and a key, averaged over random draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoding = kind(width=WIDTH, heads=kind.heads_per_query, kv_heads=1, head_dim=WIDTH).eval()
        x = torch.randn(DRAWS, TOKENS, WIDTH)
        same = torch.randn(DRAWS, 1, 1, WIDTH).expand(DRAWS, TOKENS, 1, WIDTH)
        return probabilities(encoding, x, same, same, torch.zeros(DRAWS, TOKENS, 1, WIDTH))[0]


def attention_figure(kind: type[Encoding], colour: str) -> Figure:
    """The weights as a matrix, and those of the last query by distance."""
    weights = attention(kind)
    relative = (weights / weights.amax(-1, keepdim=True)).numpy()
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.0), width_ratios=(1, 1.3))
    # From transparent to opaque, so that the picture fits a light and a dark page.
    shades = LinearSegmentedColormap.from_list("shades", [f"{colour}00", f"{colour}ff"])
    image = left.imshow(relative, cmap=shades, vmin=0, vmax=1, interpolation="nearest", rasterized=True)
    left.set(xlabel="key", ylabel="query")
    figure.colorbar(image, ax=left, fraction=0.046, label="weight / largest")
    right.plot(range(TOKENS), weights[-1].flip(0), color=colour)
    right.axhline(1 / TOKENS, color=colour, linestyle=":", linewidth=1)
    right.set(xlabel="distance of the key, tokens", ylabel="weight (dotted: uniform)", ylim=(0, None))
    right.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure
