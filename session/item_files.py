"""Per-item results in a run's folder `benchmarks`: written with a digest in the manifest, checked when read."""

from ..core.errors import UserError
from ..domains.items import Items
from .run_directory import RunDirectory


def refuse_unfinished(run: RunDirectory) -> None:
    """Raise UserError if the run is not finished: its files would describe several checkpoints."""
    if not run.manifest.get("finished"):
        raise UserError(
            f"run={run.path} is not finished, so its best checkpoint may still change: finish its training first"
        )


def save_items(run: RunDirectory, name: str, items: Items) -> None:
    """Write `benchmarks/NAME.npz` and record its digest. An earlier file of that name is replaced."""
    file = run.benchmarks / f"{name}.npz"
    with run.replacing(file):
        items.save(file)


def read_items(run: RunDirectory) -> dict[str, Items]:
    """The results of all benchmarks of the run, by name.

    Raises:
        UserError: a file is damaged, or has changed since it was written.
    """
    files = sorted(run.benchmarks.glob("*.npz"))
    run.check_unchanged(*files)
    return {file.stem: Items.load(file) for file in files}
