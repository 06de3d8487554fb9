"""The table of final scores: the model and the baselines on one split."""

from collections.abc import Mapping

from rich.table import Table

from ..core.words import plural
from ..domains.baseline_records import kept_baselines
from ..domains.records import Records
from ..domains.store import Store
from ..domains.unit_labels import unit_label
from .run_directory import RunDirectory
from .session import Session


def print_results(session: Session, run: RunDirectory, store: Store, split: str, records: Records, title: str) -> None:
    """Print a split's scores next to the baselines' and, for tasks with right answers, how many seeds solve it."""
    solved, encoding = session.domain.solved, session.config["names"]["encoding"]
    rows = {encoding: records, **kept_baselines(session.domain, store, split, run.baselines(split))}
    session.console.print(results_table(title, rows, solved is not None, session.domain.name))
    if solved is not None:
        seeds = [Records.load(path).accuracy for path in run.other_seeds(split)]
        good = sum(accuracy is not None and accuracy >= solved for accuracy in seeds)
        scored = plural(len(seeds), "seed")
        session.console.print(f"solved (accuracy {100 * solved:g} % or higher) by {good} of {scored}")


def results_table(title: str, rows: Mapping[str, Records], accuracy: bool = False, domain: str = "") -> Table:
    """A table of nats per token and bits per unit, best first, with the first of `rows` in bold.

    Args:
        rows: scores by name, the model's first.
        accuracy: add a column of accuracies.
        domain: name of the domain, for the names of its units.
    """
    own, units = next(iter(rows)), next(iter(rows.values())).unit_names
    groups = dict.fromkeys(group for records in rows.values() for group in records.group_nats_per_token)
    groups = groups if len(groups) > 1 else {}
    table = Table(title=title, title_justify="left", min_width=len(title))
    table.add_column("model", overflow="fold")
    for name in (
        *(["accuracy"] if accuracy else []),
        "nats/token",
        *(f"bits/{unit_label(domain, unit)}" for unit in units),
        *(f"nats/token,\n{group}" for group in groups),
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for name, records in sorted(rows.items(), key=lambda row: row[1].nats_per_token):
        bits, nats = records.bits_per_unit, records.group_nats_per_token
        share = ["" if records.accuracy is None else f"{100 * records.accuracy:.2f} %"] if accuracy else []
        by_group = (f"{nats[group]:.4f}" if group in nats else "" for group in groups)
        figures = *share, f"{records.nats_per_token:.4f}", *(f"{bits[unit]:.3f}" for unit in units), *by_group
        table.add_row(name, *figures, style="bold" if name == own else "")
    return table
