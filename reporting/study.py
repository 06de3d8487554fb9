"""Comparisons: groups of finished runs that differ only in encoding and seed."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core.packed_paths import PackedPath
from ..core.words import plural
from ..domains.base import Measures
from ..session.run_directory import without_folders
from .contestant import Contestant, best_of
from .finished import MLP, RATE, Listed, Run
from .naming import parenthesised, settings_of, short, without_digests

REFUSED = "refused"  # state of a run whose files must not be read
MISSING = "missing"  # state of a run that has no folder
DIVERGED = "diverged"  # state of a run whose training diverged
UNREAD = ("unreadable", "incomplete", REFUSED)  # states of runs whose records may be whole once a fault is mended
LAYERS = "encoding.layers"
MOST_SETTINGS = 4  # in a title; the legend lists all of them
MOST_IN_NAME = 2  # settings


@dataclass(frozen=True)
class Trouble:
    """A run that is not in the tables.

    Attributes:
        place: its folder, or its settings if it has none.
        state: one word, such as "unfinished" or `MISSING`.
        why: the reason in one line.
    """

    place: str
    state: str
    why: str


@dataclass(frozen=True)
class Comparison:
    """Contestants with the same data, tokens, units, lengths and settings.

    Attributes:
        domain: name of the domain.
        slug: part of file names.
        facts: everything that all runs share, by dotted key, and all values of a setting that another comparison has
            among its facts.
        different: the facts that few of the domain's comparisons share, by dotted key.
        diverged: runs that diverged and would belong here, by the label of their model, which may have no contestant.
        name: short name, unique within a study, such as "jsb (length=256)" or "jsb-2".
    """

    domain: str
    slug: str
    facts: Mapping[str, Any]
    different: Mapping[str, Any]
    contestants: Sequence[Contestant]
    diverged: Mapping[str, Sequence[Run]] = field(default_factory=dict)
    name: str = ""

    @property
    def title(self) -> str:
        """The domain and what is different; the slug in place of the domain if settings are left out."""
        shown = without_digests(self.different) or self.different
        pairs = settings_of(shown)
        name = self.domain if len(shown) == len(self.different) and len(pairs) <= MOST_SETTINGS else self.slug
        settings = ", ".join(pairs[:MOST_SETTINGS]) + (", …" if len(pairs) > MOST_SETTINGS else "")
        return f"{name}: {settings}" if pairs else name

    @property
    def full_name(self) -> str | None:
        """The domain and everything that is different; None if that is long."""
        pairs = settings_of(self.different)
        if len(pairs) > MOST_IN_NAME or without_digests(self.different) != self.different:
            return None
        return f"{self.domain} ({', '.join(pairs)})" if pairs else self.domain

    @property
    def any_run(self) -> Run:
        return self.contestants[0].any_run

    @property
    def runs(self) -> list[Run]:
        """The runs of all contestants, each contestant's by seed."""
        return [each.runs[seed] for each in self.contestants for seed in sorted(each.runs)]

    @property
    def labels(self) -> set[str]:
        """The labels of its contestants."""
        return {each.label for each in self.contestants}

    @property
    def splits(self) -> list[str]:
        """The test splits."""
        return self.any_run.manifest["store"]["splits"][2:]

    @property
    def units(self) -> tuple[str, ...]:
        return self.any_run.records[self.splits[0]].unit_names

    def values(self, key: str) -> list[Any]:
        """The different values of a setting that its contestants have, in their order."""
        found = [each.value(key) for each in self.contestants]
        return [value for i, value in enumerate(found) if value not in found[:i]]

    @cached_property
    def listed(self) -> Mapping[Path | None, Listed]:
        """The entries of the studies that its runs belong to, by folder; None stands for runs of no study."""
        return {run.listed.place: run.listed for run in self.runs}

    @property
    def studies(self) -> frozenset[Path | None]:
        """The folders of the studies that its runs belong to; None stands for runs of no study."""
        return frozenset(self.listed)

    @property
    def compared(self) -> frozenset[str]:
        """Keys of settings whose values its studies compare as they compare encodings."""
        return frozenset(key for each in self.listed.values() for key in each.compare)

    @property
    def variants(self) -> frozenset[str]:
        """Keys of settings under which its studies repeat the test of one hypothesis."""
        return frozenset(key for each in self.listed.values() for key in each.variants)

    @property
    def measures(self) -> Measures | None:
        """The metrics of samples of the domain."""
        return self.any_run.domain.measures

    @property
    def solved(self) -> float | None:
        """Accuracy from which a run counts as solved; None if the domain has no right answers."""
        return self.any_run.domain.solved

    @property
    def half_way(self) -> float:
        """Accuracy half-way between guessing and solving the task.

        Raises:
            ValueError: the domain has no right answers.
        """
        if self.solved is None:
            raise ValueError(f"{self.domain} has no right or wrong answers")
        return (self.any_run.domain.chance_with(self.any_run.config["domain"]) + self.solved) / 2

    @property
    def augmented(self) -> str | None:
        """How training windows are augmented, as a sentence; None if they are not."""
        return self.any_run.domain.augmented_with(self.any_run.config["domain"])

    @property
    def margin(self) -> float:
        """Margin of equivalence in nats/token: that of its studies if they give the same one, or the domain's."""
        given = {each.margin for each in self.listed.values()}
        own = given.pop() if len(given) == 1 else None
        return self.any_run.domain.margin if own is None else own

    @property
    def devices(self) -> list[str]:
        """The devices its runs were trained on."""
        return sorted({device for run in self.runs for device in run.devices})

    @property
    def speeds_comparable(self) -> bool:
        """Whether all runs used the same kind of device, and none is known to have shared it."""
        unshared = all(contestant.tokens_per_s is not None for contestant in self.contestants)
        return unshared and len(self.devices) == 1

    @cached_property
    def chosen(self) -> list[Contestant]:
        """The contestants, with only the best learning rate on validation for each, best first.

        Those with too few seeds for a test are last.
        """
        groups: list[list[Contestant]] = []  # of contestants that differ only in settings to choose
        for each in self.contestants:
            keys = {"seed", *self._to_choose(each)}
            alike = (group for group in groups if each.encoding == group[0].encoding)
            alike = (group for group in alike if differing(each.any_run.facts, [group[0].any_run.facts]).keys() <= keys)
            if (group := next(alike, None)) is None:
                groups.append([each])
            else:
                group.append(each)
        return sorted(map(best_of, groups), key=lambda each: (not each.testable, each.validation))

    @cached_property
    def copies(self) -> Mapping[str, str]:
        """Models with the layers and settings of another, and the one with the shortest `encoding.layers`; by labels.

        A model uses a list of layers only up to its number of layers and repeats a shorter one, so different lists can
        make the same model.
        """
        alike: dict[str, list[Contestant]] = {}
        for each in self.chosen:
            run = each.any_run
            if given := run.config["encoding"].get("layers"):
                layers = [layer if isinstance(layer, Mapping) else {layer: {}} for layer in given]
                used = [layers[at % len(layers)] for at in range(run.config["model"]["layers"])]
                ignored = {LAYERS, "seed"} | self._to_choose(each)
                settings = {key: value for key, value in run.facts.items() if key not in ignored}
                alike.setdefault(json.dumps([used, settings], sort_keys=True), []).append(each)
        found = {}
        for group in alike.values():
            first, *others = sorted(group, key=lambda each: len(each.any_run.config["encoding"]["layers"]))
            found |= {each.label: first.label for each in others}
        return found

    def _to_choose(self, contestant: Contestant) -> set[str]:
        """Keys of settings whose best value on validation is chosen for each encoding."""
        return {RATE, *contestant.any_run.listed.searched} - self.compared

    def reference(self, contestant: Contestant, named: str) -> Contestant | None:
        """The contestant that `contestant` is compared with, `named` by its encoding or label; None if there is none.

        One with the same values of compared settings is preferred, then one with the same MLP size, then one whose
        label is exactly `named`, then one with enough seeds for a test, then the one with the fewest changed options,
        then the best on validation. If MLP sizes are not compared, each has its own reference. The values of compared
        settings of the reference encoding have the same reference.
        """
        candidates = [each for each in self.chosen if each.called(named)]
        compared = () if contestant.called(named) else self.compared
        own = () if MLP in self.compared else (MLP,)

        def unlike(each: Contestant) -> list[int]:
            different = ([each.value(key) != contestant.value(key) for key in keys] for keys in (compared, own))
            return [*map(any, different), each.label != named, not each.testable, len(each.model.get("options", {}))]

        return min(candidates, key=unlike, default=None)

    def missing(self) -> list[tuple[Contestant, int]]:
        """Seeds that a contestant lacks and others of the comparison have, without those that diverged."""
        seeds = sorted({run.seed for run in self.runs})
        diverged = {(label, run.seed) for label, runs in self.diverged.items() for run in runs}
        lacking = [(each, seed) for each in self.contestants for seed in seeds if seed not in each.runs]
        return [(each, seed) for each, seed in lacking if (each.label, seed) not in diverged]

    @property
    def without_diverged(self) -> str:
        """How results treat the runs that diverged."""
        if self.solved is None:
            return "Scores, tests and ranks are of the other runs."
        return "Solve rates count these runs as not solving the task; other results are of the other runs."

    @property
    def divergences(self) -> str:
        """How many runs of which models diverged, and when; empty if none did."""
        finished = {each.label: len(each.runs) for each in self.contestants}
        models = []
        for label, runs in self.diverged.items():
            steps = ", ".join(f"seed {run.seed} at step {run.diverged:,}" for run in runs)
            seeds = plural(finished.get(label, 0) + len(runs), "seed")
            models.append(f"{parenthesised(label)}, {len(runs)} of {seeds} ({steps})")
        return "; ".join(models)


