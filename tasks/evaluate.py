"""task=evaluate run=DIRECTORY: score a split again and print it beside the baselines."""

from typing import Literal

from rich.progress import Progress

from bearings.tasks.house import House
from bearings.tasks.run_directory import RunDirectory
from bearings.tasks.tables import baselines, results_table


class Evaluate:
    """Score `split` with the run's best checkpoint; writes `nll/<split>.npz`.

    Args:
        split: `valid` or `test`.
    """

    needs_run = True

    def __init__(self, split: Literal["valid", "test"] = "test"):
        self.split = split

    def __call__(self, house: House) -> None:
        run = RunDirectory.open(house.config["run"])
        store = house.store()
        run.check_data(store.manifest)
        transformer = house.load(run.best, store)
        with Progress(console=house.console, transient=True) as progress:
            bar = progress.add_task(f"scoring {self.split}")
            records = house.evaluation.score(
                transformer,
                store,
                self.split,
                on_batch=lambda done, total: progress.update(bar, completed=done, total=total),
            )
        records.save(run.records(self.split))
        rows = {house.config["names"]["encoding"]: records, **baselines(house.domain, store, self.split)}
        house.console.print(results_table(f"{self.split} split of {run.path}", rows))
