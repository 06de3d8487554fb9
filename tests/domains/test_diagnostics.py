"""The generated tasks: answers are correct, questions are drawn as described, and only answers are scored."""

import hashlib

import numpy as np
import pytest
import torch
from conftest import nats_of

from bearings.core.errors import UserError
from bearings.domains.baseline_records import baselines
from bearings.domains.flip_flop import FlipFlop
from bearings.domains.indirect_indexing import IndirectIndexing
from bearings.domains.mqrar import MQRAR
from bearings.domains.store import UNSCORED
from bearings.domains.word_problem_a5 import WordProblemA5
from bearings.lightning_modules.data_module import IGNORED, DataModule, GeneratedRows, collate
from bearings.lightning_modules.evaluation import Evaluation, subset

SMALL = {"train": 40, "valid": 20, "test": 60}
TASKS = {
    "indirect_indexing": lambda **more: IndirectIndexing(**{**SMALL, **more}),
    "flip_flop": lambda **more: FlipFlop(**{**SMALL, "sparse": 60, "dense": 60, "length": 64, **more}),
    "mqrar": lambda **more: MQRAR(**{**SMALL, "length": 96, "variables": 6, "values": 5, **more}),
    "word_problem_a5": lambda **more: WordProblemA5(**{**SMALL, "longest_word": 9, **more}),
}


def solve_indirect_indexing(text):
    letters, source, shift, _ = text.split(",")
    return [letters[letters.index(source) + int(shift)]]


def solve_flip_flop(text):
    found, bit = [], None
    for instruction, value in zip(text[::2], text[1::2], strict=True):
        if instruction == "w":
            bit = value
        elif instruction == "r":
            found.append(bit)
    return found


def solve_mqrar(text):
    found, given, words = [], {}, text.split()
    for variable, value in zip(words[::2], words[1::2], strict=True):
        if variable.endswith("?"):
            found.append(given[variable[:-1]][-2])
        else:
            given.setdefault(variable, []).append(value)
    return found


def solve_word_problem_a5(text):
    cycles = {"a": "123", "b": "124", "c": "125"}
    points = {i: i for i in "12345"}
    for letter in text.partition("=")[0]:
        cycle = cycles[letter.lower()]
        if letter.isupper():
            cycle = cycle[::-1]
        step = dict(zip(cycle, cycle[1:] + cycle[0], strict=True))
        points = {start: step.get(end, end) for start, end in points.items()}
    return ["y" if all(a == b for a, b in points.items()) else "n"]


@pytest.fixture(params=TASKS)
def name(request):
    return request.param


@pytest.fixture
def task(name):
    return TASKS[name]()


@pytest.fixture
def kept(task, tmp_path):
    return task.prepare(tmp_path)


def test_answers_are_correct(name, task, kept):
    for index in range(len(kept.names)):
        tokens = np.asarray(kept.document(index))
        answers = [task.symbols[i] for i in tokens[kept.marks_of(index) != UNSCORED]]
        assert answers == globals()[f"solve_{name}"](task.decode(tokens)), kept.names[index]
        assert len(tokens) - 1 <= task.longest


def test_number_of_examples(task, kept):
    assert kept.manifest["documents"] == task.sizes
    assert kept.manifest["splits"] == list(task.splits)
    assert kept.targets("test") == kept.unit_counts("test")["answer"] == kept.scored[kept.documents("test")].sum()


def training_bytes(task, seed, indices):
    return [example.astype("<i8").tobytes() for example in task.training_examples(seed, indices)]


def test_training_examples_depend_only_on_seed_and_index(name, task):
    again, pooled = TASKS[name](), TASKS[name](pool=7)
    indices = (0, 5, 10**9)
    for index, example in zip(indices, task.training_examples(3, indices), strict=True):
        assert np.array_equal(example, again.training_examples(3, [index])[0])
    orders = [training_bytes(pooled, 3, range(7 * e, 7 * e + 7)) for e in range(4)]
    assert set(orders[0]) == set(orders[1]) == set(training_bytes(pooled, 4, range(7)))
    assert any(order != orders[0] for order in orders[1:])


def test_the_pool_and_the_store_are_drawn_with_the_seed_of_the_domain(name, tmp_path):
    pools = []
    for seed in (0, 5):
        task = TASKS[name](pool=7, seed=seed)
        store = task.prepare(tmp_path)
        pools.append(set(training_bytes(task, 3, range(7))))
        assert pools[-1] == {np.asarray(store.document(i), "<i8").tobytes() for i in store.documents("train")[:7]}
    assert pools[0] != pools[1]


def test_generated_examples_differ_between_seeds_and_splits(name, kept):
    task = TASKS[name](pool=None)
    first, second = (training_bytes(task, seed, range(50)) for seed in (0, 1))
    test = [np.asarray(kept.document(i), np.int64).tobytes() for i in kept.documents("test")]
    assert first != second
    assert len(set(first) & set(test)) < 0.2 * len(test)  # there are few short words of A5


