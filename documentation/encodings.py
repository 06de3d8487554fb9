"""A page for each encoding, and the tables of all encodings, from the classes themselves."""

import inspect
from collections.abc import Iterable
from pathlib import Path

from ..core.about import Mechanism, Paper
from ..encodings.base import Encoding
from ..encodings.pattern import PATTERNS
from ..studying.readme import with_table
from .components import file_text, option_table
from .facts import PROPERTIES, SIZE_TEXT, Documented, by_mechanism, documented
from .markdown import Open, equation, paragraph, plot, table, write
from .pictures import picture_of

LENGTHS = (256, 1024, 4096)
SHOWN = LENGTHS[1]  # the length in tables of all encodings
BEGIN, END = "<!-- encodings -->\n", "<!-- /encodings -->\n"
SENTENCES: dict[Mechanism, str] = {
    "causal mask only": "Nothing encodes positions. Order can be inferred because a token sees only earlier tokens.",
    "inputs": "Positions change the embeddings before the first layer. Attention itself does not use them.",
    "rotation": "Pairs of channels of queries and keys are rotated, so the score depends on the angle between them.",
    "channels": "Positions enter the dot product as channels: in addition to those of queries and keys, as factors "
    "of them, or instead of them.",
    "distance": "The distance between query and key changes the score: by a bias, an embedding or a factor.",
    "content": "Queries and keys determine positions or corrections of the score, together with the distance.",
    "reflections": "The tokens between key and query transform the key, depending on their content.",
    "decay": "The tokens between key and query reduce the score, depending on their content.",
    "linear attention": "Products of features replace the exponential of the score, so the cost per token is constant.",
    "layers": "Layers differ in their encoding or in their window.",
}
COST = (
    f"For a layer with {SIZE_TEXT}. Parameters are those of the encoding only; those of the input, and of modules that "
    "layers share, exist once per model. If layers differ, the numbers are averages over the layers of the pattern. "
    "FLOPs are for the attention of one token in a forward pass over a row of T tokens, as `Encoding.attention_flops` "
    "counts them. The cache is for bf16 on a CPU."
)


def title(mechanism: Mechanism) -> str:
    """A mechanism at the beginning of a sentence."""
    return mechanism[0].upper() + mechanism[1:]


def summary_table(encodings: Iterable[Documented], link: str = "") -> str:
    """A table of encodings; with `link`, names link to `link/NAME.md`."""
    rows = []
    for each in encodings:
        paper, once = each.about.paper, each.parameters_once
        source = f" ([{paper.authors} {paper.year}]({paper.url}))" if paper else ""
        rows.append(
            [
                f"[`{each.name}`]({link}{each.name}.md)" if link else f"`{each.name}`",
                f"**{each.about.name}**{source}: {each.about.summary}",
                f"{each.parameters:,.0f}" if not once else f"{once:,} (once)",
                f"{each.relative_flops(SHOWN):.2f}",
                ", ".join(each.properties),
            ]
        )
    return table(["`encoding=`", "what it does", "parameters", "FLOPs", "properties"], rows, numbers=(2, 3))


def legend() -> str:
    """What the columns of `summary_table` mean."""
    properties = "; ".join(f"*{name}*: {meaning}" for name, meaning in PROPERTIES.items())
    return (
        f"Parameters are per layer with {SIZE_TEXT}, or once per model. FLOPs are those of attention in rows of "
        f"{SHOWN:,} tokens, relative to `nope`. Properties: {properties}.\n"
    )


def readme_with_table(readme: str) -> str:
    """README with the table of encodings between its markers. Raises UserError if a marker is missing."""
    rows = [
        [f"**{title(mechanism)}**: {SENTENCES[mechanism]}", ", ".join(_name_with_paper(each) for each in encodings)]
        for mechanism, encodings in by_mechanism().items()
    ]
    shown = table(["mechanism", f"`encoding=` ({len(documented())}; links lead to the papers)"], rows)
    return with_table(readme, BEGIN, END, shown)


def _name_with_paper(each: Documented) -> str:
    paper = each.about.paper
    return f"[`{each.name}`]({paper.url})" if paper else f"`{each.name}`"


