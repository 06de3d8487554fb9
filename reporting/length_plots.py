"""The plot of other context lengths: nats/token by context and by position."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from .drawing import Plot, axis_of_lengths, draw_over_seeds, styled, wrapped, write_plot
from .legible import legible_lengths, which
from .lengths import (
    PLAIN,
    form_of,
    forms_of_all,
    longest_context,
    nats_by_context,
    nats_by_position,
    trained_lengths,
)
from .plots import styles_of
from .tables import Row

FORMS = {
    **{PLAIN: "-", "yarn": "--", "ntk": "-.", "interpolation": ":"},
    **{"dynamic_ntk": (0, (6, 1, 1, 1, 1, 1)), "llama3": (0, (8, 3)), "longrope": (0, (1, 4))},
    **{"power": (0, (4, 1)), "truncated": (0, (2, 1)), "lm_infinite": (0, (4, 1, 1, 1)), "window": (0, (2, 2))},
}
UNKNOWN = (0, (3, 1, 1, 1))  # of a form that only another version of this project has
PANELS = ("context", "tokens before")  # what a row of the CSV is by


@styled
def lengths_plot(
    every: Mapping[str, Sequence[Sequence[Row]]],
    styles: Mapping[str, dict],
    stem: Path,
    title: str,
    references: Sequence[str] = (),
    claimed: Sequence[str] = (),
) -> Plot:
    """Nats/token by context length, and by tokens before the target in the longest.

    Args:
        every: as `found` in `lengths_table`.
        references: models that are always shown, if there are too many for one plot.
        claimed: models in the claims of a study, which are always shown too.
    """
    found = legible_lengths(every, [*references, *claimed])
    if not found.keys() <= styles.keys():
        (styles,) = styles_of([found.keys()])
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = panels = figure.subplots(1, 2)
    longest, trained = longest_context(found), trained_lengths(found)
    rows = _draw(panels, found, styles, longest)
    seen = f"tokens before the target, context of {longest:,}" if longest else "no context was scored for every model"
    for axes, quantity, label in zip(panels, PANELS, ("context length, tokens", seen), strict=True):
        if here := [row for row in rows if row["quantity"] == quantity]:
            axes.set_ylim(_limits(here))
        axis_of_lengths(axes, trained, above=3)
        axes.set(xlabel=label, ylabel="nats/token")
    _add_perplexities(right)
    figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    caption = (
        "Dotted: the trained length. Left: the same targets in each context. Right: all targets of the longest context "
        "that every model was scored in, by the tokens before them; a point stands for the range up to the next. Band: "
        "lowest to highest seed. "
    )
    if any(row["stretch"] != PLAIN for row in rows):
        caption += "Hollow markers: extended after training (task.stretches). "
    elif any(forms_of_all(seeds) != [PLAIN] for seeds in every.values()):
        caption += "Extensions (task.stretches) are left out. "
    caption += "Each panel has its own scale."
    if any(row["mean"] > left.get_ylim()[1] for row in rows if row["quantity"] == PANELS[0]):
        caption += " Curves that leave the left one are in the table."
    if len(found) < len(every):
        caption += f" {which(len(found), len(every), claimed=bool(claimed))}"
    return write_plot(figure, stem, rows, title, caption)


def _draw(
    panels: Sequence[Axes], found: Mapping[str, Sequence[Sequence[Row]]], styles: Mapping[str, dict], longest: int
) -> list[Row]:
    """Draw a curve for each model and extension in both panels, with a band over seeds. Returns their numbers."""
    rows: list[Row] = []
    for model, seeds in found.items():
        for form in forms_of_all(seeds):
            style = {**styles[model], **_style_of(form)}
            label = wrapped(model if form == PLAIN else f"{model}, {form}")
            by_context = [nats_by_context(seed, form) for seed in seeds]
            by_position = [nats_by_position(seed, form, longest) for seed in seeds]
            for axes, quantity, curves in zip(panels, PANELS, (by_context, by_position), strict=True):
                places = sorted(set.intersection(*map(set, curves)))
                values = np.array([[curve[place] for place in places] for curve in curves])
                at = [place[0] if isinstance(place, tuple) else place for place in places]
                for place, figures in zip(at, draw_over_seeds(axes, at, values, label, style), strict=True):
                    under = place if quantity == PANELS[0] else longest
                    row = {"model": model, "stretch": form, "quantity": quantity, "context": under, "tokens": place}
                    rows.append(row | figures)
    return rows


def _style_of(form: str) -> dict[str, Any]:
    """The line of a form, thinner for each in FORMS, and hollow markers for those other than PLAIN."""
    kind = form_of(form)
    width = max(0.6, 1.8 - 0.2 * [*FORMS, kind].index(kind))
    fill = "full" if form == PLAIN else "none"
    return {
        "linestyle": FORMS.get(kind, UNKNOWN),
        "linewidth": width,
        "markersize": 3 + 1.5 * width,
        "fillstyle": fill,
    }


def _add_perplexities(axes: Axes) -> None:
    """Add an axis of perplexities at the right of a panel of nats/token."""
    perplexities = axes.secondary_yaxis("right", functions=(np.exp, lambda at: np.log(np.maximum(at, 1e-9))))
    perplexities.set_ylabel("perplexity")
    low, high = axes.get_ylim()
    wide = high - low > np.log(20)  # equal steps of the perplexity would then crowd at the top
    perplexities.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if wide else MaxNLocator(5))
    perplexities.yaxis.set_major_formatter("{x:g}")


def _limits(rows: Sequence[Row]) -> tuple[float, float]:
    """The limits of a panel of `lengths_plot`: a model that fails far beyond the others must not flatten them."""
    middle = [row["mean"] for row in rows if row["stretch"] == PLAIN] or [row["mean"] for row in rows]
    least, most = min(row["least"] for row in rows), max(row["most"] for row in rows)
    top = min(most, 2.5 * float(np.median(middle)))
    room = 0.05 * (top - least) or 0.01
    return least - room, top + room
