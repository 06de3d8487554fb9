"""metrics.csv: one row a step, appended at once, cut back to the resumed step when a run goes on."""

import csv
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger

from ..core.whole_files import written_whole


class MetricsCSV(Logger):
    """Lightning logger that appends to one CSV file.

    Args:
        path: the file; its rows after `resume_step` are dropped, for they will be written again.
        columns: names of all metrics that may come; others are an error, absent ones stay empty.
    """

    name = version = property(lambda self: None)

    def __init__(self, path: Path, columns: list[str], resume_step: int):
        super().__init__()
        self.path, self.columns = path, ["step", *columns]
        self._begin(resume_step)

    @rank_zero_only
    def _begin(self, resume_step: int) -> None:
        path, kept = self.path, []
        if path.exists():
            with open(path, newline="") as file:
                kept = [row for row in csv.DictReader(file) if int(row["step"]) <= resume_step]
        with written_whole(path) as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(kept)

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        row = {"step": step, **{name: f"{value:.8g}" for name, value in metrics.items()}}
        with open(self.path, "a", newline="") as file:
            csv.DictWriter(file, self.columns).writerow(row)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The run's config.yaml holds them."""
