"""task=extrapolate run=DIRECTORY: the same targets scored under shorter and longer contexts than that of training."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from filelock import FileLock

from ..core.errors import UserError
from ..core.progress import shown
from ..kernels.stretching import Form, Stretch
from ..lightning_modules.lengths import contexts_to_try, score_by_position
from ..lightning_modules.transformer import Transformer
from ..reporting.lengths import PLAIN, form_of, lengths_table, read_lengths
from ..reporting.tables import Row, write_csv
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.task import Task
from .options import ExtrapolateOptions

LISTED = "longrope"  # the form that needs factors


class Extrapolate(Task):
    """Score every target of `split` under each context; writes `extrapolation/<split>.csv` into the run.

    A context of L tokens lets each target see between L/2 and L tokens, or all there are before it in its document.
    Each context and stretch is in the file once it is scored, and is not scored again: a call that was stopped goes on,
    and one with other contexts adds to the file, also at the same time. Only a finished run is scored, with the data
    that it was trained on, so that all of the file is of one checkpoint.

    Args:
        options: fields of `ExtrapolateOptions`.
    """

    needs = "run"

    def __init__(self, **options: Any):
        given = ExtrapolateOptions(**options)
        self.contexts, self.stretches, self.split = given.contexts, given.stretches, given.split
        self.factors = given.long_factors or (), given.short_factors or ()
        if any(self.factors):
            Stretch(LISTED, 1.0, 2, *self.factors)  # raises for what is not a list of factors

    def __call__(self, session: Session) -> None:
        run = RunDirectory.open(session.config["run"]).trained()
        if not run.manifest.get("finished"):  # a later checkpoint's figures would join this one's in the file
            raise UserError(
                f"run={run.path}: it is not finished, another checkpoint may yet be the best: end its training first"
            )
        session.refuse_untested(self.split)
        store, transformer = session.trained(run)
        trained, file = session.data.length, run.extrapolation(self.split)
        forms = (PLAIN, *transformer.encodings[0].stretches)
        asked = self._asked(forms, self.contexts or contexts_to_try(store, self.split, trained), trained)
        run.check_unchanged(file)
        there = {(row["stretch"], row["context"]) for row in read_lengths(file)}
        todo = [each for each in asked if (self._name(each[0]), each[1]) not in there]
        if len(todo) < len(asked):
            told = f"{len(asked) - len(todo)} of {len(asked)} are scored already: delete {file} to score them again"
            session.console.print(told, soft_wrap=True)
        try:
            for form, context in todo:  # before hours of scoring
                stretch_to(transformer, self._stretch(form, context, trained))
        except ValueError as error:
            group = "task" if str(error).startswith(("long_", "short_")) else "encoding"
            raise UserError(f"{group}.{error}, or task.stretches=[{PLAIN}]") from error
        given = session.settings.precision, session.evaluation.tokens_per_batch, session.domain.period
        with shown("scoring", len(todo), console=session.console) as report:
            for done, (form, context) in enumerate(todo):
                report(done)
                stretch = self._stretch(form, context, trained)
                stretch_to(transformer, stretch)
                unpadded = stretch is not None and stretch.follows_length
                found = score_by_position(transformer, store, self.split, context, trained, *given, unpadded)
                about = {"stretch": self._name(form), "context": context, "trained": trained}
                _merge(run, file, [{**about, **each._asdict()} for each in found], forms)
        rows = read_lengths(file)
        table = lengths_table({session.config["names"]["encoding"]: [rows]}, f"{self.split} split of {run.path}")
        session.console.print(table.on_console([key for key in table.shown if key not in ("model", "seeds")]))
        session.console.print(*table.notes, sep="\n")
        session.console.print(f"wrote {file}", soft_wrap=True)

    def _asked(self, allowed: Sequence[str], contexts: Sequence[int], trained: int) -> list[tuple[str, int]]:
        """Forms and contexts; first the trained length, where a stretch changes nothing: all is compared with it."""
        forms = self.stretches
        if forms is None:
            forms = [form for form in allowed if form != LISTED] + [LISTED] * any(self.factors)
        if unknown := [form for form in forms if form not in allowed]:
            raise UserError(f"task.stretches={unknown[0]}: allowed with this run's encoding: {', '.join(allowed)}")
        if (LISTED in forms) != any(self.factors):
            raise UserError(
                f"task.stretches={LISTED}: it goes with task.long_factors=[...], a number for each frequency, as "
                "LongRoPE's search finds them for one model: give both or neither"
            )
        contexts = [trained, *sorted({*contexts} - {trained})]
        return [
            (form, context)
            for form in dict.fromkeys((PLAIN, *forms))
            for context in contexts
            if form == PLAIN or context > trained
        ]

    def _name(self, form: str) -> str:
        """Of a form in the file: other factors are another stretch."""
        return f"{form}-{hashlib.sha256(repr(self.factors).encode()).hexdigest()[:6]}" if form == LISTED else form

    def _stretch(self, form: str, context: int, trained: int) -> Stretch | None:
        if form == PLAIN:
            return None
        return Stretch(cast("Form", form), context / trained, trained, *(self.factors if form == LISTED else ()))


def _merge(run: RunDirectory, file: Path, scored: Sequence[Row], forms: Sequence[str]) -> None:
    """Add what one context and stretch has scored to what is in the file by now, in the place of the same."""
    file.parent.mkdir(exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        here = scored[0]["stretch"], scored[0]["context"]
        rows = [row for row in read_lengths(file) if (row["stretch"], row["context"]) != here] + [*scored]
        rows.sort(key=lambda row: (forms.index(form_of(row["stretch"])), row["stretch"], row["context"]))
        write_csv(file, rows)
        run.seal(file)


def stretch_to(transformer: Transformer, stretch: Stretch | None) -> None:
    """Stretch every layer's encoding, or undo it."""
    for encoding in transformer.encodings:
        encoding.stretch(stretch)
