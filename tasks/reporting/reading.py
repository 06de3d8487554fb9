"""Reading the runs under some folders, and sorting them into comparisons."""

import csv
import hashlib
import json
import re
from collections.abc import Container, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np

from bearings.errors import UserError
from bearings.lightning_modules.evaluation import DAMAGE, Records
from bearings.tasks.reporting.lengths import read_lengths
from bearings.tasks.reporting.planned import LIST, absent, read_list
from bearings.tasks.reporting.study import (
    CONTROLS,
    REFUSED,
    Comparison,
    Contestant,
    Listed,
    Run,
    Study,
    Trouble,
    differing,
    file_name,
    short,
    unusual,
)
from bearings.tasks.run_directory import RunDirectory, identity, leaves
from bearings.tasks.run_files import StrangeFileError
from bearings.tasks.tables import read_baselines

NAME = re.compile(r"\w+")  # of a split or a domain, which name files
RUN_NAME = re.compile(r".*-[0-9a-f]{8}-s\d+")


def read_study(folders: Sequence[Path]) -> Study:
    """Read every run under `folders`.

    Raises:
        UserError: a folder does not exist, or none holds a run.
    """
    runs, troubles, seen, lists = [], [], set(), {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(
                f"{folder}: there is no such folder of runs; give runs=DIRECTORY or task.directories=[DIRECTORY,...]"
            )
        above, inside = folder.resolve().parent, {file.parent.resolve() for file in folder.rglob(LIST)}
        if folder.resolve().name == "runs" and (above / LIST).exists():  # where a study keeps its records
            inside.add(above)
        lists |= {place: read_list(place) for place in sorted(inside)}
    for folder in folders:
        for path in _directories(folder):
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            if not path.resolve().is_relative_to(folder.resolve()):
                why = f"it is a link that leads out of {folder}: name the folder itself in task.directories"
                troubles.append(Trouble(str(path), REFUSED, why))
                continue
            found = _read(path, _listed(_study_of(path, lists), lists))
            (troubles if isinstance(found, Trouble) else runs).append(found)
    listed = {place: absent(place, [run for run in runs if _study_of(run.path, lists) == place]) for place in lists}
    if not runs and not troubles:
        raise UserError(f"{', '.join(map(str, folders))}: no run is there; train some with task=train first")
    comparisons, left_out = _compare(runs)
    missing = [
        Trouble(f"{comparison.title}: {contestant.label}, seed {seed}", "missing", "others here have this seed")
        for comparison in comparisons
        for contestant, seed in comparison.missing()
        if not any(
            each.is_like(run, seed)  # it is told as such
            for run in contestant.runs.values()
            for each in listed.get(_study_of(run.path, lists), ())
        )
    ]
    not_kept = [each.trouble for each in chain(*listed.values())]
    return Study(comparisons, [*troubles, *not_kept, *left_out, *missing])


def _listed(place: Path | None, lists: Mapping[Path, Mapping[str, Any]]) -> Listed:
    told = lists.get(place, {})
    return Listed(place, told.get("published", {}), told.get("variants", ()))


def _study_of(path: Path, lists: Container[Path]) -> Path | None:
    """The study that the run at `path` belongs to: of the resolved folders that have a list, the nearest above it."""
    return next((place for place in path.resolve().parents if place in lists), None)


def _directories(folder: Path) -> list[Path]:
    """Directories of runs at or under `folder`, also of those whose first file was never written.

    What lies inside a run is no other: task=export writes a config.yaml there. Hidden folders are half made.
    """
    found = {path.parent for path in folder.rglob("config.yaml")}
    found |= {path for path in folder.rglob("*-s*") if path.is_dir() and RUN_NAME.fullmatch(path.name)}
    found = {path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)}
    begun = {path for path in found if (path / "manifest.json").exists()}
    return sorted(path for path in found if begun.isdisjoint(path.parents))


def _read(path: Path, listed: Listed) -> Run | Trouble:
    """The run at `path`."""
    try:
        directory = RunDirectory.open(path)
        manifest = directory.manifest
        if not manifest.get("finished"):
            return _unfinished(directory, manifest)
        splits = manifest["store"]["splits"][1:]
        if strange := [name for name in (*splits, manifest["store"]["domain"]) if not NAME.fullmatch(name)]:
            return Trouble(str(path), "unusable", f"manifest.json has {strange[0]!r} for a split or a domain")
        absent = [
            str(directory.records(split).relative_to(path)) for split in splits if not directory.records(split).exists()
        ]
        if absent:
            return Trouble(str(path), "incomplete", f"finished, but {', '.join(absent)} is not there")
        records = {split: Records.load(directory.records(split)) for split in splits}
        decided = dict(leaves(identity(directory.config)))
        facts = {
            **{key: value for key, value in decided.items() if value is not None},
            "store.sha256": manifest["store"]["sha256"],
            "store.units": manifest["store"]["units"],
        }
        for split, each in records.items():
            if each.store != facts["store.sha256"]:
                return Trouble(
                    str(path), "unusable", f"nll/{split}.npz was scored on other data than it was trained on"
                )
            if len(each.documents) != (there := manifest["store"]["documents"][split]):
                why = f"nll/{split}.npz holds {len(each.documents)} of the split's {there} documents"
                return Trouble(str(path), "unusable", why)
            if not np.isfinite(each.nats).all():
                return Trouble(str(path), "unusable", f"nll/{split}.npz holds a figure that is not finite")
        _read_measured(directory)
        return Run(directory, manifest, facts, records, _curve(path / "metrics.csv"), listed)
    except StrangeFileError as error:
        return Trouble(str(path), REFUSED, str(error).removeprefix(f"run={path}: "))
    except UserError as error:
        return Trouble(str(path), "unreadable", str(error).removeprefix(f"run={path}: ").removeprefix(f"{path}/"))
    except DAMAGE as error:
        return Trouble(str(path), "unreadable", f"{type(error).__name__}: {' '.join(str(error).split())}")