def write_encodings(opened: Open) -> None:
    """Write `encodings/`: an index, and a page for each encoding."""
    names, groups = documented(), by_mechanism()
    parts = [f"# Encodings\n\nSelect an encoding with `encoding=NAME`.\n\n{legend()}"]
    for mechanism, encodings in groups.items():
        parts.append(f"## {title(mechanism)}\n\n{SENTENCES[mechanism]}\n\n{summary_table(encodings, './')}")
    costs = table(
        ["`encoding=`", *(f"MFLOP per token, T = {length:,}" for length in LENGTHS), "bytes of cache per token"],
        (
            [f"`{name}`", *(f"{each.mflops(length):.3f}" for length in LENGTHS), f"{each.cache_bytes:,.0f}"]
            for name, each in names.items()
        ),
        numbers=range(1, 2 + len(LENGTHS)),
    )
    parts.append(
        f"## Cost\n\n{COST}\n\n{costs}\nTo add your own encoding, see [Add an encoding](../add-an-encoding.md). "
        "Methods without a name here are in [Encodings in the literature](../reference/literature.md).\n"
    )
    write(opened, "encodings/index.md", "---\nhide: [toc]\n---\n\n" + "\n".join(parts))
    links = ["* [Overview](index.md)"]
    for mechanism, encodings in groups.items():
        links += [f"* {title(mechanism)}", *(f"    * [{each.about.name}]({each.name}.md)" for each in encodings)]
    write(opened, "encodings/SUMMARY.md", "\n".join(links))
    for name, each in names.items():
        write(opened, f"encodings/{name}.md", _page(opened, each))


def _page(opened: Open, each: Documented) -> str:
    about = each.about
    flops = table(
        ["row length T", "MFLOP per token", "relative to no encoding"],
        ([f"{length:,}", f"{each.mflops(length):.3f}", f"{each.relative_flops(length):.2f}"] for length in LENGTHS),
        numbers=(0, 1, 2),
    )
    own = (
        f"## Layers\n\n{file_text('encoding', each.name)}\nTo change them, set `encoding.layers`; see "
        f"[{PATTERNS['pattern'].name}](pattern.md).\n"
        if each.is_pattern
        else f"## Options\n\n{option_table('encoding', each.options)}\n"
        f"## Class\n\n::: {each.kind.__module__}.{each.kind.__name__}\n    options:\n      members: false\n"
    )
    return (
        f"# {about.name}\n\n{title(about.mechanism)}: {about.summary}.\n\n"
        f"```sh\npython main.py encoding={each.name}\n```\n\n"
        f"## Score\n\n{equation(about.equation)}\n{paragraph(f'{about.terms} {SCALE}')}\n{_picture(opened, each)}"
        f"## Facts\n\n{table(['property', 'value'], _facts(each))}\n## Cost\n\n{flops}\n{COST}\n\n{own}"
    )


def _facts(each: Documented) -> list[list[str]]:
    about, once = each.about, each.parameters_once
    stretches = ", ".join(f"`{form}`" for form in each.stretches)
    longest, source = each.layers[0].longest, f"`{_source(each.kind)}`"
    shifted = "change the output" + (" of at least one layer" if len(each.layers) > 1 else "")
    rows = [
        ["mechanism", about.mechanism],
        ["paper", _citation(about.paper) if about.paper else ""],
        ["parameters", f"{each.parameters:,.0f} per layer with {SIZE_TEXT}"],
        ["parameters outside the layers", f"{once:,}, once per model" if once else ""],
        ["cache", f"{about.cache}: {each.cache_bytes:,.0f} bytes per token and layer in bf16 on a CPU"],
        ["shifted positions", "change nothing" if "relative" in each.properties else shifted],
        ["window", _window(each)],
        ["positions", "`encoding.clock`: [tokens or time](../how-to/time.md)" if "medium" in each.properties else ""],
        ["longer contexts", f"[`task.stretches`](../how-to/long-contexts.md): {stretches}" if stretches else "none"],
        ["longest context", "" if longest is None else _longest(each, longest)],
        ["source", f"`configs/encoding/{each.name}.yaml`" if each.is_pattern else source],
    ]
    return [row for row in rows if row[1]]


def _window(each: Documented) -> str:
    if "window" not in each.properties:
        return "not supported"
    key = "window" if "window" in each.options else "layers"
    return f"`encoding.{key}`: [windows and layer patterns](../how-to/windows.md)"


def _longest(each: Documented, longest: int) -> str:
    return f"`encoding.length` = {longest:,}" if "length" in each.options else f"{longest:,} tokens"


def _picture(opened: Open, each: Documented) -> str:
    drawn = picture_of(each)
    picture = plot(opened, f"encodings/{each.name}", f"{each.about.name}: {drawn.alternative}", drawn.draw)
    return f"## Picture\n\n{picture}\n\n{drawn.caption}\n\n"


def _citation(paper: Paper) -> str:
    """Authors, year and title, with a link."""
    number = f", arXiv {paper.arxiv}" if paper.arxiv else ""
    return f"{paper.authors} ({paper.year}), [{paper.title}]({paper.url}){number}"


def _source(kind: type[Encoding]) -> str:
    return f"encodings/{Path(inspect.getfile(kind)).name}"


SCALE = r"Dot products are divided by $\sqrt{D}$, where $D$ is the number of channels of a head."
