"""What each encoding does to attention or to the embeddings, drawn from the encoding itself."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, cast

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor

from ..encodings.base import Encoding
from ..encodings.contract.context import Context
from ..encodings.families.distance import DistanceBias, DistanceEmbedding
from ..encodings.families.inputs import PositionTable
from ..encodings.tpe import MovingAverage
from ..lightning_modules.portraits import probabilities
from .facts import Documented

WIDTH, HEADS = 64, 4
TOKENS, DRAWS = 64, 32  # of attention with random hidden states
LONG = 256  # tokens where distances or windows matter
OTHER = "#D55E00"  # for negative values, from Okabe and Ito's palette
DECAYS = (0.5, 0.8, 0.9, 0.97)
SAME = 1.001  # up to this ratio, weights count as equal
ALIKE = " All weights of a query are equal: with these parameters, the encoding does not distinguish positions."
EQUAL = "if all tokens have the same query and the same key, so that only the encoding distinguishes them"


class Picture(NamedTuple):
    """A figure for the main colour of a page, with its description and its caption."""

    draw: Callable[[str], Figure]
    alternative: str
    caption: str


def picture_of(each: Documented) -> Picture:
    """The picture that fits the encoding: by layer, of its input, by distance, or of attention."""
    layer = each.layers[0]
    if each.about.mechanism == "layers":
        return Picture(
            lambda colour: pattern_figure(each, colour),
            "attention weights of each layer",
            f"Attention weights of the layers of the pattern {EQUAL}, by query and key, relative to the largest of "
            "each query.",
        )
    if isinstance(each.input, MovingAverage):
        return Picture(
            moving_average_figure,
            "weights of past tokens in the moving average",
            f"Weights of past embeddings in the moving average. The decay starts at {DECAYS[0]} and is learned; the "
            "other curves are for larger decays.",
        )
    if isinstance(each.input, PositionTable):
        return Picture(
            lambda colour: table_figure(each.kind, colour),
            "the vectors of positions, and their similarity",
            f"Left: the vectors of the first {TOKENS} positions with initial parameters, for width {WIDTH}; the second "
            "colour is negative, and colours saturate at the largest 5 % of values. Right: cosine similarity of the "
            "last of these vectors with those before it.",
        )
    if isinstance(layer, DistanceBias | DistanceEmbedding):
        return Picture(
            lambda colour: distance_figure(type(layer), colour),
            "what is added to the score, and attention weights, by distance",
            _distance_caption(layer),
        )
    weights = attention(each.kind)[-1]
    uniform = weights.max() < SAME * weights.min()
    return Picture(
        lambda colour: attention_figure(each.kind, colour),
        "attention weights for equal queries and keys, as a matrix and by distance",
        f"Attention of one head with initial parameters {EQUAL}. Hidden states are random. Left: weights by query and "
        "key, relative to the largest of each query. Right: weights of the last query by distance. Both are averages "
        f"over {DRAWS} random draws.{ALIKE if uniform else ''}",
    )


def _distance_caption(layer: Encoding) -> str:
    added = "what is added to the score" if isinstance(layer, DistanceBias) else "what is added, for random queries"
    return (
        f"Left: {added}, by distance, for {HEADS} heads. Right: attention weights of the last of {LONG} queries "
        f"{EQUAL}. Parameters are initial ones; those that start at 0 are drawn from a normal distribution instead."
    )


@cache
@torch.inference_mode()
def attention(kind: type[Encoding]) -> Tensor:
    """Attention `[TOKENS, TOKENS]` of one head when all tokens share a query and a key, averaged over random draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoding = kind(width=WIDTH, heads=1, kv_heads=1, head_dim=WIDTH).eval()
        x = torch.randn(DRAWS, TOKENS, WIDTH)
        same = torch.randn(DRAWS, 1, 1, WIDTH).expand(DRAWS, TOKENS, 1, WIDTH)
        shared = encoding.shared_module()
        context = Context.of(encoding, same).sharing(None if shared is None else shared.eval())
        return probabilities(encoding, x, same, same, torch.zeros(DRAWS, TOKENS, 1, WIDTH), context)[0]


def attention_figure(kind: type[Encoding], colour: str) -> Figure:
    """The weights as a matrix, and those of the last query by distance."""
    weights = attention(kind)
    figure, (left, right) = _two_panels()
    image = _matrix(left, weights, colour)
    left.set(xlabel="key", ylabel="query")
    figure.colorbar(image, ax=left, fraction=0.046, label="weight / largest")
    right.plot(range(TOKENS), weights[-1].flip(0), color=colour)
    right.axhline(1 / TOKENS, color=colour, linestyle=":", linewidth=1)
    _labelled(right, "weight (dotted: uniform)", bottom=0)
    figure.tight_layout()
    return figure


