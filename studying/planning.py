"""The runs of a study, checked before the first is trained, and the folders of their records."""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import open_dict
from omegaconf.errors import OmegaConfBaseException

from ..core.errors import UserError, suggestions
from ..reporting.naming import short
from ..reporting.packed import packed_names, read_packed
from ..reporting.planned import (
    EXAMPLE,
    LIST,
    SEED,
    as_written,
    expanded,
    listed,
    read_list,
    searched_run,
    without_seed,
    words_of,
)
from ..session.configuration import asked
from ..session.explaining import explain
from ..session.identity import incidental
from ..session.matching import matched
from ..session.overrides import as_setting, key_of
from ..session.run_choices import choices_for, configuration_for
from ..session.run_directory import RunDirectory, changes, unseeded_digest
from ..session.session import Session
from ..session.settings import CONFIGS
from .catalogue import ROOT
from .keeping import keep_in_study
from .searching import Searched

MAIN = ROOT / "main.py"


def seed_of(settings: Sequence[str]) -> int | None:
    """The seed among settings; the last one counts."""
    seeds = [int(setting.removeprefix("seed=")) for setting in settings if SEED.fullmatch(setting)]
    return seeds[-1] if seeds else None


@dataclass
class Planned:
    """One run of a study.

    Attributes:
        settings: settings of its command.
        path: its directory.
        kept: directory of its kept records.
        then: settings of the commands that follow it, one string each.
        one_device: whether it trains on a single device.
        names: the configuration files of its groups.
        other_data: how the data of its records differ from those here; empty if it has none, or if they are the same.
    """

    settings: Sequence[str]
    path: Path
    kept: Path
    then: Sequence[str] = ()
    one_device: bool = True
    names: Mapping[str, str] = field(default_factory=dict)
    other_data: str = ""

    @property
    def seed(self) -> int | None:
        """The seed among its settings, if there is one."""
        return seed_of(self.settings)

    @property
    def unseeded(self) -> tuple[str, ...]:
        """Its settings without the seed."""
        return without_seed(self.settings)

    @property
    def finished(self) -> bool:
        """Whether its records are kept, of these or of other data; that is so once every command has succeeded."""
        study, name = self.kept.parents[3], "/".join(self.kept.parts[-3:])
        return bool(self.other_data) or (self.kept / "manifest.json").exists() or name in packed_names(study)

    def keep(self, sharing: int, commit: str | None) -> None:
        """Keep its records in the study; see `keep_in_study`."""
        keep_in_study(self.path, self.kept, sharing, commit)


Job = Planned | Searched


def commands(runs: Sequence[Job]) -> list[list[str]]:
    """The commands of runs that differ only in their seeds, to be run one after the other."""
    first, given = runs[0], runs[0].settings
    if len(runs) > 1:
        given = [*first.unseeded, f"seed={','.join(str(run.seed) for run in runs)}"]
    trust = [setting for setting in first.settings if key_of(setting) == "trust"]
    paths = ",".join(str(run.path) for run in runs)
    follow = ([*words_of(line), *trust, f"run={paths}"] for line in first.then)
    if len(runs) == 1:
        return [[sys.executable, str(MAIN), *settings] for settings in (given, *follow)]
    # A command for several runs cannot take the names of configuration files from one of them.
    follow = ([*line, *choices_for(first.names, {key_of(each) for each in line})] for line in follow)
    return [[sys.executable, str(MAIN), "-m", *settings] for settings in (given, *follow)]


def together(planned: Sequence[Job], most: int) -> list[list[Job]]:
    """Runs in groups of at most `most` that differ only in their seeds, in the order of their first runs."""
    groups: list[list[Job]] = []
    filling: dict[tuple[str, ...], list[Job]] = {}
    for run in planned:
        group = filling.get(run.unseeded, [])
        if run.seed is None or not group or len(group) == most:
            group = []
            groups.append(group)
            if run.seed is not None:
                filling[run.unseeded] = group
        group.append(run)
    return groups


