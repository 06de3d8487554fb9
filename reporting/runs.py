"""The table of a comparison's runs: the score of each seed, with its best step and its code version."""

from collections.abc import Iterator
from typing import Any

from ..encodings.options.rotation import drop_step
from .finished import Run
from .losses import validations
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
        "Code: the commit that trained the run; + and a digest mark uncommitted changes and own packages.",
    ]
    return Table(f"{comparison.slug}-runs", f"{comparison.name}: all runs", columns, rows, notes, folded=True)


def _row(model: str, run: Run, comparison: Comparison) -> Row:
    row: Row = {"model": model, "seed": run.seed, "best_step": _best_step(run)}
    row["valid"] = run.records["valid"].nats_per_token
    for split in comparison.splits:
        row[split] = run.records[split].nats_per_token
        row[f"{split}_accuracy"] = run.records[split].accuracy if comparison.solved is not None else None
    found = [commit[:7] + (changed and f"+{changed[:4]}") for commit, changed in _code(run)]
    return row | {"code": ", ".join(dict.fromkeys(found)) or None}


def differently_changed(comparison: Comparison) -> list[str]:
    """Labels of models whose runs had different code outside their commits."""
    changes = {
        each.label: {changed for run in each.runs.values() for _, changed in _code(run)}
        for each in comparison.contestants
    }
    return [label for label, found in changes.items() if len(found) > 1]


def _code(run: Run) -> list[tuple[str, str]]:
    """The commits that trained a run, each with the digest of code outside it, which is empty if there is none."""
    codes = (session.get("code") for session in run.manifest["sessions"])
    return list(dict.fromkeys((code["commit"], code["dirty"] or "") for code in codes if code and code["commit"]))


def _best_step(run: Run) -> int | None:
    """The best validation, as training chooses it: not before rotations are annealed away or dropped."""
    trainer = run.config["trainer"]
    first, steps = trainer.get("anneal_steps") or 0, trainer["steps"]
    if shares := [*_shares(run.config["encoding"])]:
        first = max(first, drop_step(max(shares), steps) + 1)
    scores = {step: nats for step, nats in validations(run.curve).items() if step >= first}
    return min(scores, key=scores.__getitem__, default=None)


def _shares(options: Any) -> Iterator[float]:
    """The `drop_after` of an encoding and of those in its layers."""
    if isinstance(options, dict):
        if (share := options.get("drop_after")) is not None:
            yield share
        options = list(options.values())
    for each in options if isinstance(options, list) else ():
        yield from _shares(each)
