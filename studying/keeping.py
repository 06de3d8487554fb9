"""Keeps what reports read from a run, without checkpoints and small enough for git."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..core.checked_files import digest_of
from ..core.errors import UserError
from ..core.packed_paths import AnyPath, PackedPath
from ..core.plain_yaml import as_yaml
from ..core.whole_files import made_whole, write_text
from ..domains.baseline_records import read_baseline
from ..domains.records import Records
from ..reporting.packed import read_packed
from ..reporting.study_list import LIST
from ..session.identity import identity
from ..session.item_files import read_items
from ..session.manifest import manifest_text
from ..session.run_config import written
from ..session.run_directory import PLACES, RUN_NAME, RunDirectory, without_folders
from .packing import others_in, study_lock

MEASURED = ("extrapolation", "sample_metrics")  # folders of tables that are kept for every seed
SAMPLES = 64 << 10  # maximum size of kept samples in bytes; the smallest files are kept first


def keep_in_study(path: Path, out: Path, commit: str | None = None) -> Path:
    """`keep_run` to `out`, STUDY/runs/DOMAIN/ENCODING/RUN, holding the lock of the study."""
    with study_lock(out.parents[3]):
        return keep_run(path, out, commit)


def keep_run(path: Path, out: Path, commit: str | None = None) -> Path:
    """Copy the configuration, manifest, curve, records, baselines, samples, benchmarks and measurements of a run.

    The copy contains no paths of this machine. Nats are rounded to float32, which changes their seventh digit.
    In a study, baselines are left out if another of its runs of the same data has them. Samples and learned parameters
    are left out if a run with another seed has them. An earlier copy of the same run is replaced if it contains
    nothing else. A run whose training diverged has only the first three.

    Args:
        path: directory of the run.
        out: directory of the copy.
        commit: commit of the source, for runs made outside a checkout.

    Raises:
        UserError: training has neither finished nor diverged, or `out` contains anything but an earlier copy, or is
            inside a run.
    """
    run = RunDirectory.open(path)
    manifest = run.manifest
    if not manifest.get("finished") and manifest.get("diverged") is None:
        raise UserError(f"run={path} is not finished, so there are no records to keep: finish its training first")
    if out.exists() and not _is_copy(out, run):
        raise UserError(f"task.out={out} exists and is not a copy of run={path}: give a new folder")
    if out.exists() and (others := others_in(out)):
        raise UserError(
            f"task.out={out}: {others[0].relative_to(out)} is not part of the copy and would be deleted: move it, or "
            "give another folder"
        )
    for folder in out.absolute().parents:
        if (folder / "config.yaml").exists() and (folder / "manifest.json").exists():
            raise UserError(f"task.out={out} is inside the run {folder}: give a folder outside")
    for session in manifest["sessions"]:
        if (code := session.get("code")) is not None:
            code["commit"] = code["commit"] or commit
    with made_whole(out) as making:
        _copy(run, manifest, out, making)
    return out


def _copy(run: RunDirectory, manifest: dict, out: Path, making: Path) -> None:
    """Write the copy of `run` for `out` into the temporary folder `making`."""
    path = run.path
    manifest["config"] = _portable(manifest["config"])
    write_text(making / "config.yaml", as_yaml(written(_portable(run.config))))
    if (path / "metrics.csv").exists():
        shutil.copy2(path / "metrics.csv", making)
    parent = out.absolute().parent
    studies = [each for each in [*parent.parents][2:3] if (each / LIST).exists()]  # none near the root
    packed = [copy for study in studies for copy in read_packed(study).values()]
    other_seeds = _copies(parent, f"{out.name.rpartition('-s')[0]}-s*", packed, but=(path, out))
    for file in [each for folder in (*MEASURED, "mechanisms") for each in (path / folder).glob("*.csv")]:
        name = file.relative_to(path)
        if name.parent.name in MEASURED or file.stem == "attention" or not _any_has(other_seeds, str(name)):
            (making / name).parent.mkdir(exist_ok=True)
            shutil.copy2(file, making / name)
    for name in read_items(run):
        (making / "benchmarks").mkdir(exist_ok=True)
        shutil.copy2(path / "benchmarks" / f"{name}.npz", making / "benchmarks")
    records = {file: Records.load(file) for file in (path / "nll").glob("*.npz")}
    in_study = _copies(parent.parent, "*/*", packed, but=(path, out)) if studies else []
    if not any(
        _store_of(copy / "manifest.json") == manifest["store"]["sha256"]
        for copy in in_study
        if (copy / "baselines").is_dir()
    ):
        records |= {file: read_baseline(file) for file in (path / "baselines").glob("[!.]*/*.npz")}
    for file, each in records.items():
        rounded = {name: getattr(each, name).astype(np.float32) for name in ("nats", "group_nats")}
        replace(each, **rounded).save(making / file.relative_to(path))
    left = 0 if _any_has(other_seeds, "samples") else SAMPLES
    samples = (file for file in (path / "samples").glob("*") if file.is_file())
    for file in sorted(samples, key=lambda file: file.stat().st_size):
        left -= file.stat().st_size
        if left >= 0:
            (making / "samples").mkdir(exist_ok=True)
            shutil.copy2(file, making / "samples")
    sealed = [*making.glob("nll/*.npz"), *making.glob("benchmarks/*.npz"), *making.rglob("*.csv")]
    manifest["files"] = {str(file.relative_to(making)): digest_of(file) for file in sorted(sealed)}
    write_text(making / "manifest.json", manifest_text(manifest, indent=1))


def _portable(config: Mapping) -> dict:
    """`config` without paths of this machine, which do not affect results."""
    groups = {
        group: {key: without_folders(value) if key in places else value for key, value in config[group].items()}
        for group, places in PLACES.items()
    }
    return {**config, "run": None, "runs": "runs", "stores": "data", **groups}


def _is_copy(out: Path, run: RunDirectory) -> bool:
    """Whether `out` is an earlier copy of `run`, and may be replaced if it contains nothing else."""
    if out.resolve() == run.path.resolve() or not (out / "manifest.json").exists():
        return False
    return identity(RunDirectory.open(out).config) == identity(run.config)


def _copies(folder: Path, pattern: str, packed: Sequence[PackedPath], but: Sequence[Path]) -> list[AnyPath]:
    """Kept copies below `folder`. Runs with checkpoints, and folders not named like runs (backups), are not copies.

    Args:
        folder: where to search.
        pattern: glob pattern of the copies.
        packed: packed runs of a study; those with paths below `folder` are copies too.
        but: paths to leave out.
    """
    known = [path.resolve() for path in but]
    found: list[AnyPath] = [path for path in folder.glob(pattern) if RUN_NAME.fullmatch(path.name)]
    for path in packed:
        below = path.resolve()
        if below.is_relative_to(folder.resolve()) and below.relative_to(folder.resolve()).match(pattern):
            found.append(path)
    return [path for path in found if path.resolve() not in known and not (path / "checkpoints").exists()]


def _store_of(manifest: AnyPath) -> str | None:
    """sha256 of the store in a run's manifest; None if the file is not a manifest."""
    try:
        return json.loads(manifest.read_text())["store"]["sha256"] if manifest.is_file() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _any_has(folders: Sequence[AnyPath], place: str) -> bool:
    return any((folder / place).exists() for folder in folders)
