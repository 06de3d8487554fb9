"""Reads the runs in given folders."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..core.checked_files import DAMAGE, why
from ..core.cores import on_all_cores
from ..core.errors import UserError
from ..core.hidden import hidden
from ..core.legend_records import legends_of
from ..core.packed_paths import AnyPath, PackedPath
from ..domains.baseline_records import read_baselines
from ..domains.records import Records
from ..session.configuration import refuse_problems
from ..session.identity import identity
from ..session.item_files import read_items
from ..session.run_directory import RUN_NAME, RunDirectory, leaves
from ..session.run_files import StrangeFileError
from .checks import baseline_difference, difference
from .finished import RATE, Listed, Measured, Run
from .grouping import DOCUMENTS, compare
from .lengths import read_lengths
from .losses import Curve, read_curve
from .mechanism_files import read_mechanism
from .packed import RUNS, read_packed
from .planned import absent, searched_keys, unmade_models
from .sample_metrics import read_metrics
from .study import DIVERGED, MISSING, REFUSED, Study, Trouble
from .study_list import LIST, read_list

TOGETHER = 100  # runs; fewer are read sooner than a process for them starts


def read_study(folders: Sequence[Path]) -> Study:
    """Read all runs in `folders`.

    Raises:
        UserError: a folder does not exist, or no folder contains a run.
    """
    places: list[tuple[AnyPath, Listed] | Trouble] = []
    troubles, seen, lists, broken, packed = [], set(), {}, {}, {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; set runs=DIRECTORY or task.directories=[DIRECTORY,...]")
        above, inside = folder.resolve().parent, {file.parent.resolve() for file in folder.rglob(LIST)}
        if folder.resolve().name == "runs" and (above / LIST).exists():  # the folder with a study's records
            inside.add(above)
        for place in sorted(inside - lists.keys()):
            try:
                lists[place] = read_list(place)
            except UserError as error:
                reason = str(error).removeprefix(str(place / LIST)).strip(" ,:")
                broken[place] = Trouble(str(place / LIST), "unreadable", f"{reason}; the study's runs are left out")
    entries = {place: _listed(place, lists) for place in (None, *lists)}
    for folder in folders:
        inside, damaged = _packed(folder)
        troubles += damaged
        packed |= {str(path): path for path in inside}
        for path in sorted([*_directories(folder), *inside], key=lambda path: path.parts):
            resolved = path.resolve()
            if resolved in seen:
                continue
            seen.add(resolved)
            if not resolved.is_relative_to(folder.resolve()):
                reason = f"a link that leads out of {folder}: add its target to task.directories"
                places.append(Trouble(str(path), REFUSED, reason))
                continue
            if _study_of(resolved, {*lists, *broken}) in broken:  # its family of tests is unknown
                continue
            places.append((path, entries[_study_of(resolved, lists)]))
    read = _read_all(places)
    made = [each for each in read if isinstance(each, Run)]
    runs, diverged = [run for run in made if run.diverged is None], [run for run in made if run.diverged is not None]
    troubles += [each for each in read if isinstance(each, Trouble)]
    troubles += [_unfinished(run.directory, run.manifest) for run in diverged]
    against = {place: absent(place, [run for run in made if run.listed.place == place]) for place in lists}
    listed = {place: lacking for place, (lacking, _) in against.items()}
    troubles += broken.values()
    if not runs and not troubles:
        raise UserError(f"{', '.join(map(str, folders))}: no runs found; train some with task=train first")
    comparisons, left_out = compare(runs, diverged)
    missing = [
        Trouble(f"{comparison.title}: {contestant.label}, seed {seed}", MISSING, "other models have this seed")
        for comparison in comparisons
        for contestant, seed in comparison.missing()
        if not any(
            each.is_like(run, seed)  # listed below as such
            for run in contestant.runs.values()
            for each in listed.get(run.listed.place, ())
        )
    ]
    not_kept = [each.trouble for each in chain(*listed.values())]
    tested = [each.any_run for comparison in comparisons for each in comparison.chosen if each.testable]
    unmade = {}
    for place, absents in listed.items():
        if not absents and all(run.listed.place != place for run in diverged):
            continue
        own, here = [run for run in tested if run.listed.place == place], entries[place]
        # Settings among which a study chooses, or under which it repeats a test, do not make another model.
        same = {RATE, *here.searched, *here.variants} - {*here.compare}
        unmade[place] = unmade_models(place, own, same)
    elsewhere = {each.place for each in left_out}
    in_tables = (run for _, others in against.values() for run in others if run.diverged is None)
    unlisted = sum(str(run.path) not in elsewhere for run in in_tables)
    return Study(comparisons, [*troubles, *not_kept, *left_out, *missing], packed, unmade, unlisted)


def _listed(place: Path | None, lists: Mapping[Path, Mapping[str, Any]]) -> Listed:
    entries = {} if place is None else lists.get(place, {})
    published, variants, compare = entries.get("published", {}), entries.get("variants", ()), entries.get("compare", ())
    variants, searched, compare = map(_of_facts, (variants, searched_keys(entries), compare))
    return Listed(place, published, variants, searched, compare, entries.get("margin"))


def _of_facts(keys: Sequence[str]) -> list[str]:
    """The keys of facts for keys of settings. Settings of a domain that determine its tokens are facts as content."""
    return [*keys, *(key.replace("domain.", "content.", 1) for key in keys if key.startswith("domain."))]


def _study_of(path: Path, lists: Container[Path]) -> Path | None:
    """The study of the run at `path`: its nearest parent folder in `lists`. All paths are resolved."""
    return next((place for place in path.parents if place in lists), None)


def _directories(folder: Path) -> list[Path]:
    """Run directories in `folder`, including those without any file yet.

    Folders inside a run are skipped, because task=export writes a config.yaml there. Hidden folders are incomplete.
    """
    found = {path.parent for path in folder.rglob("config.yaml")}
    found |= {path for path in folder.rglob("*-s*") if path.is_dir() and RUN_NAME.fullmatch(path.name)}
    found = {path for path in found if not hidden(path.relative_to(folder))}
    begun = {path for path in found if (path / "manifest.json").exists()}
    return sorted(path for path in found if begun.isdisjoint(path.parents))


def _packed(folder: Path) -> tuple[list[PackedPath], list[Trouble]]:
    """Runs of packed studies in `folder` that have no run directory, and the studies that are damaged."""
    found, troubles = [], []
    for file in sorted(folder.rglob(RUNS)):
        if file.with_name(LIST).exists():
            try:
                found += [path for path in read_packed(file.parent).values() if not path.resolve().exists()]
            except UserError as error:
                troubles.append(Trouble(str(file.parent), "unreadable", str(error).removeprefix(f"{file.parent}/")))
    return found, troubles


def _read_all(places: Sequence[tuple[AnyPath, Listed] | Trouble]) -> list[Run | Trouble]:
    """The runs at `places`, or why they are left out, with those troubles that `places` already has."""
    asked = [each for each in places if not isinstance(each, Trouble)]
    begins = range(0, len(asked), TOGETHER)  # not the runs, because all records of a study would be sent with them
    read = chain(*on_all_cores(lambda begin: _read_together(asked[begin : begin + TOGETHER]), begins))
    found: list[Run | Trouble] = []
    for each in places:
        what = each if isinstance(each, Trouble) else next(read)
        if isinstance(what, Run) and not isinstance(each, Trouble):
            what = replace(what, directory=RunDirectory(each[0], what.config))
        found.append(what)
    return found


def _read_together(places: Sequence[tuple[AnyPath, Listed]]) -> list[Run | Trouble]:
    """What is at `places`, in a form that a process returns quickly.

    Runs are at ordinary paths, because all files of a packed study would be returned with every run of it. They share
    arrays that are equal, as the names of the documents are.
    """
    found, arrays = [_read(*each) for each in places], dict[tuple, np.ndarray]()
    for place, run in enumerate(found):
        if isinstance(run, Run):
            directory = RunDirectory(Path(str(run.path)), run.config)
            records = {split: _sharing(each, arrays) for split, each in run.records.items()}
            found[place] = replace(run, directory=directory, records=records)
    return found


def _sharing(records: Records, arrays: dict[tuple, np.ndarray]) -> Records:
    """`records` with those of `arrays` that equal its own; its other arrays are added."""
    own = {name: getattr(records, name) for name in DOCUMENTS}
    keys = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in own.items()}
    return replace(records, **{name: arrays.setdefault(keys[name], array) for name, array in own.items()})


def _read(path: AnyPath, listed: Listed) -> Run | Trouble:
    """The run at `path`, or why it is left out."""
    try:
        directory = RunDirectory.open(path)
        refuse_problems(directory.config, lenient=True)
        manifest = directory.manifest
        if not manifest.get("finished") and manifest.get("diverged") is None:
            return _unfinished(directory, manifest)
        splits = manifest["store"]["splits"][1:] if manifest.get("finished") else []
        absent = [
            str(directory.records(split).relative_to(path)) for split in splits if not directory.records(split).exists()
        ]
        if absent:
            return Trouble(str(path), "incomplete", f"finished, but {', '.join(absent)} is missing")
        if not isinstance(path, PackedPath):  # whose digests are checked when it is read
            directory.check_unchanged(*map(directory.records, splits), manifest=manifest)
        records = {split: Records.load(directory.records(split)) for split in splits}
        if other := difference(directory, manifest, records):
            return Trouble(str(path), "unusable", other)
        baselines = {split: read_baselines(directory.baselines(split)) for split in splits}
        if other := _baseline_difference(baselines, records):
            return Trouble(str(path), "unusable", other)
        measured = _measured(directory, manifest)
        decided = dict(leaves(identity(directory.config)))
        facts = {
            **{key: value for key, value in decided.items() if value is not None},
            "store.sha256": manifest["store"]["sha256"],
            "store.units": manifest["store"]["units"],
        }
        return Run(directory, manifest, facts, records, baselines, _curve(directory), measured, listed)
    except StrangeFileError as error:
        return Trouble(str(path), REFUSED, str(error).removeprefix(f"run={path}: "))
    except UserError as error:
        return Trouble(str(path), "unreadable", str(error).removeprefix(f"run={path}: ").removeprefix(f"{path}/"))
    except DAMAGE as error:
        return Trouble(str(path), "unreadable", why(error))


def _baseline_difference(baselines: Mapping[str, Mapping[str, Records]], records: Mapping[str, Records]) -> str | None:
    """How a baseline contradicts the records, or None."""
    for split, found in baselines.items():
        for name, baseline in found.items():
            if other := baseline_difference(f"baselines/{split}/{name}.npz", baseline, records[split]):
                return other
    return None


def _measured(directory: RunDirectory, manifest: Mapping) -> Measured:
    """What tasks have measured of the run.

    Raises:
        UserError: a file is damaged, or has changed since it was written.
    """
    folders = ("extrapolation", "mechanisms", "sample_metrics")
    lengths, mechanisms, samples = ([*directory.path.glob(f"{folder}/*.csv")] for folder in folders)
    tables = (*lengths, *mechanisms, *samples)
    directory.check_unchanged(directory.path / "metrics.csv", *tables, manifest=manifest)
    legends = legends_of(manifest)
    return Measured(
        {file.stem: read_lengths(file) for file in lengths},
        {file.stem: read_mechanism(file, legends.get(file.stem)) for file in mechanisms},
        {file.stem: read_metrics(file) for file in samples},
        read_items(directory),
    )


def _curve(directory: RunDirectory) -> Curve:
    try:
        return read_curve(directory.path / "metrics.csv")
    except DAMAGE as error:
        raise UserError(f"metrics.csv is damaged ({why(error)}): train the run again") from error


def _unfinished(directory: RunDirectory, manifest: Mapping) -> Trouble:
    steps, place = directory.config["trainer"]["steps"], str(directory.path)
    if (step := manifest.get("diverged")) is not None:  # the curve may go on to the next logged step
        return Trouble(place, DIVERGED, f"step {step} of {steps}: {manifest.get('failed')}")
    curve = _curve(directory)
    at = f"step {curve['step'].steps[-1]} of {steps}" if curve else f"none of {steps} steps logged"
    if manifest.get("failed"):
        return Trouble(place, "failed", f"{at}: {manifest['failed']}")
    return Trouble(place, "unfinished", at)
