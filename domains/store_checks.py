"""Verifies token stores: the manifest and small arrays whenever one is opened, all bytes once per machine."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..core import launcher
from ..core.checked_files import SHA256, is_count, read_text
from ..core.progress import shown
from ..core.whole_files import write_text

FORMAT = 2
ARRAYS = ("offsets", "splits", "scored", "clusters", "units")
UNSCORED = 255  # the mark of a token that is only context
LARGE = 256 << 20  # bytes from which progress is shown
BLOCK = 1 << 20
_checked: dict[Path, str] = {}  # state of each directory when this process verified it


def dtype_of(vocabulary: int) -> np.dtype:
    """The smallest type that holds the ids of a vocabulary."""
    return np.dtype(np.uint8 if vocabulary <= 2**8 else np.uint16 if vocabulary <= 2**16 else np.uint32)


def files_of(groups: Sequence[str]) -> set[str]:
    """Names of the files of a store, without its manifest."""
    return {"tokens.bin", "names.json", *(f"{name}.npy" for name in ARRAYS), *(["marks.bin"] if groups else [])}


def check_manifest(manifest: Any) -> None:
    """Raise ValueError if StoreWriter cannot have written a manifest."""
    if not isinstance(manifest, dict):
        raise ValueError("manifest.json does not hold a mapping")

    def need(right: bool, key: str) -> None:
        if not right:
            raise ValueError(f"manifest.json: {key}={str(manifest.get(key))[:60]}")

    need(manifest.get("format") == FORMAT, "format")
    need(is_count(manifest.get("vocabulary")) and 1 <= manifest["vocabulary"] <= 2**32, "vocabulary")
    need(manifest.get("dtype") == dtype_of(manifest["vocabulary"]).name, "dtype")
    for key, most in (("units", 255), ("groups", UNSCORED), ("splits", 256)):
        names = manifest.get(key)
        need(
            isinstance(names, list)
            and all(isinstance(name, str) for name in names)
            and len({*names}) == len(names) <= most,
            key,
        )
    for key, names in (("documents", {*manifest["splits"]}), ("bytes", files_of(manifest["groups"]))):
        counts = manifest.get(key)
        need(isinstance(counts, dict) and counts.keys() == names and all(map(is_count, counts.values())), key)
    digest = manifest.get("sha256")
    need(isinstance(digest, str) and SHA256.fullmatch(digest) is not None, "sha256")


def check_arrays(manifest: Mapping, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError if the small arrays are inconsistent with each other or the manifest."""
    documents, tokens = sum(manifest["documents"].values()), manifest["bytes"]["tokens.bin"]
    types = {"splits": np.uint8, "units": np.float64}
    sizes = {"offsets": (documents + 1,), "units": (documents, len(manifest["units"]))}
    for name, array in arrays.items():
        dtype, shape = np.dtype(types.get(name, np.int64)), sizes.get(name, (documents,))
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(f"{name}.npy has {array.dtype} of shape {array.shape}, not {dtype} of shape {shape}")
    offsets, splits, scored, clusters, units = (arrays[name] for name in ARRAYS)
    tokens //= np.dtype(manifest["dtype"]).itemsize
    # Compared before subtraction, because a difference of two int64 may overflow.
    if offsets[0] != 0 or offsets[-1] != tokens or (offsets[1:] < offsets[:-1]).any() or np.diff(offsets).min() < 2:
        raise ValueError(f"offsets.npy: documents must have at least 2 tokens each and {tokens} in total")
    if manifest["groups"] and manifest["bytes"]["marks.bin"] != tokens:
        raise ValueError("marks.bin does not have one mark per token")
    if not np.array_equal(np.bincount(splits, minlength=256), [*manifest["documents"].values(), *[0] * 256][:256]):
        raise ValueError(f"splits.npy: it does not hold {manifest['documents']}")
    targets = np.diff(offsets) - 1
    if ((scored < 1) | (scored > targets)).any() or not (manifest["groups"] or np.array_equal(scored, targets)):
        raise ValueError("scored.npy: numbers of targets do not match the documents")
    if clusters.min() < 0 or clusters.max() >= documents:
        raise ValueError("clusters.npy: labels must be from 0 to the number of documents")
    if not np.isfinite(units).all() or (units < 0).any():
        raise ValueError("units.npy: counts must be finite and at least 0")


