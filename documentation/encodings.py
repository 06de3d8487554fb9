"""A page for each encoding, and the table of all encodings, from the classes themselves."""

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.about import MECHANISMS, About
from ..core.options import options_of
from ..encodings.base import Encoding
from ..encodings.contract.state import State
from ..session.configuration import choices_of
from ..session.settings import declared
from .components import option_table, target_of
from .markdown import Open, equation, paragraph, plot, table, write
from .pictures import DRAWS, attention_figure

ROOT = Path(__file__).parent.parent
SIZE: dict[str, Any] = {
    "width": 512,
    "heads": 8,
    "kv_heads": 8,
    "head_dim": 64,
}  # of the layer that costs are given for
LENGTHS = (256, 1024, 4096)
BEGIN, END = "<!-- encodings -->\n", "<!-- /encodings -->\n"


@cache
def documented() -> dict[str, type[Encoding]]:
    """The encodings in configs/encoding that have an `about`, by name, ordered by mechanism.

    Raises:
        ValueError: an encoding of this repository has none.
    """
    found = {}
    for name in choices_of("encoding"):
        module, _, kind = target_of("encoding", name).rpartition(".")
        found[name] = getattr(importlib.import_module(module), kind)
        if "about" not in vars(found[name]):
            raise ValueError(f"encoding={name}: {kind} has no `about`: add `about = About(...)` to the class")
    return dict(sorted(found.items(), key=lambda item: MECHANISMS.index(about_of(item[1]).mechanism)))


def about_of(kind: type[Encoding]) -> About:
    """The documentation of an encoding, which `documented` has checked."""
    about = kind.about
    if about is None:
        raise ValueError(f"{kind.__name__} has no `about`")
    return about


def summary_table(link: str = "") -> str:
    """The table of all encodings by mechanism; with `link`, names link to `link/NAME.md`."""
    rows = []
    for name, kind in documented().items():
        about, paper = about_of(kind), about_of(kind).paper
        shown = f"[`{name}`]({link}{name}.md)" if link else f"`{name}`"
        rows.append([shown, about.mechanism, about.summary, f"[{paper.authors} {paper.year}]({paper.url})"])
    return table(["`encoding=`", "mechanism", "what it does", "paper"], rows)


def readme_with_table(readme: str) -> str:
    """README with the table of encodings between its markers.

    Raises:
        ValueError: a marker is missing.
    """
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md: the table of encodings needs the lines {BEGIN.strip()} and {END.strip()}")
    return head + begin + summary_table() + end + tail


def write_encodings(opened: Open) -> None:
    """Write `encodings/`: an index, and a page for each encoding."""
    names = documented()
    costs = table(
        ["`encoding=`", "parameters of a layer", *(f"MFLOP per token, T = {length:,}" for length in LENGTHS), "cache"],
        ([f"`{name}`", *cost_cells(kind), about_of(kind).cache] for name, kind in names.items()),
        numbers=range(1, 2 + len(LENGTHS)),
    )
    write(
        opened,
        "encodings/index.md",
        f"# Encodings\n\nSelect an encoding with `encoding=NAME`.\n\n{summary_table('./')}\n"
        f"## Cost\n\n{COST}\n\n{costs}\n"
        "To add your own, see [Add an encoding](../add-an-encoding.md).\n",
    )
    for name, kind in names.items():
        write(opened, f"encodings/{name}.md", _page(opened, name, kind))
    links = [f"* [{about_of(kind).name}]({name}.md)" for name, kind in names.items()]
    write(opened, "encodings/SUMMARY.md", "\n".join(["* [Overview](index.md)", *links]))


COST = (
    f"For a layer with {SIZE['heads']} heads of {SIZE['head_dim']} channels and width {SIZE['width']}. Parameters are "
    "those of the encoding only. FLOPs are for the attention of one token in a forward pass over a row of T tokens, as "
    "`Encoding.attention_flops` counts them."
)