@dataclass(frozen=True)
class Study:
    """Everything found under some folders.

    Attributes:
        packed: runs of packed studies, by place.
        unmade: number of models that a study lists and that have too few seeds for a test yet, by the study's folder.
        unlisted: number of runs in the folders of studies that do not list them.
    """

    comparisons: Sequence[Comparison]
    troubles: Sequence[Trouble]
    packed: Mapping[str, PackedPath] = field(default_factory=dict)
    unmade: Mapping[Path, int] = field(default_factory=dict)
    unlisted: int = 0

    @property
    def diverged(self) -> int:
        """Number of runs whose training diverged."""
        return sum(each.state == DIVERGED for each in self.troubles)

    @property
    def runs(self) -> list[Run]:
        return [run for comparison in self.comparisons for run in comparison.runs]

    def manifests(self) -> dict[str, str]:
        """The text of every run's manifest.json, by the run's place, including runs that are not in the tables."""
        places = [
            *(str(run.path) for run in self.runs),
            *(each.place for each in self.troubles if each.state not in (REFUSED, MISSING)),
        ]
        files = {place: self.packed.get(place, Path(place)) / "manifest.json" for place in places}
        there = {place: file for place, file in files.items() if file.is_file()}
        return {place: file.read_text(encoding="utf-8", errors="replace") for place, file in there.items()}

    def legend(self) -> dict[str, str]:
        """How each comparison differs from the first of its domain: a line by name, unless both names list it all."""
        first: dict[str, Comparison] = {}
        lines = {}
        for here in self.comparisons:
            other = first.setdefault(here.domain, here)
            changes = {
                key: f"{short(here.facts.get(key))} (not {short(other.facts.get(key))})"
                for key in differing(here.facts, [other.facts])
            }
            shown = [f"{key} {change}" for key, change in changes.items() if not _repeats(key, changes)]
            files = [without_folders(each.any_run.config["domain"].get("path")) for each in (here, other)]
            if files[0] != files[1] and any(key.startswith("content.") for key in changes):
                shown.insert(0, "domain.path {} (not {})".format(*map(short, files)))
            if shown and not all(each.name == each.full_name for each in (here, other)):
                lines[here.name] = f"{here.name} differs from {other.name}: {'; '.join(shown)}"
        return lines


