"""The gallery: a sample of each domain by each encoding, from the records of kept studies."""

import base64
from collections.abc import Iterator
from html import escape

from ..reporting.reading import read_study
from ..reporting.samples import Sample, samples_of
from ..studying.catalogue import STUDIES, studies
from .facts import documented
from .markdown import Open, write

# The study that each domain's samples come from: the largest models and longest training that are kept.
SHOWN = {
    "Bach chorales": "jsb",
    "Piano performances": "maestro_60k",
    "Genome": "genome",
    "Text": "wikitext2",
    "Indirect indexing": "indirect_indexing_long",
    "Flip-flop": "flip_flop",
}
INTRODUCTION = """# Gallery

One sample of each domain by each encoding. Samples are drawn at the end of training, from the model with the lowest
seed, and none was selected by hand. Audio is synthesised with sine waves. In DNA, each base has a colour. Samples of
diagnostic tasks show a question with the model's answer.

`make docs` writes this page from `studies/*/runs.parquet`. To see samples of your own runs, use
`python main.py task=report`.
"""
NAMES = "ACGTN"
SUFFIXES = {"image/png": ".png", "image/svg+xml": ".svg", "audio/flac": ".flac"}


def write_gallery(opened: Open) -> None:
    """Write `gallery.md`, and pictures and sounds below `gallery/`."""
    parts = [INTRODUCTION]
    for title, name in SHOWN.items():
        if name in studies():
            parts.append(f"## {title}\n\nFrom the study [{name}](results/{name}.md).\n")
            parts.extend(_cards(opened, name))
    write(opened, "gallery.md", "\n".join(parts))


def _cards(opened: Open, name: str) -> Iterator[str]:
    """The samples of a study's first comparison, one for each encoding."""
    seen = set()
    for contestant in read_study([STUDIES / name]).comparisons[0].contestants:
        encoding = contestant.encoding
        if encoding not in seen and (samples := samples_of(contestant)):
            seen.add(encoding)
            yield _card(opened, f"{name}-{encoding}", documented()[encoding].about.name, samples[0])


def _card(opened: Open, stem: str, title: str, sample: Sample) -> str:
    """A sample as HTML without blank lines, which would end the block in Markdown."""
    lines = ['<figure class="sample" markdown="0">', f"<figcaption>{title}</figcaption>"]
    if sample.image:
        place = _stored(opened, f"gallery/{stem}", sample.image)
        lines.append(f'<img src="{place}" alt="Piano roll of the sample by {title}" loading="lazy">')
    if sample.audio:
        place = _stored(opened, f"gallery/{stem}", sample.audio)
        lines.append(f'<audio controls preload="none" src="{place}" aria-label="Sample by {title}"></audio>')
    if sample.bases:
        rows = ("".join(f"<span>{''.join(map(_base, group))}</span> " for group in line) for line in sample.bases[:10])
        lines.append(f'<pre class="bases" tabindex="0">{"&#10;".join(rows)}</pre>')
    if sample.text is not None:
        text = escape(sample.text.strip()[:1500]).replace("\n", "&#10;")
        lines.append(f"<pre>{text}</pre>")
    return "\n".join([*lines, "</figure>", ""])


def _base(letter: str) -> str:
    return f'<b class="base-{letter}">{letter}</b>' if letter in NAMES else escape(letter)


def _stored(opened: Open, stem: str, data: str) -> str:
    """Write the content of a base64 data URI to a file of the site, with the suffix of its type. Returns its path."""
    kind, _, content = data.removeprefix("data:").partition(";base64,")
    path = stem + SUFFIXES[kind]
    with opened(path, "wb") as file:
        file.write(base64.b64decode(content))
    return path
