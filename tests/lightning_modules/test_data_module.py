"""Training rows are a pure function of (seed, row) and cover what they should."""

import gc
import os
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bearings.core.errors import UserError
from bearings.domains.flip_flop import FlipFlop
from bearings.domains.store import UNSCORED
from bearings.lightning_modules.data_module import (
    IGNORED,
    DataModule,
    Loader,
    Piece,
    StepBatches,
    TrainingRows,
    collate,
    documents_of,
)
from bearings.lightning_modules.graphs import uncollected


class Whispering:
    """A stand-in for a domain whose augmentation depends on the generator, and whose units are single tokens."""

    period, start, lookback, units = 1, 0, 0, ("token",)

    def unit_weights(self, tokens):
        return {"token": np.arange(len(tokens)) > 0}

    def augment(self, tokens, random):
        return tokens + 100 * int(random.integers(7))


def tokens_of(piece):
    return np.append(piece.inputs, piece.targets[-1])


def rows_of(store, **options):
    return TrainingRows(Whispering(), store, **{"length": 16, "packed": False, "seed": 3, **options})


@pytest.mark.parametrize("packed", [False, True])
def test_rows_do_not_depend_on_the_order_they_are_asked_for(store, packed):
    forward, backward = rows_of(store, packed=packed), rows_of(store, packed=packed)
    first = [forward[i] for i in range(200)]
    for i in reversed(range(200)):
        for a, b in zip(first[i], backward[i], strict=True):
            assert np.array_equal(a.inputs, b.inputs)
            assert np.array_equal(a.targets, b.targets)
    other = rows_of(store, packed=packed, seed=4)
    assert any(not np.array_equal(first[i][0].inputs, other[i][0].inputs) for i in range(10))


