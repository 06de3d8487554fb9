"""Opening a modified token store raises a one-line error."""

import hashlib
import json
import os
import pickle
import shutil
import tracemalloc

import numpy as np
import pytest
from test_store import Toy, marked

from bearings.core.errors import UserError
from bearings.domains import store_checks
from bearings.domains.store import SPLITS, Store, StoreWriter, hash_files


def refused(store) -> str:
    """The error message of opening the store."""
    with pytest.raises(UserError) as caught:
        Store.open(store.directory)
    line = str(caught.value)
    assert "\n" not in line
    assert str(store.directory) in line
    assert "delete" in line
    return line


def rewritten(store, manifest=(), **arrays):
    """Replace arrays of a store and update its manifest to match, as an attacker would."""
    folder = store.directory
    for name, values in arrays.items():
        if name in ("tokens", "marks"):
            (folder / f"{name}.bin").write_bytes(values.tobytes())
        else:
            np.save(folder / f"{name}.npy", values)
    there = json.loads((folder / "manifest.json").read_text()) | dict(manifest)
    files = sorted(folder / name for name in there["bytes"])
    there |= {"bytes": {file.name: file.stat().st_size for file in files}, "sha256": hash_files(files)}
    (folder / "manifest.json").write_text(json.dumps(there))
    return store


def flip(path, place=-1, bit=1):
    data = bytearray(path.read_bytes())
    data[place] ^= bit
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["tokens.bin", "marks.bin", "offsets.npy", "units.npy", "clusters.npy", "names.json"])
def test_flipped_bit_raises(tmp_path, name):
    store = marked(tmp_path, np.array([1, 0, 1, 1]))
    flip(store.directory / name, -3)
    refused(store)


def test_contents_are_verified_once_per_modification(tmp_path, monkeypatch):
    store = Toy().prepare(tmp_path)
    read = []
    monkeypatch.setattr(store_checks, "hash_files", lambda *given: read.append(1) or hash_files(*given))
    Store.open(store.directory)
    monkeypatch.setattr(store_checks, "_checked", {})  # as another process
    Store.open(store.directory)
    assert read == []  # the process that wrote the store knows its digest
    os.utime(store.directory / "tokens.bin")
    pickle.loads(pickle.dumps(store))  # noqa: S301, as a loader's process gets it
    assert read == []
    for _ in range(2):
        Store.open(store.directory)
    assert read == [1]


def test_copied_stamp_is_ignored(tmp_path):
    store = Toy().prepare(tmp_path / "a")
    copy = tmp_path / "b" / store.directory.name
    shutil.copytree(store.directory, copy)
    shutil.copy2(store.directory.with_suffix(".verified"), copy.with_suffix(".verified"))
    state = copy.joinpath("tokens.bin").stat()
    flip(copy / "tokens.bin")
    os.utime(copy / "tokens.bin", ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(UserError, match="its files have changed since it was written"):
        Store.open(copy)


def test_read_only_store_uses_cache(tmp_path, monkeypatch):
    store = Toy().prepare(tmp_path / "data")
    stamp = store.directory.with_suffix(".verified")
    stamp.unlink()
    stamp.mkdir()  # works for root too, which cannot replace a folder by a file
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    read = []
    monkeypatch.setattr(store_checks, "hash_files", lambda *given: read.append(1) or hash_files(*given))
    for _ in range(2):
        monkeypatch.setattr(store_checks, "_checked", {})
        Store.open(store.directory)
    assert read == [1]
    assert len(list((tmp_path / "cache" / "bearings").iterdir())) == 1


def test_a_user_without_a_home_folder_can_build_and_open_a_store(tmp_path, monkeypatch):
    """As in a container that runs with the id of a user that it does not know."""
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    store = Toy().prepare(tmp_path)
    monkeypatch.setattr(store_checks, "_checked", {})
    assert Store.open(store.directory).manifest == store.manifest


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("offsets", [0, 3, 2, 12]),  # decreasing
        ("offsets", [0, 1, 7, 12]),  # a document of one token
        ("offsets", [1, 3, 7, 12]),
        ("offsets", [0, 3, 7, 11]),
        ("offsets", [0, -(2**63), 2**63 - 1, 12]),
        ("offsets", [0, 3, 7]),
        ("offsets", [0.0, 3.0, 7.0, 12.0]),
        ("splits", [0, 1, 3]),
        ("splits", [0, 0, 2]),
        ("scored", [2, 3, 5]),
        ("scored", [2, 3, -4]),
        ("clusters", [0, 0, -1]),
        ("units", [[1, 1], [1, 1], [1, np.nan]]),
        ("units", [[1, 1], [1, 1], [1, -1]]),
        ("units", [[1], [1], [1]]),
        ("tokens", [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 10]),
    ],
)
def test_inconsistent_arrays_raise(tmp_path, name, values):
    types = {"splits": np.uint8, "units": np.float64, "tokens": np.uint8}
    dtype = types.get(name, np.int64) if type(values[0]) is not float else np.float64
    line = refused(rewritten(Toy().prepare(tmp_path), **{name: np.array(values, dtype)}))
    assert name in line