def test_rows_have_whole_examples_and_train_only_on_answers(task):
    data = DataModule(task, seed=1, length=3 * task.longest + 1, batch_size=2)
    rows = GeneratedRows(task, data.length, seed=1)
    for row, pieces in zip((0, 1, 5), rows.__getitems__([0, 1, 5]), strict=True):
        assert len(pieces) == 3
        for piece, tokens in zip(pieces, task.training_examples(1, range(3 * row, 3 * row + 3)), strict=True):
            assert np.array_equal(piece.inputs, tokens[:-1])
            scored = piece.targets != IGNORED
            assert np.array_equal(scored, task.answers(tokens)[1:])
            assert np.array_equal(piece.targets[scored], tokens[1:][scored])
            assert piece.units == scored.sum()
    batch = collate([rows[0], rows[1]])
    assert batch["inputs"].shape[1] <= data.length
    with pytest.raises(ValueError, match="its longest example"):
        DataModule(task, seed=1, length=task.longest - 1)


class Oracle(torch.nn.Module):
    """A model that gives the right token a logit of `confidence` if `right(text)` is true."""

    def __init__(self, task, store, share):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.task, self.after = task, {}
        random = np.random.default_rng(0)
        for index in range(len(store.names)):
            document = store.document(index).astype(np.int64)
            for end in np.flatnonzero(store.marks_of(index) != UNSCORED):
                self.after[tuple(document[:end])] = int(document[end]) if random.random() < share else 0

    def token_nats(self, tokens, targets):
        logits = torch.zeros(*tokens.shape, self.task.vocabulary)
        for b, row in enumerate(tokens.tolist()):
            for t in range(len(row)):
                if (token := self.after.get(tuple(row[: t + 1]))) is not None:
                    logits[b, t, token] = 5.0
        return nats_of(logits + self.weight, targets)


def test_accuracy_and_nats_count_only_answers(task, kept):
    evaluation = Evaluation(task.longest, "32-true")
    for share in (1.0, 0.5):
        model = Oracle(task, kept, share)
        records = evaluation.score(model, kept, "test")
        right = sum(
            model.after[tuple(kept.document(i)[:end].tolist())] == kept.document(i)[end]
            for i in kept.documents("test")
            for end in np.flatnonzero(kept.marks_of(i) != UNSCORED)
        )
        total = kept.targets("test")
        assert records.tokens.sum() == total
        assert records.correct.sum() == right
        assert records.accuracy == right / total
        miss = np.log(np.exp(5) + task.vocabulary - 1)
        assert records.nats.sum() == pytest.approx(total * miss - 5 * right, rel=1e-5)
        assert records.group_nats[:, 0] == pytest.approx(records.nats)


def test_baselines_omit_xz_and_count_answers(task, kept):
    found = baselines(task, kept, "test")
    assert not any(name.startswith("xz") for name in found)
    assert found["unigram"].accuracy is None
    seen, asked = (
        np.concatenate([kept.document(i)[kept.marks_of(i) != UNSCORED] for i in kept.documents(split)])
        for split in ("train", "test")
    )
    counts = np.bincount(seen, minlength=task.vocabulary)
    kinds = (counts > 0).sum()
    unigram = (counts + kinds / task.vocabulary) / (counts.sum() + kinds)  # Witten-Bell, only over answers
    assert found["unigram"].nats.sum() == pytest.approx(-np.log(unigram[asked]).sum())


def test_prompts_round_trip(task, kept, tmp_path):
    tokens = np.asarray(kept.document(0), np.int64)
    assert task.decode([0, 1]) == task.symbols[1]
    (path,) = task.render(task.decode(tokens), tmp_path / "example")
    assert np.array_equal(task.encode_file(path), tokens)
    path.write_text("§")
    with pytest.raises(UserError, match="symbol 1 is '§'"):
        task.encode_file(path)
    with pytest.raises(UserError, match=r"missing\.txt"):
        task.encode_file(tmp_path / "missing.txt")


def test_flip_flop_shares(tmp_path):
    task = FlipFlop(train=50, valid=50, test=50, sparse=200, dense=50, length=512)
    store = task.prepare(tmp_path)
    for split, share in {"train": 0.8, "test": 0.8, "sparse": 0.98, "dense": 0.1}.items():
        texts = [task.decode(store.document(i))[::2] for i in store.documents(split)]
        assert all(text[0] == "w" and text[-1] == "r" and len(text) == 256 for text in texts)
        inner = "".join(text[1:-1] for text in texts)
        assert inner.count("i") / len(inner) == pytest.approx(share, abs=0.01)
        assert inner.count("w") / len(inner) == pytest.approx((1 - share) / 2, abs=0.01)


