"""What a model loses without each band of its rotations' frequencies, as a plot."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from .contestant import Contestant
from .drawing import Plot, axis_of_lengths, draw_over_seeds, one_legend, styled, wrapped, write_plot
from .mechanisms import SOURCE
from .study import Comparison

TITLES = {"unrotated": "rotation stopped: content remains", "removed": "channels removed"}


@styled
def bands_plot(comparison: Comparison, styles: Mapping[str, dict], folder: Path) -> Plot | None:
    """Increase of the loss without each band of frequencies, by wavelength; None if no run has measured it."""
    found = {}
    for contestant in comparison.contestants:
        seeds = _seeds(contestant)
        if places := sorted(set.intersection(*map(set, seeds))) if seeds else []:
            found[contestant.label] = seeds, places
    if not found:
        return None
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    panels, rows = figure.subplots(1, 2, sharey=True, sharex=True), []
    for label, (seeds, places) in found.items():
        at = [np.sqrt(low * high) for low, high in places]
        for axes, measured in zip(panels, TITLES, strict=True):
            values = np.array([[seed[place][measured] for place in places] for seed in seeds])
            drawn = draw_over_seeds(axes, at, values, wrapped(label), styles[label])
            for place, figures in zip(places, drawn, strict=True):
                row = {"quantity": measured, "model": label, "low": place[0], "high": place[1]}
                rows.append({**row, "elements": int(seeds[0][place]["elements"]), **figures})
    trained = sorted(comparison.values("data.length"))
    for axes, title in zip(panels, TITLES.values(), strict=True):
        axis_of_lengths(axes, trained, above=-10)
        axes.set_title(title)
        axes.set_xlabel("wavelength, positions")
    panels[0].set_ylabel("increase of the loss, nats/token")
    one_legend(figure, panels)
    caption = (
        f"Increase of the loss {SOURCE} without one band of frequencies in all layers, by wavelength (positions for a "
        "full turn; a band's ends differ by a factor of 4). Left: the band's channels are not rotated, so they carry "
        "content but no position. Right: they do not contribute to scores, so both are missing. Dotted: trained "
        "length; slower channels make less than a turn. Shaded: lowest to highest seed."
    )
    title = f"{comparison.name}: loss without bands of frequencies"
    return write_plot(figure, folder / f"{comparison.slug}-bands", rows, title, caption)


def _seeds(contestant: Contestant) -> list[dict[tuple[int, int], dict[str, float]]]:
    """For each seed that has the measurement, the increases of the loss by band, and its number of elements."""
    found = []
    for run in contestant.runs.values():
        if read := run.measured.mechanisms.get("bands"):
            values = {"elements": read["elements"], **{name: read[name] - read["plain"] for name in TITLES}}
            ranges = zip(read["low"].tolist(), read["high"].tolist(), strict=True)
            found.append(
                {place: {name: each[at].item() for name, each in values.items()} for at, place in enumerate(ranges)}
            )
    return found
