"""metrics.csv: one row per logged step, written immediately; resuming a run drops rows after the resumed step."""

import csv
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers.logger import Logger

from ..core.checked_files import NAME, why
from ..core.errors import UserError
from ..core.whole_files import written_whole


class MetricsCSV(Logger):
    """Lightning logger that appends to one CSV file.

    Args:
        path: the file.
        columns: names of all metrics. Others are an error; missing ones stay empty.
        resume_step: rows after this step are dropped, as they will be written again.
        validated_step: rows of validations after this step are dropped too, even at `resume_step`: that validation is
            repeated.

    Raises:
        UserError: the file is damaged, or a name could not be read back.
    """

    name = version = property(lambda self: None)

    def __init__(self, path: Path, columns: list[str], resume_step: int, validated_step: int):
        super().__init__()
        self.path, self.columns = path, ["step", *columns]
        if wrong := [name for name in self.columns if not NAME.fullmatch(name) or self.columns.count(name) > 1]:
            raise UserError(
                f"{wrong[0]}: the names of metrics must differ, and have only letters, digits, spaces and _ . + -: "
                "rename this auxiliary loss or diagnostic of the encoding"
            )
        self._begin(resume_step, validated_step)

    @rank_zero_only
    def _begin(self, resume_step: int, validated_step: int) -> None:
        path, kept = self.path, []
        if path.exists():
            try:
                with open(path, newline="", encoding="utf-8") as file:
                    whole = (line for line in file if line.endswith("\n"))  # a full disk may have cut the last one off
                    for row in csv.DictReader(whole):
                        if None in row:
                            raise ValueError("a row has more cells than the header")
                        if int(row["step"]) <= (validated_step if row["valid_nll"] else resume_step):
                            kept.append(row)
            except (KeyError, TypeError, ValueError, csv.Error) as error:
                raise UserError(
                    f"{path} is damaged ({why(error)}): delete it and rerun the same command, which resumes "
                    "without its rows"
                ) from error
        self.columns += [name for name in (kept[0] if kept else ()) if name not in self.columns]
        with written_whole(path) as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(kept)

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        row = {"step": step, **{name: f"{value:.8g}" for name, value in metrics.items()}}
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns)
            if not file.tell():  # the file was deleted during training
                writer.writeheader()
            writer.writerow(row)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Does nothing: hyperparameters are in the run's config.yaml."""