def _repeats(key: str, changes: Mapping[str, str]) -> bool:
    """Whether `key` says what another one of `changes` says. Settings of a domain that determine its tokens are twice
    among the facts, and those of its content are right if they differ, because some settings can be without effect."""
    group, _, name = key.partition(".")
    twin = {"content": "domain", "domain": "content"}.get(group)
    if twin is None or (other := changes.get(f"{twin}.{name}")) is None:
        return False
    return group == "content" if other == changes[key] else group == "domain"


def coming(unmade: Mapping[Path, int], studies: Iterable[Path | None]) -> int:
    """Number of models that `studies` list and that have too few seeds for a test yet; `unmade` is as in `Study`."""
    return sum(unmade.get(study, 0) for study in studies if study is not None)


def joined(every: Iterable[frozenset[Path | None]]) -> list[frozenset[Path | None]]:
    """The studies of comparisons in disjoint sets: two are in the same set if a comparison has runs of both."""
    sets: list[frozenset[Path | None]] = []
    for studies in set(every):
        touched = [each for each in sets if each & studies]
        sets = [each for each in sets if each not in touched] + [studies.union(*touched)]
    return sets


def differing(here: Mapping[str, Any], everyone: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The items of `here` that differ from those of any of `everyone`."""
    keys = sorted({key for facts in [here, *everyone] for key in facts})
    return {key: here.get(key) for key in keys if any(facts.get(key) != here.get(key) for facts in everyone)}


def unusual(here: Mapping[str, Any], everyone: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The items of `here` that at most half of `everyone`, itself included, share."""
    return {
        key: value
        for key, value in differing(here, everyone).items()
        if 2 * sum(facts.get(key) == value for facts in everyone) <= len(everyone)
    }
