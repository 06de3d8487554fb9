"""The runs of a study, checked before the first is trained, and the folders of their records."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from ..core.errors import UserError, suggestions
from ..domains.base import Domain
from ..reporting.lines import as_written, expanded, searched_run, without_seed, words_of
from ..reporting.naming import short
from ..reporting.packed import read_packed
from ..reporting.planned import listed
from ..reporting.study_list import EXAMPLE, LIST, read_list
from ..session.explaining import explain
from ..session.identity import incidental, unseeded_digest
from ..session.matching import matched
from ..session.overrides import as_setting, key_of
from ..session.run_choices import choices_for, configuration_for
from ..session.run_directory import RunDirectory, changes
from ..session.session import Session
from ..session.settings import CONFIGS
from .composing import Composer
from .jobs import Job, Planned, seed_of
from .searching import Searched


def plan(
    folder: Path, runs: Path, settings: Sequence[str] = (), of: str | None = None, own_files: str | None = None
) -> list[Job]:
    """The runs of the study in `folder`, in the order of its list, or the searches that choose their settings.

    All lines are checked, so that a mistake is reported before anything is trained. Runs with kept records need not be
    possible on this machine.

    Args:
        folder: the study.
        runs: where the runs are trained; searches use the folder `tuning` next to it.
        settings: settings for every run.
        of: settings of some runs, from `searched_run`; only these are planned.
        own_files: the folder of --config-dir; None without one.

    Raises:
        UserError: the settings are invalid, change results, or name data although the runs have several domains; `runs`
            is the folder of kept records; a line of the list is invalid; two lines are the same run; its reference, a
            claim or a published result is of an encoding that no run has; or a claim has a context that no line of
            `then` scores.
    """
    _refuse_decisive(folder, settings)
    if runs.resolve() == (folder / "runs").resolve():
        raise UserError(
            f"runs={runs}: this folder holds the study's records, and an unfinished run would look like a finished "
            "one: give another folder, such as runs=trained"
        )
    study = read_list(folder)
    if not study["runs"]:
        raise UserError(f"{folder / LIST}: runs is empty: list a line, {EXAMPLE}")
    written = [as_written(line, each) for line in study["runs"] for each in expanded(line)]
    planning = Planning(folder, runs, settings, study, own_files)
    GlobalHydra.instance().clear()  # initialised by this command
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        wanted = [*zip(written, listed(folder), strict=True)]
        if of is None:  # plans of some runs follow one of all
            planning.refuse_shared_data({without_seed(each): line for line, (each, _) in wanted})
        for line, (each, chosen) in wanted:
            if of is None or searched_run(each) == of:
                planning.add(line, each, chosen)
    if of is None:
        planning.check_names()
    return list(planning.jobs.values())


@dataclass
class Alike:
    """Runs that differ only in their seeds.

    Attributes:
        config: their configuration, with the data's digests and the seed of the first.
        domain: their domain; claims with a context are about its first test split.
        checked: whether a session has been made of it, as in training.
        search: the search that chooses their settings, if that is still to do.
    """

    config: Mapping[str, Any]
    domain: Domain
    checked: bool = False
    search: Searched | None = None

    @property
    def splits(self) -> Sequence[str]:
        """Names of their test splits."""
        return self.domain.splits[2:]


class Planning:
    """Checks the lines of a study one after another, while Hydra is initialised.

    Args:
        folder, runs, settings: as for `plan`.
        study: the list, from `read_list`.
        own_files: the folder of --config-dir; None without one.

    Attributes:
        jobs: the runs and searches so far, in order, by their paths.
    """

    def __init__(
        self, folder: Path, runs: Path, settings: Sequence[str], study: Mapping[str, Any], own_files: str | None = None
    ):
        self.folder, self.runs, self.settings, self.study = folder, runs, settings, study
        self._flags = [] if own_files is None else [f"--config-dir={own_files}"]
        self._place = as_setting("runs", runs)
        self.then: Sequence[str] = study.get("then", ())
        self.jobs: dict[Path, Job] = {}
        self._lines: dict[Path, str] = {}  # by the directory of the run
        self._alike: dict[tuple[str, ...], Alike] = {}  # by the settings without a seed, so that each is composed once
        self._composer = Composer(own_files)
        self._contents: dict[str, Mapping] = {}  # by the domain's settings, so that its files are read once
        self._followed: dict[tuple[str, ...], tuple[Mapping, Any]] = {}  # by settings, so that each is composed once
        self._scored: defaultdict[str, set[int]] = defaultdict(set)  # contexts by encoding
        self._kept = cache(lambda: _kept_data(folder))  # most studies do not need it

    def refuse_shared_data(self, runs: Mapping[tuple[str, ...], str]) -> None:
        """Raise UserError if `settings` name data and the runs have several domains.

        Args:
            runs: lines by the settings of their runs without seeds.
        """
        if not (data := [setting for setting in self.settings if key_of(setting).startswith("domain.")]):
            return
        domains = set()
        for each, line in runs.items():
            with _named(self.folder, line):
                domains.add(self._composer.composed(each)[1]["domain"])
        if len(domains) > 1:
            raise UserError(
                f"{data[0]}: the runs of {self.folder / LIST} have several domains, {', '.join(sorted(domains))}: set "
                f"{key_of(data[0])} in its lines instead"
            )

    def add(self, line: str, each: Sequence[str], chosen: Sequence[str] | None) -> None:
        """Plan one run.

        Args:
            line: the run as written in the list, for messages.
            each: its settings in the list.
            chosen: those that the search has chosen; None if the search is still to do.
        """
        given = [*each, *(chosen or ()), *self.settings, self._place]
        alike, seed = self._identified(line, given), seed_of(given)
        config = {**alike.config, **({} if seed is None else {"seed": seed})}
        run = RunDirectory.of(config)
        self._refuse_repeated(line, run.path)
        planned = self._planned(given, config, run.path)
        if not (alike.checked or planned.finished):  # records may come from a machine with other devices
            with _named(self.folder, line):
                Session.of(config)
            alike.checked = True
        self._check_followers(run, config, alike)
        if chosen is not None:
            self.jobs[run.path] = planned
            return
        if alike.search is None:
            alike.search = self._search(each, config)
            self.jobs[alike.search.path] = alike.search
        alike.search.waiting += 1

    def check_names(self) -> None:
        """Raise UserError for an encoding, a test split or a context that the list names and no run has."""
        alike = self._alike.values()
        _refuse_absent(self.folder, self.study, {each.config["names"]["encoding"] for each in alike})
        _refuse_other_splits(self.folder, self.study, {split for each in alike for split in each.splits})
        lengths = [(each.config["names"]["encoding"], each.config["data"]["length"]) for each in alike]
        shortest = dict(sorted(lengths, reverse=True))  # the last of each encoding
        _refuse_unscored(self.folder, self.study, self._scored, shortest)

    def _identified(self, line: str, given: list[str]) -> Alike:
        """What the runs with the settings `given` have in common with those of other seeds."""
        unseeded = without_seed(given)
        if unseeded not in self._alike:
            with _named(self.folder, line):
                config, _ = self._composer.asked(unseeded)  # a line without a seed has the default one
                domain = repr(config["domain"])
                session = Session(matched({**config, **self._contents.get(domain, {})}))
                session.identify()
                self._contents[domain] = {"content": session.config["content"]}
                self._alike[unseeded] = Alike(session.config, session.domain)
        return self._alike[unseeded]

    def _refuse_repeated(self, line: str, path: Path) -> None:
        if path in self._lines:
            same = "; ".join(dict.fromkeys([self._lines[path], line]))
            raise UserError(f"{self.folder / LIST}: the same run is listed twice, so remove one: {same}")
        self._lines[path] = line

    def _planned(self, given: Sequence[str], config: Mapping, path: Path) -> Planned:
        one_device = config["trainer"]["devices"] == config["trainer"]["nodes"] == 1
        kept = self.folder / "runs" / path.relative_to(self.runs)
        planned = Planned(given, path, kept, [*self.then], one_device, config["names"], flags=self._flags)
        if not planned.finished and (there := self._kept().get(_apart_from_data(config))) is not None:
            planned.other_data = _differing(there, config["content"])
        return planned

    def _check_followers(self, run: RunDirectory, config: Mapping, alike: Alike) -> None:
        """Check the lines of `then` for `run`, and note the contexts that they score."""
        for then in self.then:
            with _named(self.folder, then):
                configuration, task = self._follower(words_of(then), config["names"])
                configuration_for(run, configuration, words_of(then))
                if why := task.refusal(alike.domain):
                    raise UserError(why)
            contexts = task.possible_contexts(alike.splits[0], config["data"]["length"])
            self._scored[config["names"]["encoding"]] |= contexts

    def _follower(self, words: Sequence[str], names: Mapping[str, str]) -> tuple[Mapping, Any]:
        """The configuration and the task of the `words` of a line of `then`, after a run with these `names`."""
        keys = {key_of(each) for each in words}
        # The keys of a task do not depend on the run.
        choices = [] if {key.partition(".")[0] for key in keys} == {"task"} else choices_for(names, keys)
        given = (*words, *choices)
        if given not in self._followed:
            config, task = self._composer.asked(given)
            if task.needs != "run":
                name = type(task).__name__.lower()
                raise UserError(f"task={name} does not take a finished run, so it cannot be listed under then")
            self._followed[given] = config, task
        return self._followed[given]

    def _search(self, run: Sequence[str], config: Mapping) -> Searched:
        """The search for the settings of `run`, whose checked configuration is `config`."""
        search = self.study.get("search", "")
        own, places = ([one for one in each if not key_of(one).startswith("task.")] for each in (run, self.settings))
        out = as_setting("task.out", self.runs.parent / "tuning")
        given = [*without_seed(own), *words_of(search), *places, out]
        with _named(self.folder, search):
            asked_for, task = self._composer.asked(given)
            path = task.check(Session(config))
            points, each_seed = task.points(config), task.each_seed(asked_for)
            return Searched(searched_run(run), search, points, given, path, each_seed, self.folder, self._flags)


def _kept_data(folder: Path) -> dict[tuple[str, int], Mapping]:
    """What identifies the data of each kept run, by the rest of its configuration."""
    kept = [*read_packed(folder).values(), *(each.parent for each in folder.glob("runs/*/*/[!.]*/config.yaml"))]
    configs = [RunDirectory.open(path).config for path in kept]
    return {_apart_from_data(config): config["content"] for config in configs}


def _apart_from_data(config: Mapping) -> tuple[str, int]:
    """What determines a run's results except for its data: a digest of the settings, and the seed."""
    return unseeded_digest(config, "content"), config["seed"]