def _read_measured(directory: RunDirectory) -> None:
    """Read what tables and plots take of a run beside its records, so that no damaged file ends the report later.

    Raises:
        UserError: a file is damaged.
    """
    for folder in directory.path.glob("baselines/*"):
        read_baselines(folder)
    readers = dict.fromkeys(directory.path.glob("extrapolation/*.csv"), read_lengths)
    readers |= dict.fromkeys(directory.path.glob("mechanisms/*.csv"), _read_figures)
    for file, read in readers.items():
        try:
            read(file)
        except DAMAGE as error:
            name, why = file.relative_to(directory.path), f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise UserError(f"{name} is damaged ({why}): delete it and measure it again") from error


def _read_figures(path: Path) -> None:
    """An encoding of one's own may keep texts; those that are drawn of any are figures."""
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if None in row.values():
                raise ValueError(f"the row {','.join(filter(None, row.values()))} is cut")
            for value in row.values() if path.stem in ("attention", "delta") else ():
                float(value)


def _unfinished(directory: RunDirectory, manifest: Mapping) -> Trouble:
    steps, place = directory.config["trainer"]["steps"], str(directory.path)
    curve = _curve(directory.path / "metrics.csv")
    at = f"step {curve[-1]['step']:.0f} of {steps}" if curve else f"no step of {steps} logged"
    if manifest.get("failed"):
        return Trouble(place, "failed", f"{at}: {manifest['failed']}")
    return Trouble(place, "unfinished", at)


def _curve(path: Path) -> list[dict[str, float]]:
    """Rows of metrics.csv; one that is being written is left out."""
    if not path.exists():
        return []
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    return [{key: float(value) for key, value in row.items() if value} for row in rows]


def _compare(runs: Sequence[Run]) -> tuple[list[Comparison], list[Trouble]]:
    """Comparisons of `runs`, and which runs are left out of them."""
    troubles: list[Trouble] = []
    groups: dict[str, dict[str, dict[int, Run]]] = {}
    for run in runs:
        shared = {key: value for key, value in run.facts.items() if _is_shared(key)}
        own = {key: value for key, value in run.facts.items() if not _is_shared(key) and key != "seed"}
        group = groups.setdefault(_key([run.config["names"]["domain"], shared]), {})
        seeds = group.setdefault(_key([run.encoding, own]), {})
        first = next(iter(next(iter(group.values())).values()), run)
        if run.seed in seeds:
            troubles.append(Trouble(str(run.path), "duplicate", f"the same run as {seeds[run.seed].path}"))
        elif other := _other_documents(run, first):
            why = f"nll/{other}.npz is of other documents than in {first.path}"
            troubles.append(Trouble(str(run.path), "unusable", why))
        else:
            seeds[run.seed] = run
    found = [[seeds for seeds in group.values() if seeds] for group in groups.values()]
    everywhere = [next(iter(group[0].values())) for group in found]
    domains = [run.config["names"]["domain"] for run in everywhere]
    facts = [{key: value for key, value in run.facts.items() if _is_shared(key)} for run in everywhere]
    different, slugs = [], []
    for domain, here in zip(domains, facts, strict=True):
        different.append(unusual(here, [each for each, name in zip(facts, domains, strict=True) if name == domain]))
        digest = hashlib.sha256(_key(here).encode()).hexdigest()[:6]
        slugs.append(file_name(domain) + (f"-{digest}" if different[-1] else ""))
    contestants = map(_contestants, found)
    comparisons = [*map(Comparison, domains, numbered(slugs), facts, different, contestants)]
    return sorted(comparisons, key=lambda comparison: (comparison.title, comparison.slug)), troubles


def _contestants(group: Sequence[Mapping[int, Run]]) -> list[Contestant]:
    """Contestants named by their encoding, and by how they differ from others of the same."""
    kinds = [next(iter(seeds.values())) for seeds in group]
    own = [{key: value for key, value in run.facts.items() if not _is_shared(key) and key != "seed"} for run in kinds]
    labels = []
    for run, here in zip(kinds, own, strict=True):
        others = [each for each, other in zip(own, kinds, strict=True) if other.encoding == run.encoding]
        own_values = differing(here, others).items()
        labels.append(", ".join([run.encoding, *(f"{key.split('.')[-1]}={short(value)}" for key, value in own_values)]))
    return sorted(map(Contestant, numbered(labels), group), key=lambda contestant: contestant.label)


def numbered(names: Sequence[str]) -> list[str]:
    """The names, with a number behind those that are taken: they name files."""
    found: list[str] = []
    for name in names:
        ways = chain([name], (f"{name}-{number}" for number in count(2)))
        found.append(next(each for each in ways if each not in found))
    return found


def _is_shared(key: str) -> bool:
    return key != "seed" and not key.startswith("encoding.") and key not in CONTROLS


def _other_documents(run: Run, first: Run) -> str | None:
    """The split whose records are not of the documents that `first` has."""
    for split, records in run.records.items():
        theirs = first.records[split]
        for name in ("documents", "clusters", "tokens", "units"):
            if not np.array_equal(getattr(records, name), getattr(theirs, name)):
                return split
    return None


def _key(value: Any) -> str:
    """One text for all values that Python holds equal, as `differing` does."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole else value