@cache
@torch.inference_mode()
def by_distance(kind: type[DistanceBias | DistanceEmbedding]) -> tuple[Tensor, Tensor]:
    """What is added to the score of each head, and the weights of the last query, both `[HEADS, LONG]` by distance."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoding = kind(width=WIDTH, heads=HEADS, kv_heads=HEADS, head_dim=WIDTH).eval()
        for parameter in encoding.parameters():
            if not parameter.any():
                parameter.normal_(std=0.5)
        q = torch.randn(1, 1, HEADS, WIDTH).expand(1, LONG, HEADS, WIDTH)
        weights = probabilities(encoding, torch.zeros(1, LONG, WIDTH), q, torch.zeros_like(q), torch.zeros_like(q))
    distances = torch.arange(LONG)
    if isinstance(encoding, DistanceEmbedding):
        added = q[0, 0] @ encoding.embedding(distances).T.to(q.dtype) / WIDTH**0.5
    else:
        added = encoding.bias(distances)
    return added, weights[:, -1].flip(-1)


def distance_figure(kind: type[DistanceBias | DistanceEmbedding], colour: str) -> Figure:
    """What is added to the score, and attention weights, by distance; one line for each head."""
    figure, panels = _two_panels((1, 1))
    for panel, lines in zip(panels, by_distance(kind), strict=True):
        for head, line in enumerate(lines):
            panel.plot(range(LONG), line, color=colour, alpha=1 - 0.75 * head / HEADS, drawstyle="steps-mid")
        panel.set_xscale("symlog", base=2, linthresh=1)
        panel.set_xticks([0, 1, 4, 16, 64, LONG], ["0", "1", "4", "16", "64", str(LONG)])
    _labelled(panels[0], "added to the score")
    panels[1].set_yscale("log")
    _labelled(panels[1], "attention weight", bottom=max(1e-5, by_distance(kind)[1].min().item() / 2))
    figure.tight_layout()
    return figure


@torch.inference_mode()
def table_figure(kind: type[Encoding], colour: str) -> Figure:
    """The vectors of the first positions, and the similarity of the last with the others."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = cast("PositionTable", kind(width=WIDTH, heads=1, kv_heads=1, head_dim=WIDTH).input_encoding())
    vectors = module.rows(TOKENS, torch.zeros(1)).float()
    shown = vectors / vectors.abs().quantile(0.95)
    figure, (left, right) = _two_panels()
    shades = LinearSegmentedColormap.from_list("signed", [f"{OTHER}ff", f"{OTHER}00", f"{colour}00", f"{colour}ff"])
    image = left.imshow(shown.numpy(), cmap=shades, vmin=-1, vmax=1, interpolation="nearest", rasterized=True)
    left.set(xlabel="channel", ylabel="position")
    figure.colorbar(image, ax=left, fraction=0.046, label="relative value")
    similarity = torch.cosine_similarity(vectors[-1:], vectors, dim=1)
    right.plot(range(TOKENS), similarity.flip(0).numpy(), color=colour)
    _labelled(right, "cosine similarity", what="distance of the positions, tokens")
    figure.tight_layout()
    return figure


def moving_average_figure(colour: str) -> Figure:
    """Weights `decay^distance` for a few decays."""
    figure, panel = plt.subplots(figsize=(5.0, 3.0))
    for index, decay in enumerate(DECAYS):
        weights = [decay**distance for distance in range(TOKENS)]
        panel.plot(range(TOKENS), weights, color=colour, alpha=1 - 0.75 * index / len(DECAYS), label=f"decay {decay}")
    panel.legend(frameon=False)
    _labelled(panel, "weight in the sum", bottom=0, what="distance of the token")
    figure.tight_layout()
    return figure


@cache
@torch.inference_mode()
def pattern_attention(each: Documented) -> list[Tensor]:
    """Attention `[LONG, LONG]` of each layer of a pattern, for equal queries and keys."""
    found = []
    for layer in each.layers:
        same = torch.full((1, LONG, layer.heads, layer.head_dim), layer.head_dim**-0.25)  # whose score is 1
        x, v = torch.zeros(1, LONG, layer.width), torch.zeros_like(same)
        found.append(probabilities(layer.eval(), x, same, same, v, Context.of(layer, same))[0])
    return found


def pattern_figure(each: Documented, colour: str) -> Figure:
    """Attention of each layer of a pattern as a matrix, for equal queries and keys."""
    layers, columns = each.layers, min(4, len(each.layers))
    rows = -(-len(layers) // columns)
    figure, panels = plt.subplots(rows, columns, figsize=(1.9 * columns, 2.1 * rows), squeeze=False)
    for panel in panels.flat[len(layers) :]:
        panel.remove()
    for index, (panel, weights) in enumerate(zip(panels.flat, pattern_attention(each), strict=False)):
        _matrix(panel, weights, colour)
        window = "" if layers[index].window is None else f", window {layers[index].window}"
        panel.set_title(f"{index + 1}: {type(layers[index]).__name__}{window}", fontsize=8)
        panel.set(xticks=[0, LONG], yticks=[0, LONG])
    panels[0, 0].set(xlabel="key", ylabel="query")
    figure.tight_layout()
    return figure


def _two_panels(ratios: tuple[float, float] = (1, 1.3)) -> tuple[Figure, tuple[Axes, Axes]]:
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.0), width_ratios=ratios)
    return figure, (left, right)


def _matrix(panel: Axes, weights: Tensor, colour: str):
    """Weights relative to the largest of each query, from transparent to opaque: it fits a light and a dark page."""
    relative = (weights / weights.amax(-1, keepdim=True)).numpy()
    shades = LinearSegmentedColormap.from_list("shades", [f"{colour}00", f"{colour}ff"])
    return panel.imshow(relative, cmap=shades, vmin=0, vmax=1, interpolation="nearest", rasterized=True)


def _labelled(panel: Axes, label: str, bottom: float | None = None, what: str = "distance of the key, tokens") -> None:
    """Label a panel of lines."""
    panel.set(xlabel=what, ylabel=label, ylim=(bottom, None))
    panel.spines[["top", "right"]].set_visible(False)
