"""task=evaluate run=DIRECTORY: score a split again and print it next to the baselines."""

from typing import Any

from ..core.progress import shown
from ..domains.records import Records
from ..domains.store import Store
from ..lightning_modules.transformer import Transformer
from ..session.results import print_results
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.task import Task
from .given_files import SPLIT
from .options import EvaluateOptions


class Evaluate(Task):
    """Score `split` with the run's best checkpoint and write `nll/<split>.npz`.

    Args:
        options: fields of `EvaluateOptions`.
    """

    needs = "run"

    def __init__(self, **options: Any):
        self.split = EvaluateOptions(**options).split

    def __call__(self, session: Session) -> None:
        run = RunDirectory.open(session.config["run"]).trained().writable()
        session.refuse_untested(self.split)
        store, transformer = session.trained(run)
        records = score(session, transformer, store, self.split)
        with run.replacing(run.records(self.split)):
            records.save(run.records(self.split))
        run.note_score(self.split)
        print_results(session, run, store, self.split, records, f"{self.split} split of {run.path}")
        if changed := run.changed_source():
            session.console.print(changed)


def score(session: Session, transformer: Transformer, store: Store, split: str) -> Records:
    """Score a complete split, or files, with a progress bar."""
    with shown(
        "scoring the files" if split == SPLIT else f"scoring the {split} split", console=session.console
    ) as report:
        return session.evaluation.score(transformer, store, split, on_batch=report)
