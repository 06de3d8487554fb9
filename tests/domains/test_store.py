"""The token store and `Domain.prepare`: stores are complete or absent after any interruption."""

import errno
import json
import math
import multiprocessing
import os
import shutil
import signal
import stat
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from bearings.core.errors import UserError
from bearings.domains.base import Domain
from bearings.domains.store import SPLITS, UNSCORED, Store, StoreWriter


class Toy(Domain):
    """Three documents of known tokens. `build` can wait or fail, and records each call in a file."""

    name = "toy"
    units = ("word", "letter")

    def __init__(self, vocabulary=10, marks: Path | None = None, wait=0.0, fail: str | None = None):
        self._vocabulary, self.marks, self.wait, self.fail = vocabulary, marks, wait, fail

    @property
    def vocabulary(self):
        return self._vocabulary

    def options(self):
        return {"vocabulary": self._vocabulary}

    def build(self, writer):
        if self.marks:
            (self.marks / f"{os.getpid()}").touch()
        for count, split in enumerate(SPLITS):
            if split == "test":
                time.sleep(self.wait)
                if self.fail:
                    raise UserError(self.fail)
            tokens = np.array([0, *range(1, count + 3)])
            writer.add(f"d{count}", split, f"c{count // 2}", tokens, {"letter": 10 + count, "word": 1 + count})

    def unit_weights(self, tokens):
        return {unit: np.ones(len(tokens)) for unit in self.units}

    def encode_file(self, path):
        return np.array([0])

    def decode(self, ids):
        return list(ids)

    def render(self, item, stem):
        return []


def files_under(root: Path) -> list[str]:
    """Relative paths under `root`, without lock files."""
    found = (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() or not any(path.iterdir()))
    return sorted(name for name in found if not name.endswith(".lock"))


def test_round_trip(tmp_path):
    store = Toy().prepare(tmp_path)
    assert store.document(2).tolist() == [0, 1, 2, 3, 4]
    assert store.offsets.tolist() == [0, 3, 7, 12]
    assert store.splits.tolist() == [0, 1, 2]
    assert store.clusters.tolist() == [0, 0, 1]
    assert store.names == ["d0", "d1", "d2"]
    assert [store.targets(split) for split in SPLITS] == [2, 3, 4]
    assert store.unit_counts("test") == {"word": 3.0, "letter": 12.0}
    assert store.manifest["documents"] == {"train": 1, "valid": 1, "test": 1}
    assert store.manifest["options"] == {"vocabulary": 10}
    assert not store.tokens.flags.writeable


def test_names_and_clusters_of_any_text(tmp_path):
    names = ['"quoted"', "naïve 🎵", "", "a\nb\\", "\ud800", "same", "same"]
    clusters = ["b", "a", "b", "", "ä", "a", "\udc80"]
    with StoreWriter(tmp_path / "s", 3, ()) as writer:
        for place, (name, cluster) in enumerate(zip(names, clusters, strict=True)):
            writer.add(name, SPLITS[place % 3], cluster, np.array([0, 1]), {})
    store = Store.open(tmp_path / "s")
    assert (tmp_path / "s" / "names.json").read_text() == json.dumps(names)
    assert store.names == names
    assert store.clusters.tolist() == [0, 1, 0, 2, 3, 1, 4]
    assert store.units.shape == (7, 0)


def test_writer_memory_per_document(tmp_path):
    tokens = np.array([0, 1, 2])
    with StoreWriter(tmp_path / "s", 3, ("word", "letter")) as writer:
        tracemalloc.start()
        for number in range(20_000):
            name = f"document {number}"
            writer.add(name, SPLITS[number % 3], name, tokens, {"word": 1, "letter": 2})
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert held < 60 * 20_000
    assert Store.open(tmp_path / "s").units.tolist() == [[1, 2]] * 20_000


def test_second_prepare_does_not_build(tmp_path):
    first = Toy().prepare(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in first.directory.iterdir()}
    Toy(fail="it was built again").prepare(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in first.directory.iterdir()} == times


def test_a_known_store_is_opened_without_its_source(tmp_path):
    class Sourceless(Toy):
        def options(self):
            raise UserError("the source is missing")

    known = Toy().options()
    assert Toy().prepare(tmp_path).directory == Sourceless().prepare(tmp_path, known).directory
    with pytest.raises(UserError, match="the source is missing"):
        Sourceless().prepare(tmp_path / "elsewhere", known)


def test_options_select_the_store(tmp_path):
    assert Toy(10).prepare(tmp_path).directory != Toy(11).prepare(tmp_path).directory


@pytest.mark.parametrize(
    ("vocabulary", "dtype"),
    [(256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "uint32")],
)
def test_dtype_of_vocabulary(tmp_path, vocabulary, dtype):
    with StoreWriter(tmp_path / "s", vocabulary, ()) as writer:
        for split in SPLITS:
            writer.add(split, split, split, np.array([0, vocabulary - 1]), {})
    store = Store.open(tmp_path / "s")
    assert store.tokens.dtype.name == dtype
    assert store.document(1).tolist() == [0, vocabulary - 1]


