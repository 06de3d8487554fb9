"""task=keep run=DIRECTORY: copy what reports read from a run, without checkpoints and small enough for git."""

from pathlib import Path
from typing import Any

from ..core.options import as_path
from ..session.session import Session
from ..session.task import Task
from ..studying.keeping import keep_run
from .options import KeepOptions


class Keep(Task):
    """Copy the records of a run that has finished or diverged into `out`.

    Args:
        options: fields of `KeepOptions`.
    """

    needs = "run"

    def __init__(self, **options: Any):
        self.out = as_path(KeepOptions(**options).out)

    def __call__(self, session: Session) -> None:
        kept = keep_run(Path(session.config["run"]), self.out)
        size = sum(file.stat().st_size for file in kept.rglob("*") if file.is_file())
        session.console.print(f"kept {size / 1024:,.0f} KiB in {kept}")