def test_order_and_augmentation_follow_the_seed_and_the_epoch(store):
    def drawn(seed, epoch):
        rows = rows_of(store, seed=seed)
        pieces = [rows[epoch * rows.rows_per_epoch + place][0].inputs for place in range(30)]
        return [piece[0] // 100 for piece in pieces], [(piece % 100).tolist() for piece in pieces]

    shifts, orders = zip(drawn(0, 0), drawn(0, 1), drawn(1, 0), strict=True)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert shifts[one] != shifts[other]
        assert orders[one] != orders[other]


def test_an_epoch_meets_every_window_once(letters, store):
    rows = TrainingRows(letters, store, length=64, packed=False, seed=0)
    documents = {store.document(i).tobytes() for i in store.documents("train")}
    for epoch in range(2):
        first = epoch * rows.rows_per_epoch
        met = [tokens_of(rows[first + i][0]).astype(store.tokens.dtype).tobytes() for i in range(rows.rows_per_epoch)]
        assert len(met) == len(store.documents("train"))
        assert set(met) == documents


class Numbered:
    """A stand-in for a store: every token of its documents is another number, in order."""

    offsets = np.cumsum([0, 3, 17, 18, 33, 40, 50, 65, 130])

    def documents(self, split):
        return np.arange(len(self.offsets) - 1)

    def document(self, index):
        return np.arange(self.offsets[index], self.offsets[index + 1])

    def marks_of(self, index):
        return None


def numbered_epoch(epoch, seed=0, length=16, packed=False):
    """The epoch's rows over `Numbered`, whose windows may begin at every fourth target."""
    domain = Whispering()
    domain.period, domain.augment = 4, lambda tokens, random: tokens
    rows = TrainingRows(domain, Numbered(), length, packed=packed, seed=seed)
    return [rows[epoch * rows.rows_per_epoch + place] for place in range(rows.rows_per_epoch)]


@pytest.mark.parametrize("length", [8, 16, 64])
def test_an_epoch_meets_every_target_once(length):
    starts = Numbered.offsets[:-1]
    for epoch in range(5):
        pieces = [piece for (piece,) in numbered_epoch(epoch, length=length)]
        targets = np.concatenate([piece.targets for piece in pieces])
        assert np.array_equal(np.sort(targets), np.setdiff1d(np.arange(Numbered.offsets[-1]), starts))
        assert all(np.array_equal(piece.inputs + 1, piece.targets) for piece in pieces)  # of one document
        assert max(len(piece.inputs) for piece in pieces) <= length
        assert len(pieces) == sum(-(-(size - 1) // length) for size in np.diff(Numbered.offsets))


def test_windows_begin_on_the_periods_grid_and_elsewhere_each_epoch():
    begins = {tuple(sorted(piece.inputs[0] for (piece,) in numbered_epoch(epoch))) for epoch in range(60)}
    for place, size in zip(Numbered.offsets[:-1].tolist(), np.diff(Numbered.offsets).tolist(), strict=True):
        seen = {tuple(begin - place for begin in epoch if place <= begin < place + size) for epoch in begins}
        windows = -(-(size - 1) // 16)
        assert all(len(each) == windows and each[0] == 0 and not any(begin % 4 for begin in each) for each in seen)
        assert len(seen) == (1 if windows == 1 else (windows * 16 - size + 1) // 4 + 1)  # all that there are


@pytest.mark.parametrize("epoch", range(3))
def test_a_packed_epoch_meets_no_target_twice_and_misses_less_than_a_row(epoch):
    pieces = [piece for row in numbered_epoch(epoch, packed=True) for piece in row]
    targets = np.concatenate([piece.targets for piece in pieces])
    starts = Numbered.offsets[:-1]
    assert len(np.unique(targets)) == len(targets) > Numbered.offsets[-1] - len(starts) - 16
    assert all(np.array_equal(piece.inputs + 1, piece.targets) for piece in pieces)


def test_packed_epochs_begin_anywhere_in_a_document():
    begins = [numbered_epoch(epoch, packed=True)[0][0].inputs[0] for epoch in range(20)]
    assert {*begins} - {*Numbered.offsets.tolist()}


@pytest.mark.parametrize("packed", [False, True])
def test_targets_that_are_not_scored_are_ignored_after_any_lookback(packed):
    domain, store = Whispering(), Numbered()
    domain.lookback, domain.augment = 3, lambda tokens, random: tokens
    store.marks_of = lambda index: np.where(store.document(index) % 2, 0, UNSCORED)
    rows = TrainingRows(domain, store, length=7, packed=packed, seed=0)
    for piece in (piece for place in range(rows.rows_per_epoch) for piece in rows[place]):
        targets = piece.inputs + 1
        assert np.array_equal(piece.targets, np.where(targets % 2, targets, IGNORED))


def test_a_packed_epoch_lays_all_documents_end_to_end(letters, store):
    rows = TrainingRows(letters, store, length=32, packed=True, seed=0)
    seen = np.zeros(12, int)
    for i in range(rows.rows_per_epoch):
        assert sum(len(piece.targets) for piece in rows[i]) == 32
        for piece in rows[i]:
            seen += np.bincount(piece.targets, minlength=12)
    expected = sum(np.bincount(store.document(i)[1:], minlength=12) for i in store.documents("train"))
    assert 0 <= (expected - seen).sum() < 32
    assert (expected >= seen).all()


@settings(max_examples=30)
@given(
    st.lists(
        st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=6), min_size=1, max_size=3), min_size=1, max_size=4
    )
)
def test_collate_keeps_every_target_and_marks_the_rest(rows):
    batch = collate([[Piece.of(np.array(piece)) for piece in row] for row in rows])
    kept = [batch["targets"][b][batch["targets"][b] != IGNORED].tolist() for b in range(len(rows))]
    assert kept == [[token for piece in row for token in piece[1:]] for row in rows]
    if any(len(row) > 1 for row in rows):
        for b, row in enumerate(rows):
            marks = batch["documents"][b].tolist()
            wanted = [number for number, piece in enumerate(row) for _ in piece[1:]]
            assert marks[: len(wanted)] == wanted
            assert not set(marks[len(wanted) :]) & set(wanted)
        runs = 1 + (batch["documents"][:, 1:] != batch["documents"][:, :-1]).sum(1)
        assert batch["pieces"] == runs.sum()
        assert len(documents_of(batch).cu_seqlens) == batch["pieces"] + 1
    else:
        assert documents_of(batch) is None
        assert not {"documents", "pieces"} & set(batch)


def test_batches_resume_where_the_step_says():
    whole = list(StepBatches(0, 10, 3))
    assert list(StepBatches(4, 10, 3)) == whole[4:]
    assert len(StepBatches(4, 10, 3)) == 10


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_ranks_share_the_rows_of_every_step(ranks):
    whole = list(StepBatches(3, 8, 6))
    shares = [list(StepBatches(3, 8, 6, rank, ranks)) for rank in range(ranks)]
    assert [[row for part in parts for row in part] for parts in zip(*shares, strict=True)] == whole
    assert all(len(batch) == 6 // ranks for share in shares for batch in share)


@pytest.mark.parametrize("workers", [None, 0, 1, 2])
def test_workers_change_nothing(letters, store, workers):
    module = DataModule(letters, seed=1, batch_size=3, length=16, workers=workers).use(store)
    trainer = SimpleNamespace(
        global_step=5,
        max_steps=12,
        global_rank=0,
        world_size=1,
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
    )
    batches = [batch["inputs"] for batch in module.train_dataloader(trainer)]
    expected = [collate([module.rows[i] for i in rows])["inputs"] for rows in StepBatches(5, 12, 3)]
    assert len(batches) == 7
    assert all(torch.equal(a, b) for a, b in zip(batches, expected, strict=True))


class Leftover:
    """Part of a reference cycle. Notes which process destroys it, as a CUDA graph would fail outside its own."""

    def __init__(self, path):
        self.path, self.cycle = path, self

    def __del__(self):
        with open(self.path, "a") as file:
            file.write(f"{os.getpid()}\n")


class Collecting(list):
    """Rows whose worker process collects garbage, as a long training does."""

    def __getitem__(self, item):
        gc.collect()
        return super().__getitem__(item)


def test_workers_do_not_destroy_what_an_earlier_training_left(tmp_path):
    with uncollected():
        Leftover(tmp_path / "destroyed")
        assert list(Loader(Collecting([1, 2]), num_workers=1)) == [torch.tensor([1]), torch.tensor([2])]
    assert (tmp_path / "destroyed").read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_loader_processes_open_the_store_again(tmp_path, method):
    domain = FlipFlop(length=32, train=999, valid=1, test=1, sparse=1, dense=1)  # its module is imported quickly
    store = domain.prepare(tmp_path)
    rows = TrainingRows(domain, store, length=16, packed=False, seed=0)
    rows[0]  # a plan of the epoch is made
    assert len(pickle.dumps(rows)) < 5000 < store.tokens.nbytes
    loader = Loader(
        rows, batch_sampler=StepBatches(0, 2, 3), collate_fn=collate, num_workers=1, multiprocessing_context=method
    )
    for batch, wanted in zip(loader, StepBatches(0, 2, 3), strict=True):
        assert torch.equal(batch["inputs"], collate([rows[i] for i in wanted])["inputs"])


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"length": 0}, {"workers": -1}])
def test_sizes_are_checked(letters, store, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DataModule(letters, seed=0, **wrong)


def test_a_store_without_documents_of_a_split_is_refused(letters, tmp_path):
    class Half(type(letters)):
        def build(self, writer):
            writer.add("only", "train", "c", np.array([0, 1]), {"letter": 1})

    with pytest.raises(UserError, match="valid, test"):
        Half().prepare(tmp_path)


def test_a_batch_counts_its_tokens_without_padding(letters, store):
    rows = TrainingRows(letters, store, length=60, packed=False, seed=0)
    pieces = [rows[i] for i in range(6)]
    batch = collate(pieces)
    assert batch["tokens"] == sum(len(row[0].inputs) for row in pieces)
    assert batch["inputs"].numel() > batch["tokens"]


class Rising(Whispering):
    """A unit is a token that is larger than the one before."""

    lookback, units = 1, ("rise",)

    def unit_weights(self, tokens):
        return {"rise": np.append(0, (np.diff(np.append(0, tokens[1:])) > 0))}


@pytest.mark.parametrize("packed", [False, True])
def test_a_batch_counts_its_own_units(store, packed):
    domain = Rising()
    domain.augment = lambda tokens, random: tokens
    rows = TrainingRows(domain, store, length=7, packed=packed, seed=0)
    epoch = [rows[place] for place in range(rows.rows_per_epoch)]
    for row in epoch:
        for piece in row:
            # Of a document's first target, which is above 0, and of each that is above its input.
            assert piece.units == ((piece.targets > piece.inputs) | (piece.inputs == 0)).sum()
    assert collate(epoch[:3])["units"] == sum(piece.units for row in epoch[:3] for piece in row)
    if not packed:
        documents = (store.document(index) for index in store.documents("train"))
        assert collate(epoch)["units"] == sum(domain.unit_weights(each)["rise"].sum() for each in documents)


def test_rows_of_a_text_whose_tokenizer_is_gone_count_no_units(store):
    class Lost(Whispering):
        def unit_weights(self, tokens):
            raise UserError("its tokenizer is not there")

    row = TrainingRows(Lost(), store, length=16, packed=False, seed=0)[0]
    assert row[0].units == 0