def _differing(there: Mapping, here: Mapping) -> str:
    """What differs between two descriptions of data, as settings."""
    pairs = changes(there, here).items()
    return ", ".join(f"content.{key}={short(kept)}, here {short(own)}" for key, (kept, own) in pairs)


def _refuse_absent(folder: Path, study: Mapping[str, Any], encodings: set[str]) -> None:
    """Raise UserError for a model that the list names, if none of its runs has the encoding."""
    named = [("reference", study.get("reference"))]
    named += [("published", model) for figures in study.get("published", {}).values() for model in figures]
    named += [("claims", model) for claim in study.get("claims", ()) for model in (claim.model, claim.than)]
    for key, model in named:
        if model is not None and (encoding := model.partition(",")[0]) not in encodings:
            allowed = suggestions(encoding, sorted(encodings))
            raise UserError(f"{folder / LIST}, {key}: no run has the encoding {encoding}; {allowed}")


def _refuse_other_splits(folder: Path, study: Mapping[str, Any], splits: set[str]) -> None:
    """Raise UserError for a split that the list names, if it is not a test split of any of its runs."""
    named = [("claims", claim.split) for claim in study.get("claims", ()) if claim.split is not None]
    for key, split in [*named, *(("published", split) for split in study.get("published", ()))]:
        if split not in splits:
            allowed = suggestions(split, sorted(splits))
            raise UserError(f"{folder / LIST}, {key}: no run has the test split {split}; {allowed}")