@pytest.mark.parametrize(
    "tokens", [[], [0], [0, 10], [0, -1], [[0, 1], [1, 2]], [0.0, 1.0]], ids=lambda tokens: str(tokens)
)
def test_invalid_document_raises(tmp_path, tokens):
    with pytest.raises(ValueError, match="document odd"), StoreWriter(tmp_path / "s", 10, ()) as writer:
        writer.add("odd", "train", "c", np.array(tokens), {})
    assert files_under(tmp_path) == []


def test_empty_split_raises(tmp_path):
    with (
        pytest.raises(UserError, match="of 1 document, none is in valid, test"),
        StoreWriter(tmp_path / "s", 9, ()) as w,
    ):
        w.add("d", "train", "c", np.array([0, 1]), {})
    assert files_under(tmp_path) == []


def test_split_without_units_raises(tmp_path):
    def build():
        with StoreWriter(tmp_path / "s", 9, ("base", "gap")) as writer:
            for split in SPLITS:
                writer.add("d", split, "c", np.array([0, 1]), {"base": split != "valid", "gap": 0})

    with pytest.raises(UserError, match="documents of valid contain no base"):
        build()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("split", "units", "said"),
    [
        ("validation", {"word": 1}, "split='validation': it must be one of"),
        ("train", {}, "units has no word"),
        ("train", {"word": -1}, "units=.*: counts must be finite and at least 0"),
        ("train", {"word": math.inf}, "units=.*: counts must be finite and at least 0"),
    ],
)
def test_split_and_units_of_document_are_checked(tmp_path, split, units, said):
    with pytest.raises(ValueError, match=f"document d: {said}"), StoreWriter(tmp_path / "s", 9, ("word",)) as writer:
        writer.add("d", split, "c", np.array([0, 1]), units)


def test_units_as_string_raise(tmp_path):
    with pytest.raises(ValueError, match=r"units='word': it must be a tuple of names, such as \('word',\)"):
        StoreWriter(tmp_path / "s", 9, "word")


@pytest.mark.parametrize("error", [UserError, KeyboardInterrupt, MemoryError])
def test_interrupted_build_leaves_nothing(tmp_path, error):
    def build():
        with StoreWriter(tmp_path / "s", 10, ()) as writer:
            writer.add("d", "train", "c", np.array([0, 1]), {})
            raise error

    with pytest.raises(error):
        build()
    assert files_under(tmp_path) == []


@pytest.mark.parametrize("place", ["tokens.bin", "marks.bin", "names.json"])
def test_a_build_that_cannot_open_a_file_leaves_nothing(tmp_path, monkeypatch, place):
    def refused(file, *given, **options):
        if Path(file).name == place:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        opened.append(open(file, *given, **options))  # noqa: SIM115 (the writer closes it)
        return opened[-1]

    opened = []
    monkeypatch.setattr("bearings.domains.store.open", refused, raising=False)
    with pytest.raises(OSError, match="No space left"), StoreWriter(tmp_path / "s", 10, (), ("group",)):
        pass
    assert files_under(tmp_path) == []
    assert all(file.closed for file in opened)


def test_failed_build_can_be_repeated(tmp_path):
    with pytest.raises(UserError, match="source is corrupt"):
        Toy(fail="source is corrupt").prepare(tmp_path)
    assert files_under(tmp_path / "toy") == []
    assert Toy().prepare(tmp_path).targets("test") == 4


def prepare(root, marks, wait):
    Toy(marks=marks, wait=wait).prepare(root)


@pytest.fixture
def marks(tmp_path):
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


def test_next_build_removes_remains_of_killed_build(tmp_path, marks):
    root = tmp_path / "root"
    process = multiprocessing.get_context("fork").Process(target=prepare, args=(root, marks, 60))
    process.start()
    deadline = time.monotonic() + 30
    while not any(marks.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert files_under(root / "toy") != []  # only the next build can clean up after SIGKILL
    store = Toy().prepare(root)
    assert {path.parent for path in root.rglob("tokens.bin")} == {store.directory}


def test_a_deleted_store_is_built_again_after_its_verification_was_killed(tmp_path):
    directory = Toy().prepare(tmp_path).directory
    directory.with_name(f".{directory.name}.verified.1a2b3c4d.tmp").touch()
    shutil.rmtree(directory)
    assert Toy().prepare(tmp_path).directory == directory


def test_a_store_that_is_a_link_is_built_where_it_leads(tmp_path):
    class Downloading(Toy):
        def build(self, writer):
            (writer.directory.parent / "downloads").mkdir(exist_ok=True)  # next to the link, as of other stores
            super().build(writer)

    link = Toy().prepare(tmp_path / "root").directory
    elsewhere = link.rename(tmp_path / "elsewhere")
    link.symlink_to(elsewhere)
    (elsewhere / "manifest.json").unlink()
    for deleted in (False, True):
        if deleted:
            shutil.rmtree(elsewhere)
        assert Downloading().prepare(tmp_path / "root").directory == link
        assert link.is_symlink()
        assert (elsewhere / "manifest.json").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"root", "elsewhere"}


