"""task=benchmark run=DIRECTORY: score zero-shot benchmarks of language understanding."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import UserError, suggestions
from ..core.options import as_path
from ..core.progress import shown
from ..domains.base import Domain
from ..domains.items import Items
from ..domains.text import Text
from ..lightning_modules.likelihood import continuation_nats
from ..lightning_modules.transformer import Transformer
from ..reporting.zero_shot import scores_table
from ..session.item_files import refuse_unfinished, save_items
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.task import Task
from ..zeroshot.benchmarks import BENCHMARKS
from ..zeroshot.encoding import encode_pairs
from ..zeroshot.questions import Questions, pairs_of
from ..zeroshot.results import items_of
from .options import BenchmarkOptions

DOWNLOADS = "benchmarks"  # folder of downloaded files in `stores=`


class Benchmark(Task):
    """Score benchmarks with a run's best checkpoint and write `benchmarks/NAME.npz`, a result per item.

    Contexts, continuations and metrics are those of lm-evaluation-harness. A context is cut from the left to
    `data.length`. Each file is written when its benchmark is finished.

    Args:
        options: fields of `BenchmarkOptions`.
    """

    needs = "run"

    def __init__(self, **options: Any):
        given = BenchmarkOptions(**options)
        for name in given.benchmarks or ():
            if name not in BENCHMARKS:
                raise ValueError(f"benchmarks: {name}: {suggestions(name, BENCHMARKS)}")
        self.names = [*dict.fromkeys(given.benchmarks or BENCHMARKS)]
        self.path = as_path(given.path) if given.path else None
        if self.path and not self.path.exists():
            raise ValueError(f"path={given.path}: no such file or folder")
        self.chosen, self.limit, self.prefix = given.benchmarks is not None, given.limit, given.prefix

    def refusal(self, domain: Domain) -> str | None:
        allowed = "task=benchmark scores models trained with domain=text or domain=openwebtext"
        return None if isinstance(domain, Text) else f"domain {domain.name} is not text: {allowed}"

    def __call__(self, session: Session) -> None:
        run, domain = RunDirectory.open(session.config["run"]).trained(), session.domain
        if not isinstance(domain, Text):
            raise UserError(f"run={run.path}: {self.refusal(domain)}")
        refuse_unfinished(run)
        if self.limit is None:
            run.writable()
        _, transformer = session.trained(run)
        found: dict[str, Items] = {}
        for name, questions in self._questions(session):
            if questions.note:
                session.console.print(f"{name}: {questions.note}")
            items = scored(session, transformer, domain, name, questions.limited(self.limit), self.prefix)
            if items is not None:
                found[name] = items
                if self.limit is None:
                    save_items(run, name, items)
        if not found:
            raise UserError("no benchmark could be scored, as reported above")
        session.console.print(scores_table(found).on_console())
        if self.limit is None:
            names = ", ".join(f"{name}.npz" for name in found)
            session.console.print(f"wrote {names} in {run.benchmarks}")
        else:
            session.console.print(f"task.limit={self.limit}: nothing was saved")

    def _questions(self, session: Session) -> Iterator[tuple[str, Questions]]:
        """Name and questions of each benchmark that is available. Prints those that are missing, if they were named."""
        for name in self.names:
            benchmark = BENCHMARKS[name]
            folder = Path(session.config["stores"]) / DOWNLOADS
            there = benchmark.find(self.path) if self.path else benchmark.fetched(folder)
            if there is not None:
                yield name, benchmark.read(*there)
            elif self.chosen or benchmark.download:
                names = " or ".join(form.names[0] for form in benchmark.forms)
                where = f"is not in {self.path}" if self.path else "has to be given with task.path=FOLDER"
                session.console.print(f"left out {name}: {names} {where}")


def scored(
    session: Session, transformer: Transformer, domain: Text, name: str, questions: Questions, prefix: bool
) -> Items | None:
    """Per-item results of a benchmark, with a progress line; None if a continuation exceeds the trained length."""
    length = session.data.length
    with shown(f"encoding {name}", console=session.console):
        pairs = encode_pairs(pairs_of(questions.items), domain.codec, prefix)
    if (longest := max(len(then) for _, then in pairs)) > length:
        reason = f"a continuation has {longest:,} tokens, more than data.length={length:,}"
        session.console.print(f"left out {name}: {reason}")
        return None
    if cut := sum(len(context) + len(then) > length + 1 for context, then in pairs):
        part = f"{cut:,} of {len(pairs):,} texts were cut from the left to data.length={length:,} tokens"
        session.console.print(f"{name}: {part}")
    given = length, session.settings.precision, session.evaluation.tokens_per_batch
    with shown(f"scoring {name}", len(pairs), console=session.console) as report:
        nats, greedy = continuation_nats(transformer, pairs, *given, report)
    items = items_of(questions, nats, greedy)
    if prefix:
        return items
    # A prefix changes the scores, so results with and without it must not be compared.
    return replace(items, source=hashlib.sha256(f"{items.source} without prefix".encode()).hexdigest())
