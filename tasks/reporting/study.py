"""The runs that were kept: read, and sorted into comparisons within which nothing but the encoding differs."""

import csv
import hashlib
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.utils import get_object

from bearings.errors import UserError
from bearings.lightning_modules.evaluation import Records
from bearings.lightning_modules.transformer import Transformer
from bearings.tasks.configuration import build
from bearings.tasks.run_directory import RunDirectory, identity, leaves

# What keeps a comparison fair may be chosen for each encoding: an MLP for equal cost, a learning rate of its own.
CONTROLS = ("model.mlp_hidden", "optimizer.learning_rate")
SHA256 = re.compile(r"[0-9a-f]{64}")
RUN_NAME = re.compile(r".*-[0-9a-f]{8}-s\d+")


@dataclass(frozen=True)
class Trouble:
    """A run that is in no table: where it is or would be, its state in a word, and why."""

    place: str
    state: str
    why: str


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        facts: what decides its figures, by dotted key: its identity, its data and their units.
        records: by split, validation included.
        curve: rows of metrics.csv, by column, empty cells left out.
    """

    directory: RunDirectory
    manifest: Mapping
    facts: Mapping[str, Any]
    records: Mapping[str, Records]
    curve: Sequence[Mapping[str, float]]

    @property
    def path(self) -> Path:
        return self.directory.path

    @property
    def config(self) -> Mapping:
        return self.directory.config

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def encoding(self) -> str:
        return self.config["names"]["encoding"]

    @property
    def devices(self) -> list[str]:
        """What it was trained on, as far as it bears on speed."""
        found = set()
        for session in self.manifest["sessions"]:
            several = f"{session['ranks']} x " if session.get("ranks", 1) > 1 else ""
            found.add(several + session["device"] + (", compiled" if session.get("compiled") else ""))
        return sorted(found)

    @property
    def tokens_per_s(self) -> float | None:
        """Median of what was logged, the first left out: it holds the start."""
        logged = [row["tokens_per_s"] for row in self.curve if "tokens_per_s" in row][1:]
        return float(np.median(logged)) if logged else None


@dataclass(frozen=True)
class Contestant:
    """Runs that differ in their seed alone, `runs` by seed."""

    label: str
    runs: Mapping[int, Run]

    @property
    def any_run(self) -> Run:
        return self.runs[min(self.runs)]

    @property
    def encoding(self) -> str:
        return self.any_run.encoding

    @property
    def controls(self) -> dict[str, Any]:
        return {key: self.any_run.facts.get(key) for key in CONTROLS}

    @property
    def validation(self) -> float:
        """Mean nats a token of the validation split."""
        return float(np.mean([run.records["valid"].nats_per_token for run in self.runs.values()]))

    def nats(self, split: str, seeds: Iterable[int]) -> np.ndarray:
        """`[seeds, documents]`."""
        return np.stack([self.runs[seed].records[split].nats for seed in seeds])

    @cached_property
    def transformer(self) -> Transformer | None:
        """The model without its weights; None where its encoding is not to be had any more."""
        config = self.any_run.config
        try:
            with torch.device("meta"):
                return build(
                    config["model"],
                    "model",
                    vocabulary=self.any_run.manifest["store"]["vocabulary"],
                    encoding=partial(build, config["encoding"], "encoding"),
                    seed=0,
                )
        except Exception:
            return None

    @property
    def parameters(self) -> int | None:
        return self.transformer and self.transformer.parameter_count()

    @property
    def flops_per_token(self) -> float | None:
        """Of training, forward and backward."""
        return self.transformer and 3.0 * self.transformer.flops_per_token(self.any_run.config["data"]["length"])

    @property
    def tokens_per_s(self) -> float | None:
        speeds = [run.tokens_per_s for run in self.runs.values() if run.tokens_per_s is not None]
        return float(np.median(speeds)) if speeds else None

    @property
    def peak_memory(self) -> int | None:
        """Bytes that training held at its peak on a GPU; None where nobody looked."""
        peaks = [run.manifest["peak_memory_bytes"] for run in self.runs.values() if "peak_memory_bytes" in run.manifest]
        return max(peaks, default=None)


@dataclass(frozen=True)
class Comparison:
    """Contestants on the same data, tokens, units, lengths and settings.

    Attributes:
        domain: its name. slug: for file names. facts: what all runs share.
        different: what sets it apart from the domain's other comparisons, by dotted key.
    """

    domain: str
    slug: str
    facts: Mapping[str, Any]
    different: Mapping[str, Any]
    contestants: Sequence[Contestant]

    @property
    def title(self) -> str:
        told = {key: value for key, value in self.different.items() if "sha256" not in key} or self.different
        pairs = [f"{key.split('.')[-1]}={_short(value)}" for key, value in told.items()]
        return self.domain + (": " + ", ".join(dict.fromkeys(pairs)) if pairs else "")

    @property
    def any_run(self) -> Run:
        return self.contestants[0].any_run

    @property
    def splits(self) -> list[str]:
        """Splits that are tested."""
        return self.any_run.manifest["store"]["splits"][2:]

    @property
    def units(self) -> tuple[str, ...]:
        return self.any_run.records[self.splits[0]].unit_names

    @property
    def solved(self) -> float | None:
        """Accuracy from which a run has solved the task; None where targets are not right or wrong."""
        try:
            return get_object(self.any_run.config["domain"]["_target_"]).solved
        except Exception:  # the domain of a kept run need not be there any more
            return None

    @property
    def devices(self) -> list[str]:
        """What its runs were trained on."""
        runs = [run for contestant in self.contestants for run in contestant.runs.values()]
        return sorted({device for run in runs for device in run.devices})

    def reference(self, contestant: Contestant, encoding: str) -> Contestant | None:
        """What `contestant` is compared with: the one of `encoding` with its controls, or the best on validation."""
        candidates = [each for each in self.contestants if each.encoding == encoding]
        alike = [each for each in candidates if each.controls == contestant.controls]
        return min(alike or candidates, key=lambda each: each.validation, default=None)

    def missing(self) -> list[Trouble]:
        """Seeds that some contestants have and others lack."""
        seeds = sorted({seed for contestant in self.contestants for seed in contestant.runs})
        return [
            Trouble(f"{self.title}: {contestant.label}, seed {seed}", "missing", "others here have this seed")
            for contestant in self.contestants
            for seed in seeds
            if seed not in contestant.runs
        ]


@dataclass(frozen=True)
class Study:
    """Everything found under some folders."""

    comparisons: Sequence[Comparison]
    troubles: Sequence[Trouble]

    @property
    def runs(self) -> list[Run]:
        return [
            contestant.runs[seed]
            for comparison in self.comparisons
            for contestant in comparison.contestants
            for seed in sorted(contestant.runs)
        ]

    def manifests(self) -> dict[str, str]:
        """manifest.json of every run that has one, whether it is in a table or not, by its place."""
        places = [*(str(run.path) for run in self.runs), *(trouble.place for trouble in self.troubles)]
        files = {place: Path(place) / "manifest.json" for place in places}
        return {place: file.read_text(errors="replace") for place, file in files.items() if file.exists()}

    def apart(self) -> list[str]:
        """For each comparison but a domain's first, a line that names what keeps the two apart."""
        first: dict[str, Comparison] = {}
        lines = []
        for here in self.comparisons:
            there = first.setdefault(here.domain, here)
            told = [
                f"{key} {_short(there.facts.get(key))} | {_short(here.facts.get(key))}"
                for key in _differing(here.facts, [there.facts])
            ]
            if told:
                lines.append(f"{there.slug} and {here.slug} are not mixed: {'; '.join(told)}")
        return lines