def plan(folder: Path, runs: Path, settings: Sequence[str] = (), of: str | None = None) -> list[Job]:
    """The runs of the study in `folder`, in the order of its list, or the searches that choose their settings.

    All lines are checked, so that a mistake is reported before anything is trained. Runs with kept records need not be
    possible on this machine.

    Args:
        folder: the study.
        runs: where the runs are trained; searches use the folder `tuning` next to it.
        settings: settings for every run.
        of: settings of some runs, from `searched_run`; only these are planned.

    Raises:
        UserError: the settings are invalid or change results; `runs` is the folder of kept records; a line of the list
            is invalid; two lines are the same run; its reference, a claim or a published result is of an encoding that
            no run has; or a claim has a context that no line of `then` scores.
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
    found: dict[Path, Job] = {}
    lines: dict[Path, str] = {}  # by the directory of the run
    written = [as_written(line, each) for line in study["runs"] for each in expanded(line)]
    search, searches = study.get("search", ""), {}  # by the settings without a seed
    contents: dict[str, Mapping] = {}  # by the domain's settings, so that its files are read once
    identified: dict[tuple, Mapping] = {}  # by the settings without a seed, so that each is composed once
    test_splits: dict[tuple, Sequence[str]] = {}  # by the same; claims with a context are about the first
    checked: set[tuple] = set()
    data_of = cache(lambda: _kept_data(folder))  # most studies do not need it
    follow = study.get("then", ())
    # By the chosen configuration files, so that each is composed once.
    followed: dict[tuple, list[tuple[Mapping, Any]]] = {}
    scored: defaultdict[str, set[int]] = defaultdict(set)  # contexts by encoding
    GlobalHydra.instance().clear()  # initialised by this command
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        for line, (each, chosen) in zip(written, listed(folder), strict=True):
            if of is not None and searched_run(each) != of:
                continue
            given = [*each, *(chosen or ()), *settings, as_setting("runs", runs)]
            unseeded = without_seed(given)
            if unseeded not in identified:
                with _named(folder, line):
                    config, _ = _asked(given)
                    domain = repr(config["domain"])
                    session = Session(matched({**config, **contents.get(domain, {})}))
                    session.identify()
                    identified[unseeded], contents[domain] = session.config, {"content": session.config["content"]}
                    test_splits[unseeded] = session.domain.splits[2:]
            seed = seed_of(given)
            config = {**identified[unseeded], **({} if seed is None else {"seed": seed})}
            run = RunDirectory.of(config)
            if run.path in lines:
                same = "; ".join(dict.fromkeys([lines[run.path], line]))
                raise UserError(f"{folder / LIST}: the same run is listed twice, so remove one: {same}")
            lines[run.path] = line
            names = tuple(config["names"].items())
            one_device = config["trainer"]["devices"] == config["trainer"]["nodes"] == 1
            kept = folder / "runs" / run.path.relative_to(runs)
            planned = Planned(given, run.path, kept, [*follow], one_device, config["names"])
            if not planned.finished and (there := data_of().get(_apart_from_data(config))) is not None:
                planned.other_data = _differing(there, config["content"])
            if unseeded not in checked and not planned.finished:  # records may come from a machine with other devices
                with _named(folder, line):
                    Session.of(config)
                checked.add(unseeded)
            if names not in followed:
                followed[names] = [_followed(folder, then, config["names"]) for then in follow]
            for then, (configuration, task) in zip(follow, followed[names], strict=True):
                with _named(folder, then):
                    configuration_for(run, configuration, words_of(then))
                scored[config["names"]["encoding"]] |= task.possible_contexts(
                    test_splits[unseeded][0], config["data"]["length"]
                )
            if chosen is not None:
                found[run.path] = planned
            else:
                if unseeded not in searches:
                    searches[unseeded] = _search(folder, each, search, settings, runs, config)
                    found[searches[unseeded].path] = searches[unseeded]
                searches[unseeded].waiting += 1
    if of is None:
        _refuse_absent(folder, study, {config["names"]["encoding"] for config in identified.values()})
        _refuse_other_splits(folder, study, {split for splits in test_splits.values() for split in splits})
        _refuse_unscored(folder, study, scored)
    return list(found.values())


def _kept_data(folder: Path) -> dict[tuple[str, int], Mapping]:
    """What identifies the data of each kept run, by the rest of its configuration."""
    kept = [*read_packed(folder).values(), *(each.parent for each in folder.glob("runs/*/*/*/config.yaml"))]
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


def _refuse_unscored(folder: Path, study: Mapping[str, Any], scored: Mapping[str, set[int]]) -> None:
    """Raise UserError for a claim whose context is not among those `scored` for its encodings."""
    for claim in study.get("claims", ()):
        for model in (claim.model, claim.than):
            if claim.context is None or model is None:
                continue
            encoding = model.partition(",")[0]
            if claim.context in scored[encoding]:
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


def _search(
    folder: Path, run: Sequence[str], search: str, settings: Sequence[str], runs: Path, config: Mapping
) -> Searched:
    """The search for the settings of `run`, whose checked configuration is `config`."""
    own, places = ([each for each in given if not key_of(each).startswith("task.")] for given in (run, settings))
    given = [*without_seed(own), *words_of(search), *places, as_setting("task.out", runs.parent / "tuning")]
    with _named(folder, search):
        asked_for, task = _asked(given)
        path = task.check(Session(config))
        return Searched(searched_run(run), search, task.points(config), given, path, task.each_seed(asked_for), folder)


def _followed(folder: Path, line: str, names: Mapping[str, str]) -> tuple[Mapping, Any]:
    """The configuration and the task of a `line` of `then` in the study's list, after a run with these `names`."""
    with _named(folder, line):
        given = words_of(line)
        config, task = _asked([*given, *choices_for(names, {key_of(each) for each in given})])
        if task.needs != "run":
            name = type(task).__name__.lower()
            raise UserError(f"task={name} does not take a finished run, so it cannot be listed under then")
    return config, task


def _asked(given: list[str]) -> tuple[dict, Any]:
    """The configuration and the task that settings `given` to main.py ask for."""
    try:
        config = compose("config", overrides=given, return_hydra_config=True)
    except HydraException as error:
        raise UserError(explain(error, given)) from error
    hydra = config.hydra
    with open_dict(config):
        del config["hydra"]
    return asked(config, hydra)


@contextmanager
def _named(folder: Path, line: str) -> Iterator[None]:
    """Add the study's list and the `line` to the message of an error."""
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException) as error:
        why = error if isinstance(error, UserError) else explain(error)
        raise UserError(f"{folder / LIST}, {line}: {why}") from error
