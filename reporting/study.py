"""Kept runs, and comparisons of them within which nothing but the encoding differs."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..core.packed_paths import AnyPath, PackedPath
from ..domains.base import Domain
from ..domains.records import Records
from ..session.configuration import as_typed
from ..session.run_directory import RunDirectory
from ..session.trust import GoneError, located

# What keeps a comparison fair may be chosen for each encoding: an MLP for equal cost, a learning rate of its own.
MLP, RATE = "model.mlp_hidden", "optimizer.learning_rate"
CONTROLS = (MLP, RATE)
REFUSED = "refused"  # the state of a run of which nothing may be read
MOST_TOLD = 4  # settings in a title; lines under the tables tell all
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Trouble:
    """A run that is in no table: where it is or would be, its state in a word, and why."""

    place: str
    state: str
    why: str


@dataclass(frozen=True)
class Listed:
    """What the `study.yaml` that a run belongs to says of its runs; empty where it belongs to none.

    Attributes:
        place: its folder.
        published: what others report of such runs, by split and encoding.
        variants: keys of settings under which the study tests one hypothesis again.
    """

    place: Path | None = None
    published: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    variants: Sequence[str] = ()


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        facts: what decides its figures, by dotted key: its identity, its data and their units. A key that is null is
            left out: of a run that was made before there was such a key, it is absent.
        records: by split, validation included.
        curve: rows of metrics.csv, by column, empty cells left out.
    """

    directory: RunDirectory
    manifest: Mapping
    facts: Mapping[str, Any]
    records: Mapping[str, Records]
    curve: Sequence[Mapping[str, float]]
    listed: Listed

    @property
    def path(self) -> AnyPath:
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
    def published(self) -> dict[str, str]:
        """What others report of such a run, by split."""
        found = self.listed.published.items()
        return {split: figures[self.encoding] for split, figures in found if self.encoding in figures}

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
        """Median of what was logged, the first left out: it holds the start. None where others shared the device."""
        if any(session.get("beside") for session in self.manifest["sessions"]):
            return None
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

    def document_mean(self, split: str) -> float:
        """Nats a token of each document that has targets, averaged over documents and seeds."""
        records = [run.records[split] for run in self.runs.values()]
        return float(np.mean([(each.nats[each.tokens > 0] / each.tokens[each.tokens > 0]).mean() for each in records]))

    def nats(self, split: str, seeds: Iterable[int]) -> np.ndarray:
        """`[seeds, documents]`."""
        return np.stack([self.runs[seed].records[split].nats for seed in seeds])

    @property
    def model(self) -> Mapping[str, Any]:
        """What the manifest says of the model; empty where an earlier version made the run."""
        return self.any_run.manifest.get("model", {})

    @property
    def parameters(self) -> int | None:
        return self.model.get("parameters")

    @property
    def flops_per_token(self) -> float | None:
        """Of training, forward and backward."""
        return self.model.get("flops_per_token")

    @property
    def tokens_per_s(self) -> float | None:
        """Median of the runs; None where one has no speed of its own."""
        speeds = [speed for run in self.runs.values() if (speed := run.tokens_per_s) is not None]
        return float(np.median(speeds)) if len(speeds) == len(self.runs) else None

    @property
    def settings_told(self) -> str | None:
        """Options of the encoding that are not its defaults; None where there are none."""
        told = [f"{key}={short(value)}" for key, value in self.model.get("options", {}).items()]
        return f"{self.label} {', '.join(told)}" if told else None

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
        different: what sets it apart from most of the domain's comparisons, by dotted key.
    """

    domain: str
    slug: str
    facts: Mapping[str, Any]
    different: Mapping[str, Any]
    contestants: Sequence[Contestant]

    @property
    def title(self) -> str:
        told = {key: value for key, value in self.different.items() if "sha256" not in key} or self.different
        pairs = list(dict.fromkeys(f"{key.split('.')[-1]}={short(value)}" for key, value in told.items()))
        # What is left out may be all that tells two of them apart: the slug does then.
        name = self.domain if len(told) == len(self.different) and len(pairs) <= MOST_TOLD else self.slug
        return name + (": " if pairs else "") + ", ".join(pairs[:MOST_TOLD]) + (", …" if len(pairs) > MOST_TOLD else "")

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
    def listed(self) -> Listed:
        """The list of its first run."""
        return self.any_run.listed

    @cached_property
    def _domain(self) -> type[Domain]:
        try:
            return located(self.any_run.config["domain"]["_target_"], "domain")
        except GoneError:  # the domain of a kept run need not be there any more
            return Domain

    @property
    def solved(self) -> float | None:
        """Accuracy from which a run has solved the task; None where targets are not right or wrong."""
        return self._domain.solved

    @property
    def half_way(self) -> float:
        """Accuracy half-way from guessing to solving the task."""
        if self.solved is None:
            raise ValueError(f"the targets of {self.domain} are not right or wrong answers")
        return (self._domain.chance + self.solved) / 2

    @property
    def margin(self) -> float:
        """Nats a token by which encodings may differ and still count as equal."""
        return self._domain.margin

    @property
    def devices(self) -> list[str]:
        """What its runs were trained on."""
        runs = [run for contestant in self.contestants for run in contestant.runs.values()]
        return sorted({device for run in runs for device in run.devices})

    @property
    def speeds_comparable(self) -> bool:
        """Whether every run has a speed of its own."""
        return all(contestant.tokens_per_s is not None for contestant in self.contestants)

    @cached_property
    def chosen(self) -> list[Contestant]:
        """Of contestants that differ in their learning rate only, the best on validation."""
        found: list[Contestant] = []
        for each in sorted(self.contestants, key=lambda each: each.validation):
            facts = [other.any_run.facts for other in found if other.encoding == each.encoding]
            if all(differing(each.any_run.facts, [other]).keys() - {RATE, "seed"} for other in facts):
                found.append(each)
        return found

    def reference(self, contestant: Contestant, encoding: str) -> Contestant | None:
        """What `contestant` is compared with, best on validation first: of `encoding`, with its MLP if there is one."""
        candidates = [each for each in self.chosen if each.encoding == encoding]
        alike = [each for each in candidates if each.controls[MLP] == contestant.controls[MLP]]
        return next(iter(alike or candidates), None)

    def missing(self) -> list[tuple[Contestant, int]]:
        """Seeds that a contestant lacks and others have."""
        seeds = sorted({seed for contestant in self.contestants for seed in contestant.runs})
        return [(each, seed) for each in self.contestants for seed in seeds if seed not in each.runs]


@dataclass(frozen=True)
class Study:
    """Everything found under some folders."""

    comparisons: Sequence[Comparison]
    troubles: Sequence[Trouble]
    packed: Mapping[str, PackedPath] = field(default_factory=dict)  # runs of packed studies, by their places

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
        places = [
            *(str(run.path) for run in self.runs),
            *(each.place for each in self.troubles if each.state != REFUSED),
        ]
        files = {place: self.packed.get(place, Path(place)) / "manifest.json" for place in places}
        return {place: file.read_text(errors="replace") for place, file in files.items() if file.is_file()}

    def apart(self) -> list[str]:
        """For each comparison but a domain's first, a line that names what keeps the two apart."""
        first: dict[str, Comparison] = {}
        lines = []
        for here in self.comparisons:
            there = first.setdefault(here.domain, here)
            told = [
                f"{key} {short(there.facts.get(key))} | {short(here.facts.get(key))}"
                for key in differing(here.facts, [there.facts])
            ]
            if told:
                lines.append(f"{there.title} and {here.title} are not mixed: {'; '.join(told)}")
        return lines


def differing(here: Mapping[str, Any], everyone: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What of `here` is not the same in all of `everyone`."""
    keys = sorted({key for facts in [here, *everyone] for key in facts})
    return {key: here.get(key) for key in keys if any(facts.get(key) != here.get(key) for facts in everyone)}


def unusual(here: Mapping[str, Any], everyone: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What of `here` no more than half of `everyone`, which it is one of, have too: enough to tell all apart."""
    return {
        key: value
        for key, value in differing(here, everyone).items()
        if 2 * sum(facts.get(key) == value for facts in everyone) <= len(everyone)
    }


def file_name(text: str) -> str:
    """`text` as a part of a file's name, cut to 60 characters where it is longer."""
    name = re.sub(r"[^\w=.+]+", "-", text)
    return name if len(name) <= 60 else f"{name[:53]}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:6]}"


def short(value: Any) -> str:
    """A value as a few words, a setting's as it is typed."""
    text = as_typed(value)
    return f"{text[:12]}…" if SHA256.fullmatch(text) else text if len(text) < 60 else f"{text[:60]}…"