def test_concurrent_processes_build_once(tmp_path, marks):
    context = multiprocessing.get_context("fork")
    racers = [context.Process(target=prepare, args=(tmp_path / "root", marks, 0.5)) for _ in range(3)]
    for process in racers:
        process.start()
    for process in racers:
        process.join()
    assert [process.exitcode for process in racers] == [0, 0, 0]
    assert len(list(marks.iterdir())) == 1


def test_store_is_readable_for_other_users(tmp_path):
    store = Toy().prepare(tmp_path)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o777 & ~mask


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.npy", "units.npy", "names.json"])
@pytest.mark.parametrize("change", ["truncate", "empty", "grow", "remove"])
def test_damaged_store_raises(tmp_path, name, change):
    store = Toy().prepare(tmp_path)
    path = store.directory / name
    data = path.read_bytes()
    if change == "remove":
        path.unlink()
    else:
        path.write_bytes({"truncate": data[:-1], "empty": b"", "grow": data + b"\0"}[change])
    with pytest.raises(UserError) as caught:
        Toy().prepare(tmp_path)
    line = str(caught.value)
    assert str(store.directory) in line
    assert name in line
    assert "rebuild" in line
    assert "\n" not in line


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"bytes": 3}'])
def test_damaged_manifest_raises(tmp_path, text):
    store = Toy().prepare(tmp_path)
    (store.directory / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"cannot be read .* delete it to rebuild it"):
        Store.open(store.directory)


def test_rebuild_is_byte_identical_and_replaces_remains(tmp_path):
    first, second = Toy().prepare(tmp_path / "a"), Toy().prepare(tmp_path / "b")
    (second.directory / "manifest.json").unlink()
    (second.directory / "remains").write_text("of an older layout")
    second = Toy().prepare(tmp_path / "b")
    names = sorted(path.name for path in first.directory.iterdir())
    assert names == sorted(path.name for path in second.directory.iterdir())
    for name in names:
        assert (first.directory / name).read_bytes() == (second.directory / name).read_bytes()


def test_manifest_hash_depends_on_contents(tmp_path):
    class Other(Toy):
        def build(self, writer):
            super().build(writer)
            writer.add("d3", "train", "c3", np.array([0, 1]), {"word": 1, "letter": 1})

    first, second = Toy().prepare(tmp_path / "a"), Other().prepare(tmp_path / "b")
    assert json.loads((first.directory / "manifest.json").read_text())["sha256"] != second.manifest["sha256"]


def marked(folder, *marks, groups=("hot", "cold")):
    with StoreWriter(folder / "store", 10, ("word",), groups, (*SPLITS, "far")) as writer:
        for split in (*SPLITS, "far"):
            writer.add(split, split, split, np.array([0, 1, 2, 3]), {"word": 1.0}, *marks)
    return Store.open(folder / "store")


def test_marks_splits_and_groups_are_written_and_read(tmp_path):
    marks = np.array([300, 0, UNSCORED, 1])  # that of the start token is ignored
    store = marked(tmp_path, marks)
    assert marks[0] == 300
    assert not store.marks.flags.writeable
    assert store.groups == ("hot", "cold")
    assert store.manifest["splits"] == ["train", "valid", "test", "far"]
    assert store.documents("far").tolist() == [3]
    assert store.marks_of(3).tolist() == [UNSCORED, 0, UNSCORED, 1]
    assert store.targets("far") == 2
    assert marked(tmp_path, groups=()).marks_of(3) is None


@pytest.mark.parametrize(
    ("marks", "groups"),
    [
        ([0, 0, 0], ("hot",)),
        ([0, 1, 0, 0], ("hot",)),
        ([0, 256, 0, 0], ("hot",)),
        ([0, 0, -1, 0], ("hot",)),
        ([0, *[UNSCORED] * 3], ("hot",)),
        ([0] * 4, ()),
        (None, ("hot",)),
    ],
)
def test_invalid_marks_raise(tmp_path, marks, groups):
    with pytest.raises(ValueError, match="mark"):
        marked(tmp_path, *([] if marks is None else [np.array(marks)]), groups=groups)
    assert files_under(tmp_path) == []


def test_split_without_documents_raises(tmp_path):
    def write():
        with StoreWriter(tmp_path / "store", 10, ("word",), splits=(*SPLITS, "far")) as writer:
            for split in SPLITS:
                writer.add(split, split, split, np.array([0, 1]), {"word": 1.0})

    with pytest.raises(UserError, match="far"):
        write()


def test_a_full_disk_is_named_after_the_store(tmp_path):
    class Full(Toy):
        def build(self, writer):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match=str(tmp_path)):
        Full().prepare(tmp_path)
