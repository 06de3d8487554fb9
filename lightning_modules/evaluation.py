"""Score a complete split: every target once, deterministically, with one record a document."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bearings.checked_files import DAMAGE, read_arrays, why
from bearings.domains.store import Store
from bearings.errors import UserError
from bearings.lightning_modules.data_module import IGNORED, Piece, collate
from bearings.lightning_modules.ranks import rank, ranks, total
from bearings.whole_files import written_whole

# Kinds of numpy's dtypes and numbers of dimensions of what a file of records holds.
FIELDS = {
    **{"documents": ("U", 1), "unit_names": ("U", 1), "group_names": ("U", 1), "store": ("U", 0)},
    **{"clusters": ("iu", 1), "tokens": ("iu", 1), "correct": ("iu", 1), "group_tokens": ("iu", 2)},
    **{"nats": ("f", 1), "units": ("f", 2), "group_nats": ("f", 2)},
}
ROUNDED = 1e-5  # share by which sums of nats that were kept in float32 may differ


@dataclass(frozen=True)
class Records:
    """Per-document scores of one split.

    Attributes:
        documents: names; clusters: integer labels, equal for dependent documents.
        nats: `[documents]` summed negative log-likelihood.
        tokens: `[documents]` number of targets.
        units: `[documents, len(unit_names)]` natural units.
        store: sha256 of the token store scored.
        correct: `[documents]` targets that were the likeliest token; -1 where nobody counted.
        group_nats, group_tokens: `[documents, len(group_names)]`, the same for each group of the store's targets.
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
        """Bits per natural unit, by unit."""
        bits = self.nats.sum() / math.log(2)
        return {name: float(bits / self.units[:, i].sum()) for i, name in enumerate(self.unit_names)}

    @property
    def accuracy(self) -> float | None:
        """Share of targets that were the likeliest token; None where nobody counted."""
        return None if (self.correct < 0).any() else float(self.correct.sum() / self.tokens.sum())

    @property
    def group_nats_per_token(self) -> dict[str, float]:
        """Nats a token of each group that the split holds."""
        nats, tokens = self.group_nats.sum(0), self.group_tokens.sum(0)
        return {name: float(nats[i] / tokens[i]) for i, name in enumerate(self.group_names) if tokens[i]}

    def save(self, path: Path) -> None:
        """Write an .npz whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        names = {key: np.array(getattr(self, key), str) for key in ("unit_names", "group_names")}
        with written_whole(path, binary=True) as file:
            np.savez_compressed(file, **{**vars(self), **names})

    @classmethod
    def load(cls, path: Path, remedy: str = "delete it and score the split again with task=evaluate") -> "Records":
        """Read what `save` has written. Raises UserError, with the `remedy`, where the file is damaged."""
        try:
            fields = read_arrays(path)
            for name, (kinds, dimensions) in FIELDS.items():
                if name not in fields or fields[name].dtype.kind not in kinds or fields[name].ndim != dimensions:
                    raise ValueError(f"its {name} are missing or of another type")
            if unknown := fields.keys() - FIELDS.keys():
                raise ValueError(f"it holds {min(unknown)[:60]}, which is no field of records")
            names = {key: tuple(fields[key].tolist()) for key in ("unit_names", "group_names")}
            fields |= {key: fields[key].astype(np.float64) for key in ("nats", "group_nats")}  # kept runs have float32
            records = cls(**{**fields, **names, "store": str(fields["store"])})
            records._check()
            return records
        except (FileNotFoundError, PermissionError):
            raise
        except DAMAGE as error:
            raise UserError(f"{path} is damaged ({why(error)}): {remedy}") from error

    def _check(self) -> None:
        """Raise ValueError where the fields do not fit together. Nats may be infinite: a bad model's are."""
        documents, groups = len(self.documents), len(self.group_names)
        shapes = {"units": (documents, len(self.unit_names))}
        shapes |= dict.fromkeys(("group_nats", "group_tokens"), (documents, groups))
        for name, (_, dimensions) in FIELDS.items():
            array = getattr(self, name)
            if dimensions and not isinstance(array, tuple) and array.shape != shapes.get(name, (documents,)):
                raise ValueError(f"its {name} are of shape {array.shape}, for {documents} documents")
        for names in (self.unit_names, self.group_names):
            if len({*names}) < len(names):
                raise ValueError(f"it holds {', '.join(names)}: two of one name")
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
    def of(cls, store: Store, index: np.ndarray, nats: np.ndarray, correct=None, groups=None) -> "Records":
        """Records of the store's documents `index`.

        Args:
            nats: `[documents]`; correct: `[documents]` or None.
            groups: (nats, tokens), `[documents, groups]` each, or None for a score that does not tell groups apart.
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


@dataclass(frozen=True)
class Window:
    """Inputs `begin..end-1` of one document, of whose targets those from `scored` on count."""

    document: int
    begin: int
    scored: int
    end: int


def windows(store: Store, index: np.ndarray, length: int, overlap: float, period: int = 1) -> list[Window]:
    """Cover every target of the documents `index` once with contexts of at most `length`, the longest first.

    In a document of more than `length` targets each window but the first keeps at least `overlap` of its length as
    context, and the last ends with the document. All begin at multiples of `period`; where no step of a period can keep
    so much, they keep all but a period. A `length` below the period has no grid to keep to.
    """
    period = period if period <= length else 1
    stride = max(period, (length - int(overlap * length)) // period * period)
    found = []
    for number, document in enumerate(index):
        size = int(store.offsets[document + 1] - store.offsets[document] - 1)
        begin, end = 0, min(length, size)
        found.append(Window(number, 0, 0, end))
        while end < size:
            begin, scored, end = begin + stride, end, min(begin + stride + length, size)
            # The last one begins as early as a whole window does that ends with the document or less than a period on.
            earliest = -(-(size - length) // period) * period
            found.append(Window(number, min(begin, earliest), scored, end))
    return sorted(found, key=lambda window: window.begin - window.end)


def batched(todo: list[Window], tokens: int) -> Iterator[list[Window]]:
    """Cut a list of windows, the longest first, into batches of at most `tokens`, or of one window."""
    begin = 0
    while begin < len(todo):
        end = begin + max(1, tokens // (todo[begin].end - todo[begin].begin))
        yield todo[begin:end]
        begin = end


def subset(store: Store, split: str, tokens: int | None) -> np.ndarray:
    """Documents of `split` that hold about `tokens` tokens, or all: drawn at random, the same ones each time."""
    index = store.documents(split)
    sizes = store.offsets[index + 1] - store.offsets[index]
    if tokens is None or sizes.sum() <= tokens:
        return index
    order = np.random.default_rng(0).permutation(len(index))
    return index[np.sort(order[: 1 + int(np.searchsorted(sizes[order].cumsum(), tokens))])]


class Evaluation:
    """Scores splits.

    Args:
        length: longest context, in tokens.
        overlap: share of it kept as context between the windows of a longer document.
        tokens_per_batch: tokens of one forward pass at most; changes nothing but speed and memory.
        validation_tokens: during training, score whole documents drawn from the validation split up to about so many
            tokens; null for all. The figures that a run ends with are of complete splits in any case.
        period: the domain's; windows begin at multiples of it.
        precision: Lightning's name; `bf16-mixed` runs under autocast. Log-softmax is always float32.

    Raises:
        ValueError: a value outside its range.
    """

    def __init__(
        self,
        length: int,
        precision: str,
        overlap: float = 0.5,
        tokens_per_batch: int = 16384,
        validation_tokens: int | None = None,
        period: int = 1,
    ):
        if not 0 <= overlap < 1:
            raise ValueError(f"overlap={overlap}: it must lie in [0, 1)")
        if tokens_per_batch < 1:
            raise ValueError(f"tokens_per_batch={tokens_per_batch}: it must be at least 1")
        if validation_tokens is not None and validation_tokens < 1:
            raise ValueError(f"validation_tokens={validation_tokens}: it must be at least 1, or null for all")
        self.length, self.precision, self.overlap, self.tokens_per_batch = length, precision, overlap, tokens_per_batch
        self.validation_tokens, self.period = validation_tokens, period

    @torch.inference_mode()
    def score(
        self,
        model: torch.nn.Module,
        store: Store,
        split: str,
        on_batch: Callable[[int, int], None] = lambda done, total: None,
        tokens: int | None = None,
    ) -> Records:
        """Negative log-likelihood of `split` under `model`, a Transformer or what else has `token_nats`.

        `on_batch` is called with (batches done, batches in all). `tokens` scores some documents only: `subset`. Ranks
        share the work, and each gets the whole result.
        """
        device = next(model.parameters()).device
        index = subset(store, split, tokens)
        kinds = max(1, len(store.groups))
        # By document and group: nats, targets, targets that were the likeliest token.
        totals = np.zeros((3, len(index), kinds))
        was_training = model.training
        model.eval()
        todo = windows(store, index, self.length, self.overlap, self.period)
        batches = list(batched(todo, self.tokens_per_batch))
        # A sharded model needs every rank in each pass: those left without a batch repeat one and do not count it.
        for turn in range(0, len(batches), ranks()):
            place = turn + rank()
            batch = batches[place if place < len(batches) else 0]
            figures = self._figures(model, store, index, batch, device, kinds)
            if place < len(batches):
                np.add.at(totals, (slice(None), [window.document for window in batch]), figures)
            on_batch(min(turn + ranks(), len(batches)), len(batches))
        totals = total(torch.from_numpy(totals).to(device)).cpu().numpy()
        model.train(was_training)
        nats, counted, correct = totals
        return Records.of(
            store,
            index,
            nats.sum(1),
            correct.sum(1).astype(np.int64),
            (nats, counted.astype(np.int64)) if store.groups else None,
        )

    def _figures(self, model, store: Store, index: np.ndarray, batch: list[Window], device, kinds: int) -> np.ndarray:
        """Nats, targets and correct ones of each window and group, `[3, windows, kinds]`."""
        tensors = collate([[piece_of(store, index[w.document], w)] for w in batch])
        targets = tensors["targets"].to(device)
        with autocast(device, self.precision):
            nats, right = model.token_nats(tensors["inputs"].to(device), targets)
        figures = torch.stack([nats.double(), targets != IGNORED, right])
        groups = torch.zeros_like(tensors["targets"])
        if store.groups:
            for row, w in enumerate(batch):
                marks = store.marks_of(index[w.document])[w.begin + 1 : w.end + 1]
                groups[row, : len(marks)] = torch.from_numpy(marks.astype(np.int64))
        groups = groups.to(device)
        return torch.stack([(figures * (groups == kind)).sum(-1) for kind in range(kinds)], -1).cpu().numpy()


def piece_of(store: Store, document: int, window: Window) -> Piece:
    """Inputs and targets of a window; those before `scored` are context."""
    here = slice(window.begin, window.end + 1)
    marks = store.marks_of(document)
    piece = Piece.of(store.document(document)[here], None if marks is None else marks[here])
    targets = piece.targets.copy()
    targets[: window.scored - window.begin] = IGNORED
    return Piece(piece.inputs, targets)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The autocast context that Lightning's `precision` stands for on `device`."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed")