def test_a5_words_are_balanced_at_every_length():
    task = WordProblemA5(longest_word=6, **SMALL)
    random = np.random.default_rng(0)
    texts = [task.decode(tokens) for tokens in task.examples([random] * 4000, "train")]
    for size in range(2, 7):
        mine = [text for text in texts if text.index("=") == size]
        assert len(mine) / len(texts) == pytest.approx(1 / 5, abs=0.03)
        assert sum(text.endswith("y") for text in mine) / len(mine) == pytest.approx(0.5, abs=0.06)
    # Each of the six words of two letters that equal the identity is a generator followed by its inverse.
    pairs = [text[:2] for text in texts if text.endswith("=y") and len(text) == 4]
    counts = {pair: pairs.count(pair) for pair in pairs}
    assert set(counts) == {"aA", "bB", "cC", "Aa", "Bb", "Cc"}
    assert max(counts.values()) < 1.6 * min(counts.values())


@pytest.mark.parametrize(("back", "variables"), [(1, 1), (1, 3), (2, 3), (4, 5)])
def test_mqrar_always_has_a_query(back, variables):
    needed = 2 * (variables * (back - 1) + 2)
    task = MQRAR(**SMALL, back=back, variables=variables, length=needed, queries=0.01)
    random = np.random.default_rng(0)
    for tokens in task.examples([random] * 200, "train"):
        assert len(tokens) == needed + 1
        assert task.answers(tokens)[-1]
    with pytest.raises(ValueError, match=f"at least {needed}"):
        MQRAR(**SMALL, back=back, variables=variables, length=needed - 2)


FEW = (0, 1, 2, 999_999)
DIGESTS = {
    FlipFlop: "825f3fc0c88fb5d8",
    MQRAR: "dbc5b3125768ead9",
    WordProblemA5: "0fa35ec43c91b239",
    IndirectIndexing: "21c3df7ac20aaada",
}


@pytest.mark.parametrize(("kind", "digest"), DIGESTS.items())
def test_the_examples_of_kept_studies_stay_the_same(kind, digest):
    task = kind()
    found = b"".join(training_bytes(task, 0, FEW) + training_bytes(task, 1, FEW))
    assert hashlib.sha256(found).hexdigest().startswith(digest)


def test_rare_examples_stay_the_same():
    """Words of A5 that are drawn again, and last statements of MQRAR whose variable has too few values."""
    words = WordProblemA5(longest_word=4)
    statements = MQRAR(back=2, variables=3, values=5, length=16, queries=0.9)
    found = b"".join(training_bytes(words, 0, range(200)) + training_bytes(statements, 0, range(200)))
    assert hashlib.sha256(found).hexdigest().startswith("c134d611020631ec")


@pytest.mark.parametrize("sizes", [(20, 40, 15), (3, 6, 2)])
def test_indirect_indexing_draws_every_shift(sizes):
    shortest, longest, farthest = sizes
    given = {} if sizes == (20, 40, 15) else {"shortest": 3, "longest_string": 6, "farthest": 2}
    task, random = IndirectIndexing(**SMALL, **given), np.random.default_rng(0)
    assert given.items() <= task.options().items()
    assert task.options().keys() & {"shortest", "longest_string", "farthest"} == given.keys()
    examples = task.examples([random] * 3000, "train")
    assert max(map(len, examples)) == task.longest + 1
    texts = [task.decode(example) for example in examples]
    assert {int(text.split(",")[2]) for text in texts} == set(range(-farthest, farthest + 1))
    assert {len(text.split(",")[0]) for text in texts} == set(range(shortest, longest + 1))
    assert all(len(set(text.split(",")[0])) == len(text.split(",")[0]) for text in texts)


def test_shifts_longer_than_every_string_are_not_drawn():
    limited, unlimited = (IndirectIndexing(shortest=3, longest_string=6, farthest=each) for each in (5, 10**12))
    assert training_bytes(unlimited, 0, range(50)) == training_bytes(limited, 0, range(50))
    assert unlimited.longest == limited.longest


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        ("indirect_indexing", {"test": 0}),
        ("indirect_indexing", {"pool": 0}),
        ("indirect_indexing", {"seed": -1}),
        ("indirect_indexing", {"shortest": 41}),
        ("indirect_indexing", {"longest_string": 53}),
        ("indirect_indexing", {"farthest": 0}),
        ("flip_flop", {"sparse": 0}),
        ("flip_flop", {"length": 7}),
        ("flip_flop", {"ignore": 1.5}),
        ("mqrar", {"back": 0}),
        ("mqrar", {"queries": 0.0}),
        ("word_problem_a5", {"shortest": 1}),
        ("word_problem_a5", {"longest_word": 1}),
    ],
)
def test_invalid_values_raise(make, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        TASKS[make](**wrong)


def test_limited_validation_uses_fixed_whole_documents(kept):
    sizes = np.diff(kept.offsets)
    for cap in (1, 100, 500, 10**9):
        chosen = subset(kept, "test", cap)
        assert np.array_equal(chosen, subset(kept, "test", cap))
        assert set(chosen) <= set(kept.documents("test"))
        assert np.array_equal(chosen, np.sort(chosen))
        assert sizes[chosen].sum() >= min(cap, sizes[kept.documents("test")].sum())
        assert len(chosen) == 1 or sizes[chosen].sum() < cap + sizes.max()
    whole = kept.documents("test")
    half = subset(kept, "test", sizes[whole].sum() // 2)
    assert not np.array_equal(half, whole[: len(half)])
