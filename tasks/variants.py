"""task=variants run=DIRECTORY task.files=[FILE,...]: zero-shot prediction of the effect of single-base variants."""

from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UserError
from ..core.progress import shown
from ..domains import variants
from ..domains.base import Domain
from ..domains.genome import Genome
from ..domains.items import Items
from ..lightning_modules.variants import variant_nats
from ..reporting.variants import LABEL, NATS, variants_table
from ..session.item_files import refuse_unfinished, save_items
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.task import Task
from .given_files import paths_of
from .options import VariantsOptions

WIDEST = 8192  # bases; the window of Evo 2 for BRCA1


class Variants(Task):
    """Score variants by how much less likely the alternative allele is than the reference, and compare with labels.

    Args:
        options: fields of `VariantsOptions`.
    """

    needs = "run"

    def __init__(self, **options: Any):
        given = VariantsOptions(**options)
        self.files = paths_of(given.files)
        if not self.files:
            raise ValueError("files=[]: give at least one table, such as task.files=brca1.tsv")
        self.genome = None if given.genome is None else paths_of(given.genome, "genome", folders=True)
        self.window = given.window

    def refusal(self, domain: Domain) -> str | None:
        allowed = "give a run of domain=genome"
        return None if isinstance(domain, Genome) else f"domain {domain.name} has no bases: {allowed}"

    def __call__(self, session: Session) -> None:
        run, domain = RunDirectory.open(session.config["run"]).trained().writable(), session.domain
        if not isinstance(domain, Genome):
            raise UserError(f"run={run.path}: {self.refusal(domain)}")
        refuse_unfinished(run)
        tables = [variants.read_table(file) for file in self.files]
        if len({each.name for each in tables}) < len(tables):
            raise UserError("task.files: two tables have the same name: rename one")
        _, transformer = session.trained(run)
        window = self._window(session, domain)
        tokens = -(-window // domain.bases_per_token)
        if transformer.longest is not None and tokens > transformer.longest:
            raise UserError(
                f"task.window={window}: it needs {tokens:,} tokens, and the encoding's longest context has "
                f"{transformer.longest:,}: give a smaller window"
            )
        files = self.genome or domain.reference_files(Path(session.config["stores"]))
        with shown("reading the genome", bar=False, console=session.console):
            reference = variants.Reference(files, tables, window)
        given = session.settings.precision, session.evaluation.tokens_per_batch
        found: dict[str, Items] = {}
        for table in tables:
            with shown(f"scoring {table.name}", console=session.console) as report:
                nats = variant_nats(transformer, domain, table, reference, window, *given, report)
            found[name := f"{table.name}-w{window}"] = items_of(table, nats)
            save_items(run, name, found[name])
        for name, items in found.items():
            result = variants_table(
                {session.config["names"]["encoding"]: {session.config["seed"]: items}}, None, f"{name}, {run.path}"
            )
            if result.rows:
                session.console.print(result.on_console())
            session.console.print(*result.notes, sep="\n")
            session.console.print(f"wrote {run.benchmarks / name}.npz")

    def _window(self, session: Session, domain: Genome) -> int:
        """Bases around a variant, a whole number of tokens, so that both strands are cut at the same places."""
        if self.window is not None:
            return self.window
        size = domain.bases_per_token
        return min(session.data.length * size, domain.chunk or WIDEST, WIDEST) // size * size


def items_of(table: variants.Variants, nats: np.ndarray) -> Items:
    """Per-item results of a table, with the scores of other methods in it."""
    columns = {NATS: nats, LABEL: table.labels.astype(np.int64), **table.others}
    return Items(np.array(table.names), table.groups, columns, table.source)
