"""A page for each encoding, and the table of all encodings, from the classes themselves."""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from ..core.about import MECHANISMS, About, Paper
from ..core.options import options_of
from ..encodings.base import Encoding
from ..encodings.contract.state import State
from ..encodings.pattern import PATTERNS, LayerPattern
from ..session.configuration import build, choices_of
from ..session.settings import CONFIGS, declared
from .components import file_text, option_table, target_of
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


@dataclass(frozen=True)
class Documented:
    """An encoding in configs/encoding: its class, its description and its configuration."""

    name: str
    kind: type[Encoding]
    about: About
    block: Mapping[str, Any]

    @property
    def is_pattern(self) -> bool:
        """Whether it is a named pattern of layers, without a class of its own."""
        return self.kind is LayerPattern and self.name != "pattern"

    @cached_property
    def layers(self) -> list[Encoding]:
        """A layer of each kind, of the size that costs are given for."""
        made = build(self.block, "encoding", **SIZE)
        return [made.for_layer(layer) for layer in range(len(made.layers) if isinstance(made, LayerPattern) else 1)]

    def mean(self, of: Callable[[Encoding], float]) -> float:
        """A quantity of a layer, averaged over the layers."""
        return sum(map(of, self.layers)) / len(self.layers)


@cache
def documented() -> dict[str, Documented]:
    """The encodings in configs/encoding, by name, ordered by mechanism.

    Raises:
        ValueError: an encoding of this repository has no description.
    """
    found = []
    for name in choices_of("encoding"):
        block: Any = OmegaConf.to_container(OmegaConf.load(CONFIGS / "encoding" / f"{name}.yaml"), resolve=True)
        module, _, kind_name = block["_target_"].rpartition(".")
        kind = getattr(importlib.import_module(module), kind_name)
        about = PATTERNS.get(name) if kind is LayerPattern else vars(kind).get("about")
        if about is None:
            where = "PATTERNS in encodings/pattern.py" if kind is LayerPattern else f"the class {kind_name}"
            raise ValueError(f"encoding={name} has no description: add `About(...)` to {where}")
        found.append(Documented(name, kind, about, block))
    return {each.name: each for each in sorted(found, key=lambda each: MECHANISMS.index(each.about.mechanism))}


def summary_table(link: str = "") -> str:
    """The table of all encodings by mechanism; with `link`, names link to `link/NAME.md`."""
    rows = []
    for name, each in documented().items():
        paper = each.about.paper
        shown = f"[`{name}`]({link}{name}.md)" if link else f"`{name}`"
        source = f"[{paper.authors} {paper.year}]({paper.url})" if paper else ""
        rows.append([shown, each.about.mechanism, each.about.summary, source])
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
    lengths = (f"MFLOP per token, T = {length:,}" for length in LENGTHS)
    costs = table(
        ["`encoding=`", "parameters of a layer", "parameters of the input", *lengths, "cache"],
        ([f"`{name}`", *cost_cells(each), each.about.cache] for name, each in names.items()),
        numbers=range(1, 3 + len(LENGTHS)),
    )
    write(
        opened,
        "encodings/index.md",
        f"# Encodings\n\nSelect an encoding with `encoding=NAME`.\n\n{summary_table('./')}\n"
        f"## Cost\n\n{COST}\n\n{costs}\n"
        "To add your own, see [Add an encoding](../add-an-encoding.md).\n",
    )
    for name, each in names.items():
        write(opened, f"encodings/{name}.md", _page(opened, each))
    links = [f"* [{each.about.name}]({name}.md)" for name, each in names.items()]
    write(opened, "encodings/SUMMARY.md", "\n".join(["* [Overview](index.md)", *links]))


COST = (
    f"For a layer with {SIZE['heads']} heads of {SIZE['head_dim']} channels and width {SIZE['width']}. Parameters are "
    "those of the encoding only; those of the input exist once per model. If layers differ, the numbers are averages "
    "over the layers of the pattern. FLOPs are for the attention of one token in a forward pass over a row of T "
    "tokens, as `Encoding.attention_flops` counts them."
)


