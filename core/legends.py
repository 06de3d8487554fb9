"""What a plot says of something that an encoding has learnt: the encoding gives it, the run's manifest keeps it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError


@dataclass(frozen=True)
class Elements:
    """How the elements of heads are drawn: a picture with a row for each head and a column for each element.

    Attributes:
        axis: label of the columns.
        ticks: of the colours, by label; values below the least or above the greatest have its colour.
        facts: what is known of each element, such as its frequency, by name; a column each in the plot's CSV.
        note: a clause for the caption.
        period: values that differ by it mean the same; None if no such do.
        frozen: why a value outside the ticks gets no gradient, for the caption. The picture then marks each with a
            cross. None where it gets one.

    Raises:
        ValueError: fewer than two ticks, or a period that is not above 0.
    """

    axis: str
    ticks: dict[str, float]
    facts: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""
    period: float | None = None
    frozen: str | None = None

    def __post_init__(self):
        if len({*self.ticks.values()}) < 2:
            raise ValueError(f"ticks={self.ticks}: at least two different values are needed")
        if self.period is not None and not self.period > 0:
            raise ValueError(f"period={self.period}: it must be above 0, or None")


@dataclass(frozen=True)
class Legend:
    """What a plot of a portrait says.

    Attributes:
        axis: label of the values, with their unit and what they mean.
        caption: what they are, as a noun phrase; may be empty.
        elements: how they are drawn where they are those of elements. None where they are of tokens: a bar for each
            head then shows their quantiles.
    """

    axis: str
    caption: str = ""
    elements: Elements | None = None


LEGENDS = TypeAdapter(dict[str, Legend])


def as_facts(legends: Mapping[str, Legend]) -> dict[str, Any]:
    """Legends as a manifest holds them under `portraits`."""
    return {name: asdict(legend) for name, legend in legends.items()}


def legends_of(manifest: Mapping[str, Any]) -> dict[str, Legend]:
    """The legends in a manifest, by name. Raises ValueError where they are of another form than `as_facts` gives."""
    try:
        return LEGENDS.validate_python(manifest.get("portraits", {}))
    except ValidationError as error:
        raise ValueError(f"portraits: {error.errors()[0]['msg']}") from error