def _page(opened: Open, name: str, kind: type[Encoding]) -> str:
    about = about_of(kind)
    paper, layer = about.paper, made(kind)
    rows = [
        ["mechanism", about.mechanism],
        ["paper", f"{paper.authors} ({paper.year}), [{paper.title}]({paper.url}), arXiv {paper.arxiv}"],
        ["parameters", f"{cost_cells(kind)[0]} per layer with {SIZE['heads']} heads of {SIZE['head_dim']} channels"],
        ["cache", f"{about.cache}: {cache_bytes(layer):,} bytes per token and layer in bf16 on a CPU"],
        ["longer contexts", ", ".join(f"`{form}`" for form in kind.stretches) or "no scaling of a trained model"],
        ["source", f"`encodings/{Path(inspect.getfile(kind)).name}`"],
    ]
    picture = plot(
        opened,
        f"encodings/{name}",
        f"Attention weights of {about.name} for equal queries and keys, as a matrix and by distance",
        lambda colour: attention_figure(kind, colour),
    )
    counts = ((length, mflops(layer, length), mflops(made(Encoding), length)) for length in LENGTHS)
    flops = table(
        ["row length T", "MFLOP per token", "relative to no encoding"],
        ([f"{length:,}", f"{count:.3f}", f"{count / plain:.2f}"] for length, count, plain in counts),
        numbers=(0, 1, 2),
    )
    options = options_of(declared(target_of("encoding", name), "encoding"))
    return (
        f"# {about.name}\n\n{about.summary[0].upper()}{about.summary[1:]}.\n\n"
        f"```sh\npython main.py encoding={name}\n```\n\n"
        f"## Score\n\n{equation(about.equation)}\n{paragraph(f'{about.terms} {SCALE}')}\n"
        f"## Picture\n\n{picture}\n\n{CAPTION}\n\n"
        f"## Facts\n\n{table(['property', 'value'], rows)}\n## Cost\n\n{flops}\n{COST}\n\n"
        f"## Options\n\n{option_table('encoding', options)}\n"
        f"## Class\n\n::: {kind.__module__}.{kind.__name__}\n    options:\n      members: false\n"
    )


SCALE = r"Dot products are divided by $\sqrt{D}$, where $D$ is the number of channels of a head."
CAPTION = (
    "Attention of one head with initial parameters if all tokens have the same query and the same key, so that only "
    "the encoding distinguishes them. Hidden states are random. Left: weights by query and key, relative to the "
    f"largest of each query. Right: weights of the last query by distance. Both are averages over {DRAWS} random draws."
)


def made(kind: type[Encoding]) -> Encoding:
    """A layer of the size that costs are given for."""
    return kind(**SIZE)


def mflops(layer: Encoding, length: int) -> float:
    """Millions of operations per token in the attention of a row of `length` tokens."""
    return layer.attention_flops(length) / length / 1e6


def cost_cells(kind: type[Encoding]) -> list[str]:
    """Parameters of a layer, and its MFLOP per token at LENGTHS."""
    layer = made(kind)
    parameters = sum(parameter.numel() for parameter in layer.parameters())
    return [f"{parameters:,}", *(f"{mflops(layer, length):.3f}" for length in LENGTHS)]


def cache_bytes(layer: Encoding) -> int:
    """Bytes that a state grows by with each token of its capacity, in bfloat16."""
    like, capacities = torch.zeros(1, dtype=torch.bfloat16), (4096, 8192)
    small, large = (sum(map(_bytes, _tensors(layer.new_state(1, size, like)))) for size in capacities)
    return (large - small) // (capacities[1] - capacities[0])


def _tensors(state: Any) -> Iterator[Tensor]:
    """All tensors of a state, including those of its parts."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, State) or hasattr(state, "__dataclass_fields__"):
        for field in fields(state):
            yield from _tensors(getattr(state, field.name))
    elif isinstance(state, tuple | list):
        for part in state:
            yield from _tensors(part)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