def _page(opened: Open, each: Documented) -> str:
    about = each.about
    parameters, of_input = cost_cells(each)[:2]
    cached = f"{each.mean(cache_bytes):,.0f} bytes per token and layer in bf16 on a CPU"
    rows = [
        ["mechanism", about.mechanism],
        *([["paper", _citation(about.paper)]] if about.paper else []),
        ["parameters", f"{parameters} per layer with {SIZE['heads']} heads of {SIZE['head_dim']} channels"],
        *([["parameters of the input", f"{of_input} for width {SIZE['width']}"]] if of_input != "0" else []),
        ["cache", f"{about.cache}: {cached}"],
        ["longer contexts", ", ".join(f"`{form}`" for form in _stretches(each)) or "no scaling of a trained model"],
        *([["longest context", f"`encoding.length` = {each.layers[0].longest:,}"]] if each.layers[0].longest else []),
        ["source", f"`configs/encoding/{each.name}.yaml`" if each.is_pattern else f"`{_source(each.kind)}`"],
    ]
    counts = ((length, mflops(each, length), mflops(documented()["nope"], length)) for length in LENGTHS)
    flops = table(
        ["row length T", "MFLOP per token", "relative to no encoding"],
        ([f"{length:,}", f"{count:.3f}", f"{count / plain:.2f}"] for length, count, plain in counts),
        numbers=(0, 1, 2),
    )
    options = options_of(declared(target_of("encoding", each.name), "encoding"))
    own = (
        f"## Layers\n\n{file_text('encoding', each.name)}\nTo change them, set `encoding.layers`; see "
        f"[{PATTERNS['pattern'].name}](pattern.md).\n"
        if each.is_pattern
        else f"## Options\n\n{option_table('encoding', options)}\n"
        f"## Class\n\n::: {each.kind.__module__}.{each.kind.__name__}\n    options:\n      members: false\n"
    )
    return (
        f"# {about.name}\n\n{about.summary[0].upper()}{about.summary[1:]}.\n\n"
        f"```sh\npython main.py encoding={each.name}\n```\n\n"
        f"## Score\n\n{equation(about.equation)}\n{paragraph(f'{about.terms} {SCALE}')}\n{_picture(opened, each)}"
        f"## Facts\n\n{table(['property', 'value'], rows)}\n## Cost\n\n{flops}\n{COST}\n\n{own}"
    )


def _picture(opened: Open, each: Documented) -> str:
    """The section with the picture; empty if the encoding does not distinguish equal queries and keys in one layer."""
    if each.about.mechanism in ("inputs", "layers"):
        return ""
    picture = plot(
        opened,
        f"encodings/{each.name}",
        f"Attention weights of {each.about.name} for equal queries and keys, as a matrix and by distance",
        lambda colour: attention_figure(each.kind, colour),
    )
    return f"## Picture\n\n{picture}\n\n{CAPTION}\n\n"


def _citation(paper: Paper) -> str:
    """Authors, year and title, with a link."""
    number = f", arXiv {paper.arxiv}" if paper.arxiv else ""
    return f"{paper.authors} ({paper.year}), [{paper.title}]({paper.url}){number}"


def _stretches(each: Documented) -> list[str]:
    """Methods for longer contexts that some layer supports."""
    return list(dict.fromkeys(form for layer in each.layers for form in layer.supported_stretches))


def _source(kind: type[Encoding]) -> str:
    return f"encodings/{Path(inspect.getfile(kind)).name}"


SCALE = r"Dot products are divided by $\sqrt{D}$, where $D$ is the number of channels of a head."
CAPTION = (
    "Attention of one head with initial parameters if all tokens have the same query and the same key, so that only "
    "the encoding distinguishes them. Hidden states are random. Left: weights by query and key, relative to the "
    f"largest of each query. Right: weights of the last query by distance. Both are averages over {DRAWS} random draws."
)


def mflops(each: Documented, length: int) -> float:
    """Millions of operations per token in the attention of a row of `length` tokens."""
    return each.mean(lambda layer: layer.attention_flops(length)) / length / 1e6


def cost_cells(each: Documented) -> list[str]:
    """Parameters of a layer and of the input, and a layer's MFLOP per token at LENGTHS."""
    of_input = next((module for layer in each.layers if (module := layer.input_encoding())), None)
    counts = each.mean(parameters_of), parameters_of(of_input)
    return [*(f"{count:,.0f}" for count in counts), *(f"{mflops(each, length):.3f}" for length in LENGTHS)]


def parameters_of(module: nn.Module | None) -> int:
    """Number of parameters; 0 without a module."""
    return 0 if module is None else sum(parameter.numel() for parameter in module.parameters())


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