def check_content(directory: Path, manifest: Mapping, marks: np.ndarray | None, arrays: Mapping) -> None:
    """Read a store once per machine and compare it with its digest, vocabulary and counts of targets.

    Sizes, times and inodes of verified files are stored next to the store, or in the user's cache if that folder is not
    writable. In distributed runs only the first rank reads the store.

    Raises:
        ValueError: a byte has changed, an id is outside the vocabulary, or marks do not match the counts of targets.
    """
    state = _state(directory, manifest)
    if launcher.rank() or _checked.get(directory) == state or any(_holds(file, state) for file in _stamps(directory)):
        return
    dtype, vocabulary, size = np.dtype(manifest["dtype"]), manifest["vocabulary"], sum(manifest["bytes"].values())
    with shown(f"checking {directory}", size, in_bytes=True) if size >= LARGE else nullcontext() as report:
        read = 0

        def on_block(path: Path, block: bytes) -> None:
            nonlocal read
            if path.name == "tokens.bin" and np.frombuffer(block, dtype).max() >= vocabulary:
                raise ValueError(f"tokens.bin holds an id outside the vocabulary of {vocabulary}")
            read += len(block)
            if report:
                report(read)

        found = hash_files([directory / name for name in sorted(manifest["bytes"])], on_block)
    if found != manifest["sha256"]:
        raise ValueError(
            f"its files have changed since it was written: sha256 {found[:12]}, not {manifest['sha256'][:12]}"
        )
    if marks is not None:
        _check_marks(marks, len(manifest["groups"]), arrays["offsets"], arrays["scored"])
    if _state(directory, manifest) != state:
        raise ValueError("its files are being changed")
    remember(directory, manifest)


def remember(directory: Path, manifest: Mapping) -> None:
    """Record that the store in `directory` is verified in its current state."""
    state = _checked[directory] = _state(directory, manifest)
    for file in _stamps(directory):
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, state)
            return


def hash_files(paths: Sequence[Path], on_block: Callable[[Path, bytes], None] = lambda path, block: None) -> str:
    """sha256 of names and contents of `paths`, in the given order. `on_block` is called with each block read."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode())
        with open(path, "rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
                on_block(path, block)
    return digest.hexdigest()


def _check_marks(marks: np.ndarray, groups: int, offsets: np.ndarray, scored: np.ndarray) -> None:
    before = np.empty(len(offsets), np.int64)  # targets before each offset
    total = 0
    for begin in range(0, len(marks) + 1, BLOCK):
        block = marks[begin : begin + BLOCK]
        if ((block >= groups) & (block != UNSCORED)).any():
            raise ValueError(f"marks.bin has marks outside the {groups} groups")
        counts = total + np.concatenate([[0], np.cumsum(block != UNSCORED)])
        here = slice(*np.searchsorted(offsets, [begin, begin + BLOCK]))
        before[here], total = counts[offsets[here] - begin], counts[-1]
    if not np.array_equal(np.diff(before), scored) or (marks[offsets[:-1]] != UNSCORED).any():
        raise ValueError("marks.bin: numbers of targets do not match scored.npy")


def _state(directory: Path, manifest: Mapping) -> str:
    """A string that changes if a file of the store is written or replaced. Copying a file cannot set its ctime."""
    names = ["manifest.json", *sorted(manifest["bytes"])]
    states = {name: (directory / name).stat() for name in names}
    return json.dumps({name: [s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for name, s in states.items()})


def _stamps(directory: Path) -> list[Path]:
    """Possible paths of the stamp, in order of preference."""
    places = [directory.with_suffix(".verified")]
    with suppress(RuntimeError):  # the user has no home folder
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        key = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:16]
        places.append(cache / "bearings" / f"{key}.verified")
    return places


def _holds(file: Path, state: str) -> bool:
    try:
        return read_text(file, limit=1 << 16) == state
    except (OSError, ValueError):
        return False
