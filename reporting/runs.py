"""The table of a comparison's runs: the score of each seed, with its best step and its code version."""

from .finished import Run
from .study import Comparison
from .tables import Row, Table, wrong


def runs_table(comparison: Comparison) -> Table:
    """A row per run: nats/token of each split, and the share of wrong answers if the domain has right answers."""
    rows = [
        _row(contestant.label, contestant.runs[seed], comparison)
        for contestant in comparison.contestants
        for seed in sorted(contestant.runs)
    ]
    columns = {
        "model": ("model", str),
        "seed": ("seed", str),
        "best_step": ("best step", "{:,}".format),
        "valid": ("validation nats/token", "{:.4f}".format),
    }
    for split in comparison.splits:
        columns[split] = (f"{split} nats/token", "{:.4f}".format)
        columns[f"{split}_accuracy"] = (f"{split} error, %", wrong)
    columns["code"] = ("code", str)
    notes = [
        "Best step: the step of the scored checkpoint, which is the best on validation.",
        "Code: the commit that trained the run; + marks uncommitted changes.",
    ]
    return Table(f"{comparison.slug}-runs", f"{comparison.name}: all runs", columns, rows, notes, folded=True)


def _row(model: str, run: Run, comparison: Comparison) -> Row:
    row: Row = {"model": model, "seed": run.seed, "best_step": _best_step(run)}
    row["valid"] = run.records["valid"].nats_per_token
    for split in comparison.splits:
        row[split] = run.records[split].nats_per_token
        row[f"{split}_accuracy"] = run.records[split].accuracy if comparison.solved is not None else None
    codes = [code for session in run.manifest["sessions"] if (code := session.get("code")) and code["commit"]]
    found = dict.fromkeys(code["commit"][:7] + ("+" if code["dirty"] else "") for code in codes)
    return row | {"code": ", ".join(found) or None}


def _best_step(run: Run) -> int | None:
    validated = [row for row in run.curve if "valid_nll" in row]
    return int(min(validated, key=lambda row: row["valid_nll"])["step"]) if validated else None
