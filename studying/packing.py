"""Moves the kept runs of a study from separate folders into its packed files."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from filelock import FileLock

from ..core.checked_files import DAMAGE, read_json
from ..core.errors import UserError
from ..core.packed_paths import Content, PackedPath
from ..core.whole_files import remove_whole
from ..reporting.packed import RECORDS, RUN, RUNS, SCORED, Tree, read_packed, write_packed
from ..reporting.planned import TUNED, searched_rows
from ..reporting.study_list import LIST
from ..reporting.tables import write_csv

# All files of a kept copy.
FILES = (
    *("config.yaml", "manifest.json", "metrics.csv", "nll/*.npz", "baselines/[!.]*/*.npz"),
    *("extrapolation/*.csv", "sample_metrics/*.csv", "mechanisms/*.csv", "benchmarks/*.npz", "samples/*"),
)


def study_lock(study: Path) -> FileLock:
    """The lock for changing the records in the folder `study`."""
    return FileLock(study / ".lock")


def pack(study: Path) -> int:
    """Pack every kept run in `study/runs`, replacing an earlier run of the same name, and delete its folder.

    Packed files of the same study from another machine, in a folder `study/runs/NAME`, are added and deleted likewise,
    with the results of its searches. Of runs and searches that both have, those of `study` remain.

    The new packed files are read back and compared with the folders before they replace the old ones. Folders are
    deleted last; until then reports read the folders. A run is not packed if it lacks files, or has others, such as
    checkpoints.

    Returns:
        The number of packed runs and added folders.

    Raises:
        UserError: a file is damaged, packing would lose information, or a folder `study/runs/NAME` has a list.
    """
    with study_lock(study):
        for abandoned in [*study.glob(".packing.*"), *study.glob("runs/*/*/.*.tmp")]:  # of processes that were killed
            shutil.rmtree(abandoned)
        folders = {
            name: path
            for path in sorted((study / "runs").glob("*/*/*"))
            if RUN.fullmatch(name := "/".join(path.parts[-3:]))
            if (path / "manifest.json").exists() and _is_complete(path) and not others_in(path)
        }
        others = [file.parent for file in sorted((study / "runs").glob(f"*/{RUNS}"))]
        if studies := [path / LIST for path in others if (path / LIST).exists()]:
            only = f"{RUNS}, {RECORDS} and {TUNED}"
            raise UserError(f"{studies[0]} would make these runs another study: copy only {only}")
        if not (folders or others):
            _remove_empty(study / "runs")
            return 0
        added = {name: _files_in(path) for name, path in folders.items()}
        before = {name: path.files for place in (*others, study) for name, path in read_packed(place).items()}
        tree = before | added
        with tempfile.TemporaryDirectory(prefix=".packing.", dir=study) as place:
            try:
                write_packed(Path(place), tree)
            except ValueError as error:
                raise UserError(f"{study / 'runs'}/{error}: copy that run again with task=keep") from error
            _refuse_loss(study, tree, read_packed(Path(place)))
            for name in (RECORDS, RUNS):  # unused rows of records are harmless
                (Path(place) / name).replace(study / name)
        if others:
            _add_searches(study, others)
        for path in folders.values():
            remove_whole(path)
        for file in [other / name for other in others for name in (RUNS, RECORDS, TUNED)]:
            file.unlink(missing_ok=True)
        _remove_empty(study / "runs")
        return len(folders) + len(others)


def _add_searches(study: Path, others: Sequence[Path]) -> None:
    """Add the results of searches in the folders `others`, unless `study` has results for the same runs."""
    rows = searched_rows(study)
    for other in others:
        known = {row["run"] for row in rows}
        rows += [row for row in searched_rows(other) if row["run"] not in known]
    if rows:
        write_csv(study / TUNED, sorted(rows, key=lambda row: row["run"]))


def _remove_empty(folder: Path) -> None:
    """Remove the empty folders in `folder`, and `folder` itself if nothing is left."""
    for path in [*sorted(folder.rglob("*"), reverse=True), folder]:
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _is_complete(folder: Path) -> bool:
    """Whether a kept copy has all files that its manifest lists; a damaged manifest lists none."""
    try:
        return all((folder / name).is_file() for name in read_json(folder / "manifest.json")["files"])
    except DAMAGE:
        return True


def _files_in(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _refuse_loss(study: Path, tree: Tree, packed: dict[str, PackedPath]) -> None:
    """Raise UserError if the files in `packed` differ from those in `tree`."""
    for run, files in tree.items():
        back = packed[run].files
        for name in files.keys() | back.keys():
            if not _holds(back, name, files):
                raise UserError(
                    f"{study / 'runs' / run / name}: packing would change this file: copy that run again with task=keep"
                )


def _holds(back: Mapping[str, Content], name: str, files: Mapping[str, Content]) -> bool:
    """Whether the file `name` is equal in `back` and `files`. Reading records verifies their digests."""
    try:
        content = back[name]
    except (KeyError, ValueError):
        return False
    return name in files and (bool(SCORED.fullmatch(name)) or content == files[name])


def others_in(out: Path) -> list[Path]:
    """Files in `out` that are not part of a kept copy."""
    copied = {file for pattern in FILES for file in out.glob(pattern)}
    return sorted(path for path in out.rglob("*") if path not in copied and (path.is_symlink() or not path.is_dir()))
