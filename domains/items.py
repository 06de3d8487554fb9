"""Per-item results of a benchmark, which runs save and reports compare."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.checked_files import DAMAGE, NAME, SHA256, read_arrays, why
from ..core.errors import UserError
from ..core.whole_files import written_whole

COLUMN = "column."  # prefix of the columns' arrays in the file


@dataclass(frozen=True)
class Items:
    """Results of one benchmark, an item per question, variant or document.

    Attributes:
        names: names of the items, unique within each group, `[items]`.
        groups: group of each item, such as a paradigm of BLiMP, `[items]`.
        columns: results by name, each `[items]`: integers, or floats with NaN if undefined. Files hold float32.
        source: sha256 of the scored data. Results are comparable if their sources are equal.
    """

    names: np.ndarray
    groups: np.ndarray
    columns: Mapping[str, np.ndarray]
    source: str

    def are_of(self, other: "Items") -> bool:
        """Whether these are results on the same items as `other`, in the same order."""
        same = self.source == other.source and np.array_equal(self.names, other.names)
        return same and np.array_equal(self.groups, other.groups)

    def save(self, path: Path) -> None:
        """Write an .npz file atomically. Raises ValueError for inconsistent fields."""
        self._check()
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {
            f"{COLUMN}{name}": values.astype(np.float32 if values.dtype.kind == "f" else np.int64)
            for name, values in self.columns.items()
        }
        with written_whole(path, binary=True) as file:
            np.savez_compressed(file, names=self.names, groups=self.groups, source=np.array(self.source), **arrays)

    @classmethod
    def load(cls, path: Path) -> "Items":
        """Read a file written by `save`. Raises UserError if it is damaged."""
        try:
            arrays = read_arrays(path)
            names, groups, source = (arrays.pop(key, None) for key in ("names", "groups", "source"))
            if names is None or groups is None or source is None or source.ndim:
                raise ValueError("its names, groups or source are missing or of another type")
            if foreign := [key for key in arrays if not key.startswith(COLUMN)]:
                raise ValueError(f"it holds {foreign[0][:60]}, which is not a field of per-item results")
            columns = {
                key.removeprefix(COLUMN): values.astype(np.float64) if values.dtype.kind == "f" else values
                for key, values in arrays.items()
            }
            items = cls(names, groups, columns, str(source))
            items._check()
            return items
        except (FileNotFoundError, PermissionError):
            raise
        except DAMAGE as error:
            raise UserError(f"{path} is damaged ({why(error)}): delete it and compute it again") from error

    def _check(self) -> None:
        """Raise ValueError for inconsistent fields."""
        if not SHA256.fullmatch(self.source):
            raise ValueError(f"its source {self.source[:60]} is not a sha256")
        for field, array in (("names", self.names), ("groups", self.groups)):
            if array.dtype.kind != "U" or array.shape != self.names.shape[:1]:
                raise ValueError(f"its {field} do not hold one string for each item")
        if not len(self.names) or not self.columns:
            raise ValueError("it holds no items or no columns")
        if len({*zip(self.groups.tolist(), self.names.tolist(), strict=True)}) < len(self.names):
            raise ValueError("two items of a group have the same name")
        for name, values in self.columns.items():
            if not NAME.fullmatch(name):
                raise ValueError(f"{name[:60]} is not a valid column name")
            if values.dtype.kind not in "fi" or values.shape != self.names.shape:
                raise ValueError(f"its {name} are of {values.dtype} {values.shape}, for {len(self.names)} items")
            if np.isinf(values).any():
                raise ValueError(f"its {name} are not finite")
