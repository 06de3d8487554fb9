"""Training batches as a pure function of (seed, step)."""

from collections.abc import Iterator

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bearings.domains.base import Domain
from bearings.domains.store import Store

IGNORED = -100


class TrainingRows(Dataset):
    """Row i of training: the same whatever the batch size, the number of workers, or where a run resumed.

    Unpacked, an epoch is a permutation of windows of at most `length` targets; a document of n targets counts
    ceil(n / length) windows, drawn at random places when there are several. Packed, an epoch is a permutation of the
    documents laid end to end from a random place on, cut every `length` targets.

    A row is a list of pieces `[n + 1]`: n inputs with their n targets, shifted by one.
    """

    def __init__(self, domain: Domain, store: Store, length: int, packed: bool, seed: int):
        self.domain, self.store, self.length, self.packed, self.seed = domain, store, length, packed, seed
        self.documents = store.documents("train")
        self.sizes = store.offsets[self.documents + 1] - store.offsets[self.documents] - 1
        self.windows = np.cumsum(-(-self.sizes // length))
        self.rows_per_epoch = max(1, int(self.sizes.sum()) // length) if packed else int(self.windows[-1])
        self._plan: tuple[int, tuple] = (-1, ())

    def __getitem__(self, row: int) -> list[np.ndarray]:
        random = np.random.Generator(np.random.Philox(key=[self.seed, 2 * row + 1]))
        epoch, place = divmod(row, self.rows_per_epoch)
        pieces = self._packed_row(epoch, place) if self.packed else [self._window(epoch, place, random)]
        return [self.domain.augment(np.asarray(piece, np.int64), random) for piece in pieces]

    def _window(self, epoch: int, place: int, random: np.random.Generator) -> np.ndarray:
        (order,) = self._plan_of(epoch)
        index = int(np.searchsorted(self.windows, order[place], side="right"))
        spare = int(self.sizes[index]) - self.length
        begin = 0 if spare <= 0 else int(random.integers(spare // self.domain.period + 1)) * self.domain.period
        return self.store.document(self.documents[index])[begin : begin + self.length + 1]

    def _packed_row(self, epoch: int, place: int) -> list[np.ndarray]:
        order, ends, phase = self._plan_of(epoch)
        total, pieces, missing = int(ends[-1]), [], self.length
        at = (phase + place * self.length) % total
        while missing:
            rank = int(np.searchsorted(ends, at, side="right"))
            size = int(self.sizes[order[rank]])
            begin = at - (int(ends[rank]) - size)
            count = min(size - begin, missing)
            pieces.append(self.store.document(self.documents[order[rank]])[begin : begin + count + 1])
            missing -= count
            at = (at + count) % total
        return pieces

    def _plan_of(self, epoch: int) -> tuple:
        """The epoch's permutation and, packed, where each document ends and the first row begins. Holds one epoch."""
        if self._plan[0] != epoch:
            random = np.random.Generator(np.random.Philox(key=[self.seed, 2 * epoch]))
            if self.packed:
                order = random.permutation(len(self.documents))
                ends = np.cumsum(self.sizes[order])
                plan = (order, ends, int(random.integers(ends[-1] // self.domain.period)) * self.domain.period)
            else:
                plan = (random.permutation(int(self.windows[-1])),)
            self._plan = (epoch, plan)
        return self._plan[1]


def collate(rows: list[list[np.ndarray]]) -> dict[str, Tensor]:
    """Stack rows into `inputs`, `targets` `[B, T]`, padded on the right to the longest row with IGNORED targets.

    Rows of several pieces add `documents [B, T]`: the piece each token belongs to, padding being one of its own.
    """
    length = max(sum(len(piece) - 1 for piece in row) for row in rows)
    inputs = torch.zeros(len(rows), length, dtype=torch.int64)
    targets = torch.full_like(inputs, IGNORED)
    documents = torch.full_like(inputs, max(len(row) for row in rows))
    for b, row in enumerate(rows):
        at = 0
        for number, piece in enumerate(row):
            here = slice(at, at + len(piece) - 1)
            inputs[b, here] = torch.from_numpy(piece[:-1])
            targets[b, here] = torch.from_numpy(piece[1:])
            documents[b, here] = number
            at = here.stop
    batch = {"inputs": inputs, "targets": targets}
    if any(len(row) > 1 for row in rows):
        batch["documents"] = documents
    return batch


class StepBatches:
    """Batch sampler over steps `first..last-1`; step s takes rows s * B to (s + 1) * B - 1 of an endless sequence."""

    def __init__(self, first: int, last: int, batch_size: int):
        self.first, self.last, self.batch_size = first, last, batch_size

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.first, self.last):
            yield list(range(step * self.batch_size, (step + 1) * self.batch_size))

    def __len__(self) -> int:
        # Lightning compares this with batches counted from the run's beginning, also when it resumes.
        return self.last


class DataModule(LightningDataModule):
    """Feeds a prepared domain to training, once `use` has been told of its store.

    Args:
        batch_size: rows an optimiser step.
        length: targets a row at most; also the context length of evaluation.
        packed: lay documents end to end in each row, kept apart by attention, rather than one window and padding.
        workers: loader processes; changes nothing but speed.
        domain, seed: given by the task.

    Raises:
        ValueError: a size below 1, or a length that is no multiple of the domain's period.
    """

    def __init__(
        self,
        domain: Domain,
        seed: int,
        batch_size: int = 8,
        length: int = 512,
        packed: bool = False,
        workers: int = 0,
    ):
        super().__init__()
        for name, size in {"batch_size": batch_size, "length": length}.items():
            if size < 1:
                raise ValueError(f"{name}={size}: it must be at least 1")
        if length % domain.period:
            raise ValueError(f"length={length}: domain {domain.name} needs a multiple of {domain.period}")
        if workers < 0:
            raise ValueError(f"workers={workers}: it must be 0 or more")
        self.domain, self.seed, self.length, self.packed = domain, seed, length, packed
        self.batch_size, self.workers = batch_size, workers

    def use(self, store: Store) -> "DataModule":
        """Train on `store`."""
        self.rows = TrainingRows(self.domain, store, self.length, self.packed, self.seed)
        return self

    def train_dataloader(self) -> DataLoader:
        """Batches from the trainer's present step to its last."""
        return DataLoader(
            self.rows,
            batch_sampler=StepBatches(self.trainer.global_step, self.trainer.max_steps, self.batch_size),
            collate_fn=collate,
            num_workers=self.workers,
            pin_memory=torch.cuda.is_available(),
        )
