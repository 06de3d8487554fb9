"""Training batches, as a pure function of (seed, step)."""

import gc
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..core import stopping
from ..core.cores import cores
from ..core.errors import UserError
from ..domains.base import Domain
from ..domains.generated import GeneratedDomain
from ..domains.store import UNSCORED, Store
from ..kernels.documents import Documents
from ..kernels.loss.cross_entropy import IGNORED
from .options import DataOptions

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


class Piece(NamedTuple):
    """`inputs [n]` and the `targets [n]` that follow them, IGNORED for targets that are not scored.

    `units` is the number of the domain's first natural unit (notes, bases) in the targets; 0 if not counted.
    """

    inputs: np.ndarray
    targets: np.ndarray
    units: float = 0.0

    @classmethod
    def of(cls, tokens: np.ndarray, marks: np.ndarray | None = None, units: float = 0.0) -> "Piece":
        """From n + 1 tokens, and their marks if not every target is scored."""
        tokens = np.asarray(tokens, np.int64)
        targets = tokens[1:]
        if marks is not None:
            targets = np.where(marks[1:] == UNSCORED, IGNORED, targets)
        return cls(tokens[:-1], targets, units)


class TrainingRows(Dataset):
    """Row i of training, independent of batch size, number of workers, and the step at which a run resumed.

    Without packing, an epoch is a permutation of windows of at most `length` targets. A document of n targets is cut
    into ceil(n / length) windows, and each target is in exactly one of them: the first window, which contains the start
    token, is shortened by a random multiple of the domain's period, the last takes the rest, and the others are full.
    With packing, an epoch is a permutation of the documents, concatenated from a random offset and cut every `length`
    targets.

    A row is a list of pieces.
    """

    def __init__(self, domain: Domain, store: Store, length: int, packed: bool, seed: int):
        self.domain, self.store, self.length, self.packed, self.seed = domain, store, length, packed, seed
        self.documents = store.documents("train")
        self.sizes = store.offsets[self.documents + 1] - store.offsets[self.documents] - 1
        counts = -(-self.sizes // length)
        self.windows = np.cumsum(counts)
        # Unused capacity of a document's windows, in targets. A document in one window is not cut.
        self.slack = np.where(counts > 1, counts * length - self.sizes, 0)
        self.rows_per_epoch = max(1, int(self.sizes.sum()) // length) if packed else int(self.windows[-1])
        self._plan: tuple[int, tuple] = (-1, ())
        self.counted = counts_units(domain)

    def __reduce__(self):  # for loader processes, which rebuild what follows from the store
        return TrainingRows, (self.domain, self.store, self.length, self.packed, self.seed)

    def __getitem__(self, row: int) -> list[Piece]:
        random = np.random.Generator(np.random.Philox(key=[self.seed, 2 * row + 1]))
        epoch, place = divmod(row, self.rows_per_epoch)
        spans = self._packed_row(epoch, place) if self.packed else [self._window(epoch, place)]
        pieces = []
        for index, begin, count in spans:
            before = min(begin, self.domain.lookback)
            here = slice(begin - before, begin + count + 1)
            marks = self.store.marks_of(index)
            tokens = self.domain.augment(np.asarray(self.store.document(index)[here], np.int64), random)
            units = first_units(self.domain, tokens, before) if self.counted else 0.0
            pieces.append(Piece.of(tokens[before:], None if marks is None else marks[here][before:], units))
        return pieces

    def _window(self, epoch: int, place: int) -> tuple[int, int, int]:
        """Document, first input and number of targets."""
        order, shortened = self._plan_of(epoch)
        index = int(np.searchsorted(self.windows, order[place], side="right"))
        number = int(order[place] - self.windows[index - 1]) if index else int(order[place])
        end = min((number + 1) * self.length - int(shortened[index]), int(self.sizes[index]))
        begin = max(number * self.length - int(shortened[index]), 0)
        return int(self.documents[index]), begin, end - begin

    def _packed_row(self, epoch: int, place: int) -> list[tuple[int, int, int]]:
        order, ends, phase = self._plan_of(epoch)
        total, spans, missing = int(ends[-1]), [], self.length
        at = (phase + place * self.length) % total
        while missing:
            rank = int(np.searchsorted(ends, at, side="right"))
            size = int(self.sizes[order[rank]])
            begin = at - (int(ends[rank]) - size)
            count = min(size - begin, missing)
            spans.append((int(self.documents[order[rank]]), begin, count))
            missing -= count
            at = (at + count) % total
        return spans

    def _plan_of(self, epoch: int) -> tuple:
        """The epoch's permutation, and by how many targets each document's first window is shortened. With packing:
        the permutation, the end of each document, and the offset of the first row. Caches one epoch."""
        if self._plan[0] != epoch:
            random = np.random.Generator(np.random.Philox(key=[self.seed, 2 * epoch]))
            if self.packed:
                order = random.permutation(len(self.documents))
                ends = np.cumsum(self.sizes[order])
                plan = (order, ends, int(random.integers(ends[-1] // self.domain.period)) * self.domain.period)
            else:
                order, period = random.permutation(int(self.windows[-1])), self.domain.period
                plan = (order, random.integers(self.slack // period + 1) * period)
            self._plan = (epoch, plan)
        return self._plan[1]


class GeneratedRows(Dataset):
    """Training rows of a domain that generates examples: as many whole examples as are sure to fit `length` targets.

    The examples are consecutive elements of an infinite sequence that the domain generates from (seed, index).
    """

    def __init__(self, domain: GeneratedDomain, length: int, seed: int):
        self.domain, self.seed = domain, seed
        self.examples_per_row = length // domain.longest

    def __getitem__(self, row: int) -> list[Piece]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> list[list[Piece]]:
        """Several rows at once, which takes less time. PyTorch's loader calls this for each batch."""
        each = self.examples_per_row
        indices = (index for row in rows for index in range(row * each, (row + 1) * each))
        examples = self.domain.training_examples(self.seed, indices)
        tokens = np.concatenate(examples)
        answers = self.domain.answers(tokens)
        targets = np.where(answers, tokens, IGNORED)
        ends = np.cumsum([len(example) for example in examples])
        begins = np.append(0, ends[:-1])
        units = np.add.reduceat(answers, begins, dtype=np.float64)
        pieces = [
            Piece(tokens[begin : end - 1], targets[begin + 1 : end], count)
            for begin, end, count in zip(begins.tolist(), ends.tolist(), units.tolist(), strict=True)
        ]
        return [pieces[first : first + each] for first in range(0, len(pieces), each)]


def counts_units(domain: Domain) -> bool:
    """Whether the domain can count units on this machine; text cannot if its tokenizer file is missing."""
    try:
        domain.unit_weights(np.array([domain.start]))
    except UserError:
        return False
    return True


def first_units(domain: Domain, tokens: np.ndarray, before: int = 0) -> float:
    """The number of the domain's first natural unit in the targets of a window, after its first `before` tokens."""
    return float(domain.unit_weights(tokens)[domain.units[0]][before + 1 :].sum())


class Batch(TypedDict):
    """The output of `collate`."""

    inputs: Tensor
    targets: Tensor
    documents: NotRequired[Tensor]
    pieces: NotRequired[int]
    tokens: float
    units: float


def collate(rows: list[list[Piece]]) -> Batch:
    """Stack rows into `inputs`, `targets` `[B, T]`, padded on the right to the longest row with IGNORED targets.

    `tokens` is the number of inputs without padding, and `units` the number of natural units in the targets. Both are
    plain numbers, as the device does not need them.

    Rows of several pieces add `documents [B, T]`: the index of each token's piece; padding has a separate index.
    `pieces` is then the number of pieces, and of rows with padding.
    """
    lengths = [sum(len(piece.inputs) for piece in row) for row in rows]
    length = max(lengths)
    inputs = np.zeros((len(rows), length), np.int64)
    targets = np.full_like(inputs, IGNORED)
    most = max(len(row) for row in rows)
    documents = np.full_like(inputs, most) if most > 1 else None
    for b, row in enumerate(rows):
        at = 0
        for number, piece in enumerate(row):
            here = slice(at, at + len(piece.inputs))
            inputs[b, here] = piece.inputs
            targets[b, here] = piece.targets
            if documents is not None:
                documents[b, here] = number
            at = here.stop
    units = sum(piece.units for row in rows for piece in row)
    batch: Batch = {
        "inputs": torch.from_numpy(inputs),
        "targets": torch.from_numpy(targets),
        "tokens": sum(lengths),
        "units": units,
    }
    if documents is not None:
        batch["documents"] = torch.from_numpy(documents)
        batch["pieces"] = sum(map(len, rows)) + sum(size < length for size in lengths)
    return batch


def documents_of(batch: Mapping[str, Any]) -> Documents | None:
    """The document boundaries in a `Batch`, or in some of its rows; None if each row is a single document."""
    return Documents.of(batch["documents"], batch.get("pieces")) if "documents" in batch else None


class StepBatches:
    """Batch sampler over steps `first..last-1`; step s takes rows s * B to (s + 1) * B - 1 of an infinite sequence.

    Of these, rank r of n takes the r-th part, so that the batch of a step does not depend on n.
    """

    def __init__(self, first: int, last: int, batch_size: int, rank: int = 0, ranks: int = 1):
        self.first, self.last, self.batch_size = first, last, batch_size
        self.rank, self.share = rank, batch_size // ranks

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.first, self.last):
            begin = step * self.batch_size + self.rank * self.share
            yield list(range(begin, begin + self.share))

    def __len__(self) -> int:
        # Lightning compares this with batches counted from the start of the run, even when resuming.
        return self.last


class Loader(DataLoader):
    """A loader whose worker processes receive no signals: the main process finishes its step and then ends them.

    A worker that is killed is noticed when its batch is asked for, within seconds.
    """

    def __iter__(self) -> Iterator:
        gc.collect()  # otherwise a worker may destroy CUDA graphs of an earlier training, which ends it with an error
        handler = signal.getsignal(signal.SIGCHLD)
        with stopping.signals_blocked():
            batches = super().__iter__()
        if signal.getsignal(signal.SIGCHLD) is not handler:
            signal.signal(signal.SIGCHLD, handler)  # PyTorch's handler raises errors in any running code
        return batches


def loader_died(error: Exception) -> bool:
    """Whether an `error` of training says that a process of a loader was killed, perhaps while it sent a batch.

    PyTorch has no class for this error.
    """
    if isinstance(error, (ConnectionError, EOFError)):
        modules = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)]
        return any(name.startswith("torch.utils.data") for name in modules)
    return str(error).startswith(("DataLoader worker (pid", "Pin memory thread exited"))


class DataModule:
    """Feeds a prepared domain to training, after `use(store)`.

    Args:
        domain: the domain to train on.
        seed: seed of the data order.
        options: fields of `DataOptions`.

    Raises:
        ValueError: see `DataOptions`; or the length is not a multiple of the domain's period, or is shorter than its
            examples.
    """

    def __init__(self, domain: Domain, seed: int, **options: Any):
        given = DataOptions(**options)
        length = given.length
        if length % domain.period:
            raise ValueError(f"length={length}: domain {domain.name} needs a multiple of {domain.period}")
        if isinstance(domain, GeneratedDomain) and length < domain.longest:
            raise ValueError(
                f"length={length}: domain {domain.name} needs at least {domain.longest}, its longest example"
            )
        self.domain, self.seed, self.length, self.packed = domain, seed, length, given.packed
        self.batch_size, self.workers = given.batch_size, given.workers

    @property
    def several_documents(self) -> bool:
        """Whether a row may hold several documents, which do not attend to each other."""
        if isinstance(self.domain, GeneratedDomain):
            return self.length // self.domain.longest > 1
        return self.packed

    @property
    def always_full(self) -> bool:
        """Whether every row has exactly `length` tokens."""
        return self.packed and not isinstance(self.domain, GeneratedDomain)

    def use(self, store: Store) -> "DataModule":
        """Train on `store`."""
        if isinstance(self.domain, GeneratedDomain):
            self.rows = GeneratedRows(self.domain, self.length, self.seed)
        else:
            self.rows = TrainingRows(self.domain, store, self.length, self.packed, self.seed)
        return self

    def train_dataloader(
        self, trainer: "Trainer", shared_by: int = 1, batched: Callable[[list[list[Piece]]], "Batch"] | None = None
    ) -> DataLoader:
        """This rank's share of the batches from the trainer's current step to its last.

        Args:
            shared_by: number of neighbouring ranks that get the same rows.
            batched: collates rows into a batch. Default: None, `collate`.
        """
        steps = trainer.global_step, trainer.max_steps
        on_gpu = trainer.strategy.root_device.type == "cuda"
        # A small model takes hundreds of steps per second, and generating a batch takes a few milliseconds.
        most = 12 if isinstance(self.domain, GeneratedDomain) else 4
        usual = max(2, min(most, cores() // trainer.num_devices - 1)) if on_gpu else 0
        return Loader(
            self.rows,
            batch_sampler=StepBatches(
                *steps, self.batch_size, trainer.global_rank // shared_by, trainer.world_size // shared_by
            ),
            collate_fn=batched or collate,
            num_workers=usual if self.workers is None else self.workers,
            pin_memory=on_gpu,
        )