def read_study(folders: Sequence[Path]) -> Study:
    """Read every run under `folders`.

    Raises:
        UserError: a folder does not exist, or none holds a run.
    """
    runs, troubles, seen = [], [], set()
    for folder in folders:
        if not folder.is_dir():
            raise UserError(
                f"{folder}: there is no such folder of runs; give runs=DIRECTORY or task.directories=[DIRECTORY,...]"
            )
        for path in _directories(folder):
            if path.resolve() in seen:
                continue
            seen.add(path.resolve())
            found = _read(path)
            (troubles if isinstance(found, Trouble) else runs).append(found)
    if not runs and not troubles:
        raise UserError(f"{', '.join(map(str, folders))}: no run is there; train some with task=train first")
    comparisons, left_out = _compare(runs)
    missing = [trouble for comparison in comparisons for trouble in comparison.missing()]
    return Study(comparisons, [*troubles, *left_out, *missing])


def _directories(folder: Path) -> list[Path]:
    """Directories of runs at or under `folder`, also of those whose first file was never written."""
    found = {path.parent for path in folder.rglob("config.yaml")}
    found |= {path for path in folder.rglob("*-s*") if path.is_dir() and RUN_NAME.fullmatch(path.name)}
    return sorted(found)


def _read(path: Path) -> Run | Trouble:
    try:
        directory = RunDirectory.open(path)
        manifest = directory.manifest
        if not manifest.get("finished"):
            return _unfinished(directory, manifest)
        splits = manifest["store"]["splits"][1:]
        absent = [
            str(directory.records(split).relative_to(path)) for split in splits if not directory.records(split).exists()
        ]
        if absent:
            return Trouble(str(path), "incomplete", f"finished, but {', '.join(absent)} is not there")
        records = {split: Records.load(directory.records(split)) for split in splits}
        facts = {
            **dict(leaves(identity(directory.config))),
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
        return Run(directory, manifest, facts, records, _curve(path / "metrics.csv"))
    except UserError as error:
        return Trouble(str(path), "unreadable", str(error).removeprefix(f"run={path}: "))
    except (OSError, ValueError, KeyError, TypeError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        return Trouble(str(path), "unreadable", f"{type(error).__name__}: {' '.join(str(error).split())}")


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
    comparisons = []
    for group, domain, here in zip(found, domains, facts, strict=True):
        others = [each for each, name in zip(facts, domains, strict=True) if name == domain]
        different = _differing(here, others)
        digest = hashlib.sha256(_key(here).encode()).hexdigest()[:6]
        slug = domain + (f"-{digest}" if different else "")
        comparisons.append(Comparison(domain, slug, here, different, _contestants(group)))
    return sorted(comparisons, key=lambda comparison: comparison.slug), troubles


def _contestants(group: Sequence[Mapping[int, Run]]) -> list[Contestant]:
    """Contestants named by their encoding, and by how they differ from others of the same."""
    kinds = [next(iter(seeds.values())) for seeds in group]
    own = [{key: value for key, value in run.facts.items() if not _is_shared(key) and key != "seed"} for run in kinds]
    found = []
    for seeds, run, here in zip(group, kinds, own, strict=True):
        others = [each for each, other in zip(own, kinds, strict=True) if other.encoding == run.encoding]
        differing = _differing(here, others).items()
        label = ", ".join([run.encoding, *(f"{key.split('.')[-1]}={_short(value)}" for key, value in differing)])
        found.append(Contestant(label, seeds))
    return sorted(found, key=lambda contestant: contestant.label)


def _is_shared(key: str) -> bool:
    return key != "seed" and not key.startswith("encoding.") and key not in CONTROLS


def _differing(here: Mapping[str, Any], everyone: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    keys = sorted({key for facts in [here, *everyone] for key in facts})
    return {key: here.get(key) for key in keys if any(facts.get(key) != here.get(key) for facts in everyone)}


def _other_documents(run: Run, first: Run) -> str | None:
    """The split whose records are not of the documents that `first` has."""
    for split, records in run.records.items():
        theirs = first.records[split]
        for name in ("documents", "clusters", "tokens", "units"):
            if not np.array_equal(getattr(records, name), getattr(theirs, name)):
                return split
    return None


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:12]}…" if SHA256.fullmatch(text) else text if len(text) < 60 else f"{text[:60]}…"
