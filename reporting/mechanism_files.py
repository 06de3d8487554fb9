"""Reads and checks the `mechanisms/*.csv` of runs."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from ..core.checked_files import DAMAGE, NAME, figure, read_csv, whole, why
from ..core.errors import UserError
from ..core.legends import Legend
from .finished import Run

# Measurements of any encoding, and their columns; the other files are portraits of one encoding.
SHARES = {
    "attention": ("mass",),
    "positions": ("mass", "uniform"),
    "rollout": ("mass", "uniform"),
    "locality": ("share",),
    "consistency": ("share",),
}
NATS = {"bands": ("plain", "unrotated", "removed")}
QUANTILES = ("q05", "q25", "q50", "q75", "q95")
LARGEST = 1e6  # absolute value; larger ones, such as biases of distant keys, are clipped


def read_mechanism(path: Path, legend: Legend | None = None) -> list[dict[str, str]]:
    """Rows of a `mechanisms/*.csv`. Files other than measurements are drawn only if they have a legend.

    Raises:
        UserError: it does not have the columns or values that a plot needs.
    """
    name, elements = path.stem, legend and legend.elements
    try:
        if not NAME.fullmatch(name):
            raise ValueError("its name may only have letters, digits and ._-")
        if name in SHARES or name in NATS:
            return _measurements(path)
        rows = read_csv(path, ("layer", "head", name) if elements else ())
        if elements:
            heads = [(whole(row["layer"]), whole(row["head"])) for row in rows]
            rows = [row | {name: str(_limited(row[name]))} for row in rows]
            sizes = [len([*group]) for _, group in groupby(heads)]
            known = map(len, elements.facts.values())
            if len({*sizes, *known}) > 1 or len({*heads}) < len(sizes):
                raise ValueError("its heads do not have the same number of elements each")
        elif legend and rows:
            quantiles_of(rows)
        return rows
    except DAMAGE as error:
        raise UserError(f"{path} is damaged ({why(error)}): delete it and measure it again") from error


def _measurements(path: Path) -> list[dict[str, str]]:
    """Rows of a measurement: values over ranges of distances, positions or wavelengths."""
    values, most = SHARES.get(path.stem, NATS.get(path.stem, ())), 1.001 if path.stem in SHARES else LARGEST
    rows = read_csv(path, ("low", "high", *values))
    different = {(row["low"], row["high"]) for row in rows}  # few, which all heads share
    ranges = {(low, high) for low, high in different if whole(low) <= whole(high)}
    for row in rows:
        if (row["low"], row["high"]) not in ranges or not all(0 <= figure(row[value]) < most for value in values):
            kind = "share of attention" if "mass" in values else "value"
            raise ValueError(f"the row {','.join(row.values())[:60]} has no valid {kind}")
    if path.stem in NATS and any(whole(row["low"]) < 1 or whole(row["elements"]) < 1 for row in rows):
        raise ValueError("it has a band without elements or wavelengths")
    return rows


def quantiles_of(rows: Sequence[Mapping[str, str]]) -> list[dict[str, float]]:
    """The numbers in rows of quantiles. Raises ValueError for other columns, or quantiles in descending order."""
    if {*rows[0]} != {"layer", "head", *QUANTILES}:
        raise ValueError(f"its columns are {', '.join(rows[0])}, not layer, head, {', '.join(QUANTILES)}")
    found = [{key: _limited(value) if key in QUANTILES else whole(value) for key, value in row.items()} for row in rows]
    for row in found:
        values = [row[key] for key in QUANTILES]
        if values != sorted(values):
            raise ValueError(f"the quantiles {values} are not in ascending order")
    return found


def _limited(text: str) -> float:
    """The number in `text`, between -LARGEST and LARGEST. Raises ValueError if it is not finite."""
    return min(max(figure(text), -LARGEST), LARGEST)


def mechanism_of(run: Run, name: str, legend: Legend | None = None) -> list[dict[str, str]]:
    """Rows of the run's `mechanisms/<name>.csv`; none if it does not exist."""
    path = run.directory.mechanisms / f"{name}.csv"
    return read_mechanism(path, legend) if path.exists() else []
