"""Baselines of a split as records, saved with a run, and next to the store for later runs."""

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock

from ..core.progress import shown
from ..core.whole_files import made_whole
from .base import Domain
from .baselines import xz
from .records import Records
from .store import Store

MARKOV_ORDERS = 12
REVISION = 1  # incremented whenever `baselines` would compute different values for the same store


def baselines(domain: Domain, store: Store, split: str) -> dict[str, Records]:
    """Records of `split` for a unigram model, the Markov order that is best on validation, and xz.

    xz compresses every token, so it is omitted if some tokens are only context.
    """
    valid = {order: nats.sum() for order, nats in domain.markov(store, "valid", MARKOV_ORDERS).items()}
    order = min(valid, key=valid.__getitem__)
    nats = domain.markov(store, split, order)
    index = store.documents(split)
    found = {
        "unigram": Records.of(store, index, nats[0]),
        f"Markov, order {order}": Records.of(store, index, nats[order]),
    }
    sizes = store.offsets[index + 1] - store.offsets[index] - 1
    if (store.scored[index] < sizes).any():
        return found
    # xz gives one value for the split, which is distributed over the documents by length.
    found["xz -9e"] = Records.of(store, index, xz(store, split) * sizes / sizes.sum())
    return found


def kept_baselines(domain: Domain, store: Store, split: str, folder: Path) -> dict[str, Records]:
    """`baselines`, read from `folder` or from next to the store if an earlier run saved them.

    Counting takes minutes for some domains.
    """
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not folder.exists():  # saved by another process in the meantime
                _save(read_baselines(shared_baselines(store, split)) or _count(domain, store, split), folder)
    return read_baselines(folder)


def shared_baselines(store: Store, split: str) -> Path:
    """Folder in which runs share the baselines of `split` with other runs of the same store."""
    return store.directory / "baselines" / f"{split}-{MARKOV_ORDERS}-{REVISION}"


def _count(domain: Domain, store: Store, split: str) -> dict[str, Records]:
    """`baselines`, computed by one process at a time and saved for others if the folder of the store is writable."""
    shared = shared_baselines(store, split)
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(FileLock(store.directory.with_suffix(".lock")))
        if shared.exists():  # computed by another process in the meantime
            return read_baselines(shared)
        with shown(f"counting the baselines of {split}"):
            found = baselines(domain, store, split)
        with suppress(OSError):
            _save(found, shared)
        return found


def _save(found: Mapping[str, Records], folder: Path) -> None:
    with made_whole(folder) as making:
        for name, records in found.items():
            records.save(making / f"{name}.npz")


def read_baselines(folder: Path) -> dict[str, Records]:
    """The files that `kept_baselines` wrote, by name. Raises UserError if a file is damaged."""
    return {path.stem: read_baseline(path) for path in sorted(folder.glob("*.npz"))}


def read_baseline(path: Path) -> Records:
    """One baseline. Raises UserError if the file is damaged."""
    return Records.load(path, f"delete {path.parent} to compute it again")