@pytest.mark.parametrize(
    "marks",
    [
        [255, 0, 1, 2] + [255, 0, 0, 0] * 3,  # a third group
        [255, 0, 255, 255] + [255, 0, 0, 0] * 3,  # two targets fewer
        [0, 255, 0, 0] + [255, 0, 0, 0] * 3,  # a start token is marked
    ],
)
def test_inconsistent_marks_raise(tmp_path, marks):
    store = marked(tmp_path, np.array([0, 0, 0, 0]))
    assert "marks" in refused(rewritten(store, marks=np.array(marks, np.uint8)))


def test_marks_are_counted_across_blocks(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    with StoreWriter(tmp_path / "s", 9, (), ("a", "b")) as writer:
        for number in range(30):
            marks = np.r_[0, 1, random.choice([0, 1, 255], random.integers(1, 9))]
            writer.add("d", SPLITS[number % 3], f"{number}", np.ones(len(marks), int), {}, marks)
    for block in (1, 4, 7):
        monkeypatch.setattr(store_checks, "BLOCK", block)
        os.utime(tmp_path / "s" / "tokens.bin")
        Store.open(tmp_path / "s")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocabulary", 4),
        ("vocabulary", 300),
        ("vocabulary", "10"),
        ("vocabulary", True),
        ("vocabulary", 10**400),
        ("dtype", "float32"),
        ("dtype", "O"),
        ("units", "word"),
        ("units", ["word", "word"]),
        ("groups", ["a"]),
        ("groups", {}),
        ("splits", ["train", "valid"]),
        ("splits", [["train"], "valid", "test"]),
        ("documents", {"train": 2, "valid": 0, "test": 1}),
        ("documents", {"train": 1, "valid": 1}),
        ("documents", {"train": 1, "valid": 1, "test": 2**62}),
        ("bytes", {"../../other": 3}),
        ("bytes", 3),
        ("sha256", "0" * 64),
        ("sha256", None),
        ("format", 1),
        ("format", [2]),
    ],
)
def test_inconsistent_manifest_raises(tmp_path, key, value):
    store = Toy().prepare(tmp_path)
    file = store.directory / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    refused(store)


@pytest.mark.parametrize(
    "text",
    [b"\xff", b"[" * 200_000, b'{"a": ' * 200_000, b"NaN", b'{"vocabulary": 1e999}', b"9" * 5000, b"null", b'{"a": 1}'],
    ids=lambda text: str(text[:12]),
)
def test_invalid_manifest_raises(tmp_path, text):
    store = Toy().prepare(tmp_path)
    (store.directory / "manifest.json").write_bytes(text)
    refused(store)


@pytest.mark.parametrize(
    ("key", "value"),
    [("vocabulary", 200), ("units", ["letter", "word"]), ("splits", ["test", "valid", "train"]), ("revision", 2)],
)
def test_manifest_not_matching_domain_raises(tmp_path, key, value):
    store = Toy().prepare(tmp_path)
    rewritten(store, {key: value})
    with pytest.raises(UserError, match=rf"manifest.json: {key}=.*: delete .* to rebuild it"):
        Toy().prepare(tmp_path)


def header(shape, dtype="<i8", version=b"\x01\x00"):
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        header("(3000000000,)") + bytes(32),  # 24 GB
        header("(4,)", "|O") + pickle.dumps([1, 2, 3, 4]),
        header("(-4,)") + bytes(32),
        header("(4,)", "<i9") + bytes(32),
        header("(" * 50 + "4" + ")" * 50) + bytes(32),
        header("(" + "-" * 90 + "4,)") + bytes(32),
        header("(4,)", version=b"\x07\x00") + bytes(32),
        b"\x93NUMPY",
        b"PK\x03\x04" + bytes(60),
        b"",
    ],
    ids=["24 GB", "objects", "negative", "dtype", "nested", "signs", "version", "short", "zip", "empty"],
)
def test_array_header_is_checked_before_allocation(tmp_path, data):
    store = Toy().prepare(tmp_path)
    (store.directory / "offsets.npy").write_bytes(data)
    rewritten(store)
    tracemalloc.start()
    refused(store)
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("names", ['["a", "b"]', "3", "{}", '["a", "b", 3]', "[" * 100_000])
def test_inconsistent_names_raise(tmp_path, names):
    store = Toy().prepare(tmp_path)
    (store.directory / "names.json").write_text(names)
    with pytest.raises(UserError, match=r"cannot be read .* delete it to rebuild it"):
        Store.open(rewritten(store).directory).names  # noqa: B018


def test_older_stores_are_readable(tmp_path):
    """Stores of FORMAT 2 without a stamp, with its original digest of names and contents."""
    store = Toy().prepare(tmp_path)
    store.directory.with_suffix(".verified").unlink()
    digest = hashlib.sha256()
    for file in sorted(store.directory.iterdir()):
        digest.update(b"" if file.name == "manifest.json" else file.name.encode() + file.read_bytes())
    assert Store.open(store.directory).manifest["sha256"] == digest.hexdigest()
