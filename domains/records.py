"""Per-document scores of a split, which runs save and reports read."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..core.checked_files import DAMAGE, read_arrays, why
from ..core.errors import UserError
from ..core.whole_files import written_whole
from .store import Store

# NumPy dtype kinds and numbers of dimensions of the arrays in a file of records.
FIELDS = {
    **{"documents": ("U", 1), "unit_names": ("U", 1), "group_names": ("U", 1), "store": ("U", 0)},
    **{"clusters": ("iu", 1), "tokens": ("iu", 1), "correct": ("iu", 1), "group_tokens": ("iu", 2)},
    **{"nats": ("f", 1), "units": ("f", 2), "group_nats": ("f", 2)},
}
PER_DOCUMENT = ("documents", "clusters", "nats", "tokens", "units", "correct", "group_nats", "group_tokens")
ROUNDED = 1e-5  # relative tolerance for sums of nats that were saved in float32


@dataclass(frozen=True)
class Records:
    """Per-document scores of one split.

    Attributes:
        documents: names of the documents.
        clusters: integer labels, equal for dependent documents.
        nats: summed negative log-likelihood, `[documents]`.
        tokens: number of targets, `[documents]`.
        units: natural units, `[documents, len(unit_names)]`.
        store: sha256 of the scored token store.
        correct: number of targets that were the most likely token, `[documents]`; -1 if not measured.
        group_nats, group_tokens: nats and targets per group of targets, `[documents, len(group_names)]`.
    """

    documents: np.ndarray
    clusters: np.ndarray
    nats: np.ndarray
    tokens: np.ndarray
    units: np.ndarray
    unit_names: tuple[str, ...]
    store: str
    correct: np.ndarray
    group_nats: np.ndarray
    group_tokens: np.ndarray
    group_names: tuple[str, ...]

    @property
    def nats_per_token(self) -> float:
        return float(self.nats.sum() / self.tokens.sum())

    @property
    def bits_per_unit(self) -> dict[str, float]:
        """Bits per natural unit, by unit; NaN if the documents contain none of it."""
        bits, counts = float(self.nats.sum()) / math.log(2), self.units.sum(0).tolist()
        return {name: bits / n if n else math.nan for name, n in zip(self.unit_names, counts, strict=True)}

    @property
    def accuracy(self) -> float | None:
        """Share of targets that were the most likely token; None if not measured."""
        return None if (self.correct < 0).any() else float(self.correct.sum() / self.tokens.sum())

    @property
    def group_nats_per_token(self) -> dict[str, float]:
        """Nats per token of each group that occurs in the split."""
        nats, tokens = self.group_nats.sum(0), self.group_tokens.sum(0)
        return {name: float(nats[i] / tokens[i]) for i, name in enumerate(self.group_names) if tokens[i]}

    def where(self, chosen: np.ndarray) -> "Records":
        """The records of the documents for which `chosen [documents]` is true."""
        arrays = {name: getattr(self, name) for name in PER_DOCUMENT}
        return replace(self, **{name: array[chosen] for name, array in arrays.items()})

    def save(self, path: Path) -> None:
        """Write an .npz file atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        names = {key: np.array(getattr(self, key), str) for key in ("unit_names", "group_names")}
        with written_whole(path, binary=True) as file:
            np.savez_compressed(file, **{**vars(self), **names})

    @classmethod
    def load(cls, path: Path, remedy: str = "delete it and score the split again with task=evaluate") -> "Records":
        """Read a file written by `save`. Raises UserError with the `remedy` if it is damaged."""
        try:
            fields = read_arrays(path)
            for name, (kinds, dimensions) in FIELDS.items():
                if name not in fields or fields[name].dtype.kind not in kinds or fields[name].ndim != dimensions:
                    raise ValueError(f"its {name} are missing or of another type")
            if unknown := fields.keys() - FIELDS.keys():
                raise ValueError(f"it holds {min(unknown)[:60]}, which is not a field of records")
            names = {key: tuple(fields[key].tolist()) for key in ("unit_names", "group_names")}
            fields |= {key: fields[key].astype(np.float64) for key in ("nats", "group_nats")}  # or float32
            records = cls(**{**fields, **names, "store": str(fields["store"])})
            records._check()
            return records
        except (FileNotFoundError, PermissionError):
            raise
        except DAMAGE as error:
            raise UserError(f"{path} is damaged ({why(error)}): {remedy}") from error

    def _check(self) -> None:
        """Raise ValueError for inconsistent fields. Nats may be infinite, as for bad models."""
        documents, groups = len(self.documents), len(self.group_names)
        shapes = {"units": (documents, len(self.unit_names))}
        shapes |= dict.fromkeys(("group_nats", "group_tokens"), (documents, groups))
        for name, (_, dimensions) in FIELDS.items():
            array = getattr(self, name)
            if dimensions and not isinstance(array, tuple) and array.shape != shapes.get(name, (documents,)):
                raise ValueError(f"its {name} are of shape {array.shape}, for {documents} documents")
        for names in (self.unit_names, self.group_names):
            if len({*names}) < len(names):
                raise ValueError(f"it holds {', '.join(names)}, of which two are equal")
        known = self.correct >= 0
        limits = {
            "clusters": self.clusters >= 0,
            "tokens": (self.tokens >= 0) & (self.tokens < 2**48),
            "group_tokens": (self.group_tokens >= 0) & (self.group_tokens < 2**48),
            "units": np.isfinite(self.units) & (self.units >= 0),
            "correct": np.where(known, self.correct <= self.tokens, self.correct == -1) & (known.all() | ~known.any()),
        }
        if bad := [name for name, right in limits.items() if not right.all()]:
            raise ValueError(f"its {bad[0]} are outside their range")
        if not self.tokens.sum():
            raise ValueError("it holds no target")
        if groups and not np.array_equal(self.group_tokens.sum(1), self.tokens):
            raise ValueError("its group_tokens do not add up to its tokens")
        if groups and not np.allclose(self.group_nats.sum(1), self.nats, rtol=ROUNDED, atol=ROUNDED, equal_nan=True):
            raise ValueError("its group_nats do not add up to its nats")

    @classmethod
    def of(
        cls,
        store: Store,
        index: np.ndarray,
        nats: np.ndarray,
        correct: np.ndarray | None = None,
        groups: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> "Records":
        """Records of some documents of a store.

        Args:
            store: the scored store.
            index: indices of the documents.
            nats: summed negative log-likelihood, `[documents]`.
            correct: number of targets that were the most likely token, `[documents]`; None if not measured.
            groups: nats and tokens per group, `[documents, groups]` each; None if groups are not scored separately.
        """
        names = () if groups is None else store.groups
        group_nats, group_tokens = groups or (np.zeros((len(index), 0)), np.zeros((len(index), 0), np.int64))
        return cls(
            np.array([store.names[i] for i in index]),
            store.clusters[index],
            np.asarray(nats, np.float64),
            store.scored[index],
            store.units[index],
            tuple(store.manifest["units"]),
            store.manifest["sha256"],
            np.full(len(index), -1) if correct is None else correct,
            group_nats,
            group_tokens,
            names,
        )
