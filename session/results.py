"""A split's score, printed beside its baselines."""

from collections.abc import Mapping

from rich.table import Table

from ..domains.baseline_records import kept_baselines
from ..domains.records import Records
from ..domains.store import Store
from .run_directory import RunDirectory
from .session import Session


def print_results(session: Session, run: RunDirectory, store: Store, split: str, records: Records, title: str) -> None:
    """Print a split's score beside the baselines and, for tasks with right answers, how many seeds have solved it."""
    solved, encoding = session.domain.solved, session.config["names"]["encoding"]
    rows = {encoding: records, **kept_baselines(session.domain, store, split, run.baselines(split))}
    session.console.print(results_table(title, rows, accuracy=solved is not None))
    if solved is not None:
        seeds = [Records.load(path).accuracy for path in run.other_seeds(split)]
        good = sum(accuracy is not None and accuracy >= solved for accuracy in seeds)
        bar = f"accuracy of {100 * solved:g} % or more"
        session.console.print(f"solved ({bar}) by {good} of {len(seeds)} seeds scored so far")


def results_table(title: str, rows: Mapping[str, Records], accuracy: bool = False) -> Table:
    """Nats a token and bits a unit of each row, best first; nats a token by group and accuracy where there are any."""
    units = next(iter(rows.values())).unit_names
    groups = dict.fromkeys(group for records in rows.values() for group in records.group_nats_per_token)
    groups = groups if len(groups) > 1 else {}
    table = Table(title=title, title_justify="left", min_width=len(title))
    table.add_column("model")
    for name in (
        *(["accuracy"] if accuracy else []),
        "nats/token",
        *(f"bits/{unit}" for unit in units),
        *(f"nats/token, {group}" for group in groups),
    ):
        table.add_column(name, justify="right")
    for name, records in sorted(rows.items(), key=lambda row: row[1].nats_per_token):
        bits, apart = records.bits_per_unit, records.group_nats_per_token
        share = ["" if records.accuracy is None else f"{100 * records.accuracy:.2f} %"] if accuracy else []
        by_group = (f"{apart[group]:.4f}" if group in apart else "" for group in groups)
        table.add_row(
            name, *share, f"{records.nats_per_token:.4f}", *(f"{bits[unit]:.3f}" for unit in units), *by_group
        )
    return table
