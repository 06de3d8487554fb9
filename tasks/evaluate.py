"""task=evaluate run=DIRECTORY: score a split again and print it beside the baselines."""

from bearings.domains.store import Store
from bearings.lightning_modules.evaluation import Records
from bearings.lightning_modules.transformer import Transformer
from bearings.progress import shown
from bearings.tasks.house import House
from bearings.tasks.run_directory import RunDirectory
from bearings.tasks.tables import print_results


class Evaluate:
    """Score `split` with the run's best checkpoint; writes `nll/<split>.npz`.

    Args:
        split: `valid`, `test`, or another that the domain tests.
    """

    needs_run = True

    def __init__(self, split: str = "test"):
        self.split = split

    def __call__(self, house: House) -> None:
        run = RunDirectory.open(house.config["run"]).trained()
        house.refuse_untested(self.split)
        store, transformer = house.trained(run)
        records = score(house, transformer, store, self.split)
        records.save(run.records(self.split))
        run.seal(run.records(self.split))
        run.note_score(self.split)
        print_results(house, run, store, self.split, records, f"{self.split} split of {run.path}")
        if changed := run.changed_source():
            house.console.print(changed, soft_wrap=True)


def score(house: House, transformer: Transformer, store: Store, split: str) -> Records:
    """Score a complete split and show progress."""
    with shown(f"scoring {split}", console=house.console) as report:
        return house.evaluation.score(transformer, store, split, on_batch=report)
