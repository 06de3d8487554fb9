"""python main.py [task=...] [domain=...] [encoding=...] [key=value ...]; --help tells more."""

import os
import sys

from bearings import launcher, stopping

if __name__ == "__main__":
    stopping.listen()  # before the slow imports below

# Hydra then raises its errors instead of printing pages of them; `explain` makes one line of each.
os.environ.setdefault("HYDRA_FULL_ERROR", "1")
# PyTorch's threads wait for each other in a loop; by default so long that another busy process slows a run tenfold.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "50000")

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from bearings.errors import HeldError, UserError
from bearings.tasks.configuration import CONFIGS, asked, one_line_errors, refuse_unknown_flags, trusted_by
from bearings.tasks.trust import trusting
from bearings.terminal import printable

# Runs of this process's sweep, by their settings: Hydra would report only the first.
failed: list[str] = []
held: list[str] = []  # by another process


def run(config: DictConfig) -> None:
    """One run of one task."""
    from bearings.tasks.house import House  # late: --help need not wait for PyTorch
    from bearings.tasks.run_directory import RunDirectory

    hydra_config = HydraConfig.get()
    overrides = list(hydra_config.overrides.task)
    with trusting(trusted_by(config, overrides)):
        plain, task = asked(config, hydra_config)
        needs_run = getattr(task, "needs_run", False)
        if needs_run:
            plain = RunDirectory.open(plain["run"]).configuration_for(plain, overrides)
        house = House.of(plain)
        if needs_run:
            house.refuse_another_source(overrides)
        if house.settings.ranks > 1 and not launcher.launched() and hydra_config.mode == RunMode.MULTIRUN:
            # Each rank would be started with the whole sweep, and a run that fails in one would set them apart.
            raise UserError(
                "trainer.devices: a sweep starts its runs on one device each; run them one by one, or as jobs"
            )
        stopping.begin()
        task(house)


@hydra.main(config_path=str(CONFIGS), config_name="config", version_base="1.3")
def job(config: DictConfig) -> None:
    """What Hydra starts. In a sweep a failed run is reported and the others go on; a stop ends the whole sweep.

    A run that another process is training, such as the same sweep started twice, is skipped.
    """
    sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    settings = " ".join(HydraConfig.get().overrides.task)
    try:
        with one_line_errors():
            try:
                run(config)
            except HeldError as error:
                if not sweep:
                    raise
                held.append(settings)
                print(f"skipped: {printable(str(error))}", file=sys.stderr)
    except SystemExit as end:
        if not sweep or end.code == stopping.STATUS:
            raise
        if HydraConfig.get().runtime.choices["hydra/launcher"] != "basic":
            # A job of its own, whose end its launcher brings back.
            raise UserError(f"a run of the sweep failed: {settings}") from end
        failed.append(settings)


def main() -> None:
    """Entry point."""
    failed.clear()
    held.clear()
    # argparse refuses settings on both sides of a flag.
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda argument: argument not in ("-m", "--multirun"))
    with one_line_errors():
        refuse_unknown_flags(sys.argv[1:])
        place = next((i for i, argument in enumerate(sys.argv) if argument.startswith("run=")), None)
        if place is not None:
            from bearings.tasks.run_directory import choices_of_run  # late, as above

            sys.argv[place:place] = choices_of_run(sys.argv[1:])
        job()
        if held:
            skipped = "a run" if len(held) == 1 else f"{len(held)} runs"
            print(f"skipped {skipped} of the sweep that other processes are training", file=sys.stderr)
        if failed:
            told = "".join(f"\n  {settings}" for settings in failed)
            number = "a run" if len(failed) == 1 else f"{len(failed)} runs"
            raise UserError(f"{number} of the sweep failed, as reported above; rerun the command to try again:{told}")


if __name__ == "__main__":
    main()
