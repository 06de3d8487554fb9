"""Pieces of Markdown that the generated pages share: tables, equations, plots in two colour schemes."""

import io
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from html import escape
from typing import IO, Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from latex2mathml.converter import convert
from matplotlib.figure import Figure

Open = Callable[[str, str], AbstractContextManager[IO]]  # opens a page or picture of the site by path and mode
SCHEMES = {"light": ("#1f2328", "#0072B2"), "dark": ("#e2e4e9", "#56B4E9")}  # text and main colour, Okabe and Ito's
INLINE = re.compile(r"\$([^$]+)\$|`([^`]+)`")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A Markdown table; the columns `numbers` are aligned to the right."""
    lines = [
        f"| {' | '.join(heads)} |",
        "|" + "|".join("---:" if column in numbers else "---" for column in range(len(heads))) + "|",
        *(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"


def equation(latex: str) -> str:
    """A displayed equation as MathML, which browsers show without a script."""
    return f'<div class="equation" tabindex="0">{convert(latex, display="block")}</div>\n'


def paragraph(text: str) -> str:
    """`text` as an HTML paragraph, each `$...$` as MathML. Markdown would begin a new paragraph at each equation."""
    parts = (convert(latex) if latex else f"<code>{escape(code)}</code>" for latex, code in INLINE.findall(text))
    plain = INLINE.split(text)[:: INLINE.groups + 1]
    return (
        "<p>" + "".join(f"{escape(before)}{part}" for before, part in zip(plain, [*parts, ""], strict=True)) + "</p>\n"
    )


UNBUILT = "> `make docs` builds this page with its tables.\n\n"  # for readers of the source


def write(opened: Open, path: str, text: str) -> None:
    """Write a page."""
    with opened(path, "w") as file:
        file.write(text.replace(UNBUILT, "").rstrip() + "\n")


def plot(opened: Open, path: str, alternative: str, draw: Callable[[str], Figure]) -> str:
    """Write `path-light.svg` and `path-dark.svg`. Returns the Markdown that shows the one that fits the colour scheme.

    Args:
        path: below the folder of the site.
        alternative: text for readers who do not see the picture.
        draw: makes the figure, given the main colour.
    """
    parts, name = [], path.rpartition("/")[2]
    for scheme, (text, main) in SCHEMES.items():
        style: Any = {
            **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), text),
            **{"svg.hashsalt": path, "svg.fonttype": "path", "font.size": 9, "savefig.transparent": True},
        }
        with matplotlib.rc_context(style):
            figure, file = draw(main), io.BytesIO()
            figure.savefig(file, format="svg", metadata={"Date": None})
            plt.close(figure)
        with opened(f"{path}-{scheme}.svg", "wb") as target:
            target.write(file.getvalue())
        parts.append(f"![{alternative}]({name}-{scheme}.svg#only-{scheme})")
    return "".join(parts)
