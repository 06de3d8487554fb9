"""What the documentation says about an encoding: its mechanism, its equation and its paper."""

from dataclasses import dataclass
from typing import Literal, get_args

Mechanism = Literal[
    "causal mask only",
    "inputs",
    "rotation",
    "channels",
    "distance",
    "content",
    "reflections",
    "decay",
    "linear attention",
    "layers",
]
MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)  # in the order of the documentation


@dataclass(frozen=True)
class Paper:
    """A publication, on arXiv if it is there.

    Attributes:
        authors: in short form: "Su et al.".
        arxiv: number, "2104.09864".
        address: of a publication that is not on arXiv.
    """

    authors: str
    year: int
    title: str
    arxiv: str = ""
    address: str = ""

    @property
    def url(self) -> str:
        """Address of its abstract, or of the publication if it is not on arXiv."""
        return f"https://arxiv.org/abs/{self.arxiv}" if self.arxiv else self.address


@dataclass(frozen=True)
class About:
    """An encoding's entry in the documentation.

    Attributes:
        name: as the paper writes it.
        summary: one clause for tables, without a full stop.
        equation: of the score between query t and key s, in LaTeX.
        terms: what the symbols of the equation mean, in Markdown.
        cache: what is kept of each past token while decoding, in Markdown.
        paper: None for an encoding without one.
    """

    name: str
    mechanism: Mechanism
    summary: str
    equation: str
    terms: str
    cache: str
    paper: Paper | None
