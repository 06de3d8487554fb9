"""The command line: turns settings into one run, or into each run of a sweep."""

import math
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

# Hydra then raises its errors instead of printing long tracebacks; `explain` turns each into one line.
os.environ.setdefault("HYDRA_FULL_ERROR", "1")
# PyTorch's threads busy-wait for each other. With the default limit, another busy process slows a run tenfold; with
# this one threefold, at the same speed on a quiet machine.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .. import __version__
from ..core import launcher, stopping
from ..core.errors import DivergedError, HeldError, UserError
from ..core.terminal import printable
from ..core.words import plural
from .command import Command
from .configuration import asked, trusted_by
from .explaining import line_of, one_line_errors
from .overrides import (
    own_files_of,
    refuse_hidden_files,
    refuse_no_choice,
    refuse_removals,
    refuse_unknown_flags,
    with_new_keys,
)
from .settings import CONFIGS
from .trust import trusting


def run(config: DictConfig) -> float | None:
    """Run one task. Returns its loss, if it has one."""
    hydra_config = HydraConfig.get()
    overrides = list(hydra_config.overrides.task)
    own_files = own_files_of(hydra_config)
    with trusting(trusted_by(config, overrides)):
        plain, task = asked(config, overrides, hydra_config.runtime.choices, own_files)
        sweep = hydra_config.mode == RunMode.MULTIRUN
        given = Command(plain) if task.needs == "nothing" else _session(plain, task.needs, overrides, sweep)
        given.overrides = None if sweep else overrides
        given.own_files = own_files
        stopping.begin(task.resumes)
        return task(given)


def _session(plain: dict, needs: str, overrides: list[str], sweep: bool) -> Command:
    """A checked session for a configuration, or for the run that it names."""
    from .run_choices import configuration_for  # late: --help and errors need no PyTorch
    from .run_directory import RunDirectory
    from .session import Session

    if needs == "run":
        plain = configuration_for(RunDirectory.open(plain["run"]), plain, overrides)
    session = Session.of(plain)
    if needs == "run":
        session.refuse_another_source(overrides)
    if session.settings.ranks > 1 and not launcher.launched() and sweep:
        # Each rank would start the whole sweep, and a run that fails on one rank only would desynchronise them.
        raise UserError("trainer.devices: a sweep trains each run on one device: start the runs separately, or as jobs")
    return session


class Sweep:
    """The runs that this process starts, with those that failed: Hydra would report only the first.

    Attributes:
        failed: settings of runs that failed.
        held: settings of runs that another process was training.
    """

    def __init__(self):
        self.failed: list[str] = []
        self.held: list[str] = []

    def start(self, config: DictConfig) -> float | None:
        """Start one run; called by Hydra. If a run of a sweep fails, the sweep continues.

        Returns:
            The loss for a sweeper, infinity if the run diverged; None if there is none.
        """
        sweep = HydraConfig.get().mode == RunMode.MULTIRUN
        settings = " ".join(HydraConfig.get().overrides.task)
        try:
            with one_line_errors():
                try:
                    return run(config)
                except HeldError as error:
                    if not sweep:
                        raise
                    self.held.append(settings)
                    print(f"skipped: {printable(str(error))}", file=sys.stderr)
        except SystemExit as end:
            if not sweep or end.code == stopping.STATUS:  # a stop ends the whole sweep
                if stopping.requeue_refused():
                    self._fail(settings, UserError("stopped before its time limit; rerun the command to resume"))
                raise
            error = end.__context__ or end  # the error that `one_line_errors` has printed
            self._fail(settings, error)
            return math.inf if isinstance(error, DivergedError) else None
        except Exception as error:
            if not sweep:
                raise
            traceback.print_exc()
            self._fail(settings, error)

    def _fail(self, settings: str, error: BaseException) -> None:
        """Note a failed run whose error has been printed."""
        if HydraConfig.get().runtime.choices["hydra/launcher"] != "basic":
            # A separate job, whose output the user may not see; its launcher hands the error over.
            reason = (line_of(error) if isinstance(error, Exception) else None) or f"{type(error).__name__}: {error}"
            raise UserError(f"a run of the sweep failed: {reason} ({settings})") from error
        self.failed.append(settings)

    def report(self) -> None:
        """Print the number of skipped runs. Raises UserError if runs failed."""
        if self.held:
            skipped = plural(len(self.held), "run")
            print(f"skipped {skipped} of the sweep: other processes are training them", file=sys.stderr)
        if self.failed:
            listed = "".join(f"\n  {settings}" for settings in self.failed)
            failed = plural(len(self.failed), "run")
            raise UserError(f"{failed} of the sweep failed, as reported above; rerun the command to try again:{listed}")


def arranged(arguments: Sequence[str]) -> list[str]:
    """Arguments as Hydra expects them: settings, then flags; `run=` adds the choices of that run's configuration."""
    given = get_args_parser().parse_known_intermixed_args(arguments)[0].overrides
    flags = [argument for argument in arguments if argument not in given]
    settings = with_new_keys(given)
    place = next((i for i, setting in enumerate(settings) if setting.startswith("run=")), None)
    if place is not None:
        from .run_choices import choices_of_run  # late, as above

        settings[place:place] = choices_of_run(settings)
    return [*settings, *flags]


def check_batch(self: Sweeper, batch: Sequence[Sequence[str]]) -> None:
    """Check the settings of all runs of a sweep, in place of Hydra's method, which only composes them.

    Args:
        batch: settings of each run.

    Raises:
        UserError: there are no runs; or see `asked`.
    """
    if not batch:
        raise UserError("the sweep has no runs: a glob() that matches nothing, or an empty range(): correct it")
    loader = cast("HydraContext", self.hydra_context).config_loader
    HydraConfig.instance().cfg = None  # of an earlier command in this process
    for settings in batch:
        composed = loader.load_sweep_config(cast("DictConfig", self.config), list(settings))
        config = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
        overrides = composed.hydra.overrides.task
        trusted = trusting(trusted_by(config, overrides))
        with suppress(OmegaConfBaseException), trusted:  # of values that a run has when it starts, like its number
            asked(config, overrides, composed.hydra.runtime.choices, own_files_of(composed.hydra))
    hydra_config = cast("DictConfig", self.config).hydra
    if hydra_config.runtime.choices["hydra/launcher"].startswith("submitit"):  # it prints nothing
        output = Path(hydra_config.launcher.submitit_folder).parent
        print(f"submitting {plural(len(batch), 'job')}, whose output goes to {output}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. `arguments` default to the program's own."""
    given = sys.argv[1:] if arguments is None else arguments
    if "--version" in given:  # Hydra would print its own
        print(f"bearings {__version__}")
        return
    if {"--help", "-h"} & {*given}:
        from . import help as _  # noqa: F401 (registers the functions of the help template)
    program, sweep = sys.argv[0], Sweep()
    Sweeper.validate_batch_is_legal = check_batch  # Hydra calls it before the first run starts
    job = hydra.main(config_path=str(CONFIGS), config_name="config", version_base="1.3")(sweep.start)
    with one_line_errors():
        refuse_unknown_flags(given)
        refuse_hidden_files(given)
        refuse_no_choice(given)
        refuse_removals(given)
        sys.argv = [program, *arranged(given)]  # Hydra reads them there
        job()
        sweep.report()
