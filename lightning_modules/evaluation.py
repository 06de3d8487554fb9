"""Scores a complete split: every target once, deterministically, with one record per document."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ..domains.records import Records
from ..domains.store import Store
from .data_module import IGNORED, Piece, collate
from .options import EvaluationOptions
from .ranks import rank, ranks, total

T = TypeVar("T")
ROWS = 1024  # maximum rows per batch: short rows would otherwise exceed the largest grid of a kernel


@dataclass(frozen=True)
class Window:
    """Inputs `begin..end-1` of one document. Targets before `scored` are context only."""

    document: int
    begin: int
    scored: int
    end: int

    @property
    def size(self) -> int:
        """Number of inputs."""
        return self.end - self.begin


class Scored(Protocol):
    """A Transformer, or another module with `token_nats`: nats of `targets [B, T]`, and whether each was likeliest."""

    training: bool

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def eval(self) -> Any: ...

    def train(self, mode: bool = True) -> Any: ...

    def token_nats(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]: ...


@contextmanager
def evaluating(model: Scored) -> Iterator[None]:
    """Evaluation mode, and afterwards the previous mode, also after an error."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def windows(store: Store, index: np.ndarray, length: int, overlap: float, period: int = 1) -> list[Window]:
    """Windows of at most `length` tokens that score every target of the documents `index` once, longest first.

    In a document of more than `length` targets, each window after the first keeps at least `overlap` of its length as
    context, and the last one ends with the document. All windows begin at multiples of `period`; if that leaves no room
    for so much context, a window keeps all but one period. If `length` is below the period, windows begin anywhere.
    """
    period = period if period <= length else 1
    stride = max(period, (length - int(overlap * length)) // period * period)
    found = []
    for number, document in enumerate(index):
        size = int(store.offsets[document + 1] - store.offsets[document] - 1)
        begin, end, last = 0, min(length, size), last_begin(size, length, period)
        found.append(Window(number, 0, 0, end))
        while end < size:
            begin, scored, end = begin + stride, end, min(begin + stride + length, size)
            found.append(Window(number, min(begin, last), scored, end))
    return sorted(found, key=lambda window: -window.size)


def last_begin(size: int, length: int, period: int) -> int:
    """Where the longest window of at most `length` of `size` tokens begins that ends with the last of them.

    It is a multiple of `period`, unless `length` is below the period.
    """
    period = period if period <= length else 1
    return -(-max(0, size - length) // period) * period


def batched(rows: Sequence[T], sizes: Sequence[int], tokens: int) -> Iterator[list[T]]:
    """Rows of these `sizes`, longest first, in batches of at most `tokens` tokens, and at least one row."""
    order = sorted(range(len(rows)), key=lambda i: -sizes[i])
    begin = 0
    while begin < len(order):
        end = begin + min(ROWS, max(1, tokens // sizes[order[begin]]))
        yield [rows[i] for i in order[begin:end]]
        begin = end


def subset(store: Store, split: str, tokens: int | None) -> np.ndarray:
    """Indices of documents of `split` with about `tokens` tokens in total, drawn with a fixed seed; None for all."""
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
        precision: Lightning's name; `bf16-mixed` runs under autocast. Log-softmax is always float32.
        period: the domain's period; windows begin at its multiples.
        options: fields of `EvaluationOptions`.

    Raises:
        ValueError: see `EvaluationOptions`.
    """

    def __init__(
        self,
        length: int,
        precision: str,
        period: int = 1,
        **options: Any,
    ):
        given = EvaluationOptions(**options)
        self.length, self.precision, self.period = length, precision, period
        self.overlap, self.tokens_per_batch = given.overlap, given.tokens_per_batch
        self.validation_tokens = given.validation_tokens

    @torch.inference_mode()
    def score(
        self,
        model: Scored,
        store: Store,
        split: str,
        on_batch: Callable[[int, int], None] = lambda done, total: None,
        tokens: int | None = None,
    ) -> Records:
        """Negative log-likelihood of `split` under `model`.

        Ranks share the work, and each returns the complete result.

        Args:
            on_batch: called with the number of finished batches and of all batches.
            tokens: score only some documents, with about this many tokens (see `subset`).
        """
        device = next(model.parameters()).device
        index = subset(store, split, tokens)
        kinds = max(1, len(store.groups))
        # By document and group: nats, targets, and targets that were the likeliest token.
        totals = np.zeros((3, len(index), kinds))
        todo = windows(store, index, self.length, self.overlap, self.period)
        batches = list(batched(todo, [window.size for window in todo], self.tokens_per_batch))
        # A sharded model needs every rank in each pass: ranks without a batch repeat one without counting it.
        with evaluating(model):
            for turn in range(0, len(batches), ranks()):
                place = turn + rank()
                batch = batches[place if place < len(batches) else 0]
                figures = self._figures(model, store, index, batch, device, kinds)
                if place < len(batches):
                    documents = [window.document for window in batch]
                    np.add.at(totals.swapaxes(0, 1), documents, figures.swapaxes(0, 1))
                on_batch(min(turn + ranks(), len(batches)), len(batches))
        totals = total(torch.from_numpy(totals).to(device)).cpu().numpy()
        nats, counted, correct = totals
        return Records.of(
            store,
            index,
            nats.sum(1),
            correct.sum(1).astype(np.int64),
            (nats, counted.astype(np.int64)) if store.groups else None,
        )

    def _figures(
        self, model: Scored, store: Store, index: np.ndarray, batch: list[Window], device: torch.device, kinds: int
    ) -> np.ndarray:
        """Nats, targets and correct targets of each window and group, `[3, windows, kinds]`."""
        pieces = [piece_of(store, index[w.document], w) for w in batch]
        figures = torch.stack(figures_of(model, pieces, device, self.precision))
        groups = torch.zeros(figures.shape[1:], dtype=torch.int64)
        if store.groups:
            for row, w in enumerate(batch):
                if (marks := store.marks_of(index[w.document])) is not None:
                    here = marks[w.begin + 1 : w.end + 1]
                    groups[row, : len(here)] = torch.from_numpy(here.astype(np.int64))
        groups = groups.to(device)
        return torch.stack([(figures * (groups == kind)).sum(-1) for kind in range(kinds)], -1).cpu().numpy()


def figures_of(
    model: Scored, pieces: Sequence[Piece], device: torch.device, precision: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Nats of each target, whether it counts, and whether it was the most likely token, `[pieces, T]` each.

    Args:
        model: the model, on `device`.
        pieces: inputs and targets, each in a row of its own.
        device: where it computes.
        precision: see `autocast`.
    """
    tensors = collate([[piece] for piece in pieces])
    targets = tensors["targets"].to(device)
    with autocast(device, precision):
        nats, right = model.token_nats(tensors["inputs"].to(device), targets)
    return nats.double(), targets != IGNORED, right


def piece_of(store: Store, document: int, window: Window) -> Piece:
    """Inputs and targets of a window; targets before `scored` are ignored."""
    here = slice(window.begin, window.end + 1)
    marks = store.marks_of(document)
    piece = Piece.of(store.document(document)[here], None if marks is None else marks[here])
    targets = piece.targets.copy()
    targets[: window.scored - window.begin] = IGNORED
    return Piece(piece.inputs, targets)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The autocast context for Lightning's `precision` on `device`."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed")
