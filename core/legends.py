"""Labels for plots of what an encoding has learned. The encoding defines them, and the run's manifest keeps them."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Elements:
    """How the elements of heads are drawn: an image with one row per head and one column per element.

    Attributes:
        axis: label of the columns.
        ticks: values on the colour scale, by label; values outside their range have the colour of the nearest tick.
        facts: further columns of the plot's CSV, by name, such as the frequency of each element.
        note: a clause for the caption.
        period: values that differ by a multiple of it are equivalent; None if there is no period.
        frozen: for the caption, why values outside the ticks get no gradient; the plot marks them with crosses. None if
            they get one.

    Raises:
        ValueError: there are fewer than two ticks, or the period is not above 0.
    """

    axis: str
    ticks: dict[str, float]
    facts: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""
    period: float | None = None
    frozen: str | None = None

    def __post_init__(self):
        if len({*self.ticks.values()}) < 2:
            raise ValueError(f"ticks={self.ticks}: give at least two different values")
        if self.period is not None and not self.period > 0:
            raise ValueError(f"period={self.period}: it must be above 0, or None")


@dataclass(frozen=True)
class Legend:
    """The labels of a plot of a portrait.

    Attributes:
        axis: label of the values, with unit and meaning.
        caption: a noun phrase that describes the values; may be empty.
        elements: how the values are drawn if there is one per element. None if there is one per token: a bar for each
            head then shows quantiles.
    """

    axis: str
    caption: str = ""
    elements: Elements | None = None