def _refuse_unscored(
    folder: Path, study: Mapping[str, Any], scored: Mapping[str, set[int]], trained: Mapping[str, int]
) -> None:
    """Raise UserError for a claim whose context is not among those `scored` for its encodings, or not long enough.

    `trained` has the shortest trained length of each encoding.
    """
    for claim in study.get("claims", ()):
        for model in (claim.model, claim.than):
            if claim.context is None or model is None:
                continue
            encoding = model.partition(",")[0]
            if claim.context in scored[encoding]:
                if claim.than is None and claim.context <= (length := trained[encoding]):
                    raise UserError(
                        f"{folder / LIST}, claims: context={claim.context}: {encoding} is trained on {length} tokens: "
                        "give a longer context, or name another model in than"
                    )
                continue
            allowed = ", ".join(map(str, sorted(scored[encoding])))
            raise UserError(
                f"{folder / LIST}, claims: context={claim.context}: no line of then scores {encoding} with it; "
                f"allowed: {allowed or 'none'}; change it, or add task=extrapolate task.contexts=[{claim.context}] "
                "to then"
            )


def _refuse_decisive(folder: Path, settings: Sequence[str]) -> None:
    """Raise UserError for a setting that changes the results of the study's runs."""
    for setting in settings:
        key = key_of(setting)
        if key not in ("stores", "trust") and not key.startswith("task.") and not incidental(key):
            raise UserError(
                f"{setting}: this setting changes the results of the study's runs: add such runs to {folder / LIST}, "
                "or train them with main.py"
            )


@contextmanager
def _named(folder: Path, line: str) -> Iterator[None]:
    """Add the study's list and the `line` to the message of an error."""
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException) as error:
        why = error if isinstance(error, UserError) else explain(error)
        raise UserError(f"{folder / LIST}, {line}: {why}") from error
