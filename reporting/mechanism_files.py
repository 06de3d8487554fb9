"""Reads and checks the `mechanisms/*.csv` of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..core.checked_files import DAMAGE, NAME, figures, read_columns, wholes, why
from ..core.errors import UserError
from ..core.legends import Elements, Legend

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


def read_mechanism(path: Path, legend: Legend | None = None) -> dict[str, np.ndarray]:
    """Columns of a `mechanisms/*.csv`; none if it has no rows, or is neither a measurement nor has a legend.

    Raises:
        UserError: it does not have the columns or values that a plot needs.
    """
    name, elements = path.stem, legend and legend.elements
    try:
        if not NAME.fullmatch(name):
            raise ValueError("its name may only have letters, digits and ._-")
        if name in SHARES or name in NATS:
            return _measurements(path)
        if elements:
            return _portrait(path, elements)
        texts = read_columns(path)
        return _quantiles(texts) if legend and any(texts.values()) else {}
    except DAMAGE as error:
        raise UserError(f"{path} is damaged ({why(error)}): delete it and measure it again") from error


def _measurements(path: Path) -> dict[str, np.ndarray]:
    """Columns of a measurement: values over ranges of distances, positions or wavelengths."""
    shares, kinds = path.stem in SHARES, SHARES | NATS
    counts, values = ("low", "high") if shares else ("low", "high", "elements"), kinds[path.stem]
    texts = read_columns(path, (*counts, *values))
    found = {key: wholes(texts[key]) for key in (*counts, "layer", "head") if key in texts}
    found |= {key: figures(texts[key]) for key in values}
    valid, most = found["low"] <= found["high"], 1.001 if shares else LARGEST
    for key in values:
        valid &= (found[key] >= 0) & (found[key] < most)
    if not valid.all():
        kind = "share of attention" if "mass" in values else "value"
        row = [column[int(valid.argmin())] for column in texts.values()]
        raise ValueError(f"the row {','.join(row)[:60]} has no valid {kind}")
    if not shares and ((found["low"] < 1) | (found["elements"] < 1)).any():
        raise ValueError("it has a band without elements or wavelengths")
    return found if len(valid) else {}


def _portrait(path: Path, elements: Elements) -> dict[str, np.ndarray]:
    """Layer, head and value of each element of each head, which has the name of the file."""
    name = path.stem
    texts = read_columns(path, ("layer", "head", name))
    found = {key: wholes(texts[key]) for key in ("layer", "head")} | {name: _limited(texts[name])}
    if not len(found[name]):
        return {}
    heads = np.stack([found["layer"], found["head"]], 1)
    begins = np.flatnonzero(np.r_[True, (heads[1:] != heads[:-1]).any(1)])
    sizes = np.diff(begins, append=len(heads)).tolist()
    known = map(len, elements.facts.values())
    if len({*sizes, *known}) > 1 or len(np.unique(heads[begins], axis=0)) < len(begins):
        raise ValueError("its heads do not have the same number of elements each")
    return found


def _quantiles(texts: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
    """The numbers in columns of quantiles. Raises ValueError for other columns, or quantiles in descending order."""
    if {*texts} != {"layer", "head", *QUANTILES}:
        raise ValueError(f"its columns are {', '.join(texts)}, not layer, head, {', '.join(QUANTILES)}")
    found = {key: _limited(each) if key in QUANTILES else wholes(each) for key, each in texts.items()}
    values = np.stack([found[key] for key in QUANTILES], 1)
    if (descending := (np.diff(values) < 0).any(1)).any():
        raise ValueError(f"the quantiles {values[descending.argmax()].tolist()} are not in ascending order")
    return found


def _limited(texts: Sequence[str]) -> np.ndarray:
    """The numbers in `texts`, between -LARGEST and LARGEST. Raises ValueError if one is not finite."""
    return np.clip(figures(texts), -LARGEST, LARGEST)
