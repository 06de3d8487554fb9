"""The runs of a study as jobs: their commands, and which of them share a process."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ..core.errors import UserError
from ..reporting.lines import SEED, without_seed, words_of
from ..reporting.packed import packed_names
from ..session.overrides import as_value, key_of
from ..session.run_choices import choices_for
from ..session.run_directory import RunDirectory
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
        flags: flags of its commands.
        other_data: how the data of its records differ from those here; empty if it has none, or if they are the same.
    """

    settings: Sequence[str]
    path: Path
    kept: Path
    then: Sequence[str] = ()
    one_device: bool = True
    names: Mapping[str, str] = field(default_factory=dict)
    flags: Sequence[str] = ()
    other_data: str = ""

    suffix: ClassVar[str] = ""  # of the name of its log file

    @property
    def seed(self) -> int | None:
        """The seed among its settings, if there is one."""
        return seed_of(self.settings)

    @property
    def title(self) -> str:
        """Its directory."""
        return str(self.path)

    @property
    def unseeded(self) -> tuple[str, ...]:
        """Its settings without the seed."""
        return without_seed(self.settings)

    @property
    def finished(self) -> bool:
        """Whether its records are kept, of these or of other data: all commands succeeded, or its training diverged."""
        study, name = self.kept.parents[3], "/".join(self.kept.parts[-3:])
        return bool(self.other_data) or (self.kept / "manifest.json").exists() or name in packed_names(study)

    @property
    def trained(self) -> bool:
        """Whether its training has finished."""
        return bool(self._manifest.get("finished"))

    @property
    def diverged(self) -> int | None:
        """The step at which its training diverged; None if it has not."""
        return self._manifest.get("diverged")

    @property
    def _manifest(self) -> Mapping:
        try:
            return RunDirectory(self.path, {}).manifest
        except UserError:  # its command reports the damage
            return {}

    def keep(self, commit: str | None) -> None:
        """Keep its records in the study; see `keep_in_study`."""
        keep_in_study(self.path, self.kept, commit)


Job = Planned | Searched


def commands(runs: Sequence[Job]) -> list[list[str]]:
    """The commands of runs that differ only in their seeds, to be run one after the other."""
    first, given = runs[0], runs[0].settings
    if len(runs) > 1:
        given = [*first.unseeded, f"seed={','.join(str(run.seed) for run in runs)}"]
    trust = [setting for setting in first.settings if key_of(setting) == "trust"]
    paths = ",".join(as_value(run.path) for run in runs)
    follow = ([*words_of(line), *trust, f"run={paths}"] for line in first.then)
    program = [sys.executable, str(MAIN), *first.flags]
    if len(runs) == 1:
        return [[*program, *settings] for settings in (given, *follow)]
    # A command for several runs cannot take the names of configuration files from one of them.
    follow = ([*line, *choices_for(first.names, {key_of(each) for each in line})] for line in follow)
    return [[*program, "-m", *settings] for settings in (given, *follow)]


def together(planned: Sequence[Job], most: int) -> list[list[Job]]:
    """Runs in groups of at most `most` that differ only in their seeds, in the order of their first runs.

    A search is split into parts of at most `most` points, each a group of its own.
    """
    groups: list[list[Job]] = []
    filling: dict[tuple[str, ...], list[Job]] = {}
    for run in planned:
        if isinstance(run, Searched):
            groups.extend([part] for part in run.parts(most))
            continue
        group = filling.get(run.unseeded, [])
        if run.seed is None or not group or len(group) == most:
            group = []
            groups.append(group)
            if run.seed is not None:
                filling[run.unseeded] = group
        group.append(run)
    return groups
