"""task=extrapolate run=DIRECTORY: score the same targets with shorter and longer contexts than in training."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast, get_args

from filelock import FileLock

from ..core.errors import UserError, nearest
from ..core.progress import shown
from ..domains.books import plain_copies
from ..domains.store import Store
from ..domains.text import Text
from ..kernels.stretching import ON_REQUEST, Form, Stretch
from ..lightning_modules.lengths import contexts_to_try, score_by_position, usual_contexts
from ..lightning_modules.transformer import Transformer
from ..reporting.lengths import PLAIN, form_of, lengths_table, read_lengths
from ..reporting.naming import file_name
from ..reporting.tables import Row, write_csv
from ..session.configuration import with_group
from ..session.item_files import refuse_unfinished
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.task import Task
from .given_files import SPLIT, paths_of, refuse_questions, store_of
from .options import ExtrapolateOptions

LISTED = "longrope"  # the method that needs factors


class Extrapolate(Task):
    """Score every target of `split` with each context length, and write `extrapolation/<split>.csv` in the run.

    With `files`, their documents are scored instead. The name of the result is that of the first file or folder, with a
    digest of all tokens, so that equal names mean equal documents.

    With a context of L tokens, each target sees between L/2 and L tokens, or all tokens before it in its document. Each
    result is written when it is ready and never computed again: an interrupted call resumes, and calls with other
    contexts add to the file, also concurrently. The run must be finished, so that the file describes one checkpoint.
    Contexts that the encoding cannot represent are left out.

    Args:
        options: fields of `ExtrapolateOptions`.
    """

    needs = "run"
    resumes = True

    def __init__(self, **options: Any):
        given = ExtrapolateOptions(**options)
        self.contexts, self.stretches, self.split = given.contexts, given.stretches, given.split
        self.factors = given.long_factors or (), given.short_factors or ()
        self.first_tokens, self.files = given.first_tokens, paths_of(given.files, folders=True)
        if any(self.factors):
            Stretch(LISTED, 1.0, 2, *self.factors)  # raises for invalid factors

    def possible_contexts(self, split: str, trained: int) -> set[int]:
        if self.files or self.split != split:
            return set()
        return {trained, *(self.contexts or usual_contexts(trained))}

    def __call__(self, session: Session) -> None:
        run = RunDirectory.open(session.config["run"]).trained().writable()
        refuse_unfinished(run)
        session.refuse_untested(self.split)
        store, transformer = session.trained(run)
        if not self.files:
            self._score(session, run, transformer, store, self.split, self.split)
            return
        refuse_questions(session.domain, "task.files: ")
        with TemporaryDirectory() as folder:
            copies = Path(folder) / "texts"
            copies.mkdir()
            files = self.files
            if isinstance(session.domain, Text):
                files = plain_copies(files, copies, session.domain.fields.text)
            with shown("reading files", bar=False, console=session.console):
                named = [(str(file), session.domain.encode_documents(file)) for file in files]
                store = store_of(session.domain, named, Path(folder) / "store")
            digest = hashlib.sha256(store.offsets.tobytes() + store.tokens.tobytes()).hexdigest()[:6]
            name = f"{file_name(self.files[0].name.partition('.')[0])}-{digest}"
            self._score(session, run, transformer, store, SPLIT, name)

    def _score(
        self, session: Session, run: RunDirectory, transformer: Transformer, store: Store, split: str, name: str
    ) -> None:
        """Score `split` of `store`, and write the results as `extrapolation/<name>.csv`."""
        trained, file = session.data.length, run.extrapolation(name)
        supported = (form for encoding in transformer.encodings for form in encoding.supported_stretches)
        forms = (PLAIN, *dict.fromkeys(supported))
        contexts = self.contexts or contexts_to_try(store, split, trained)
        if longest := transformer.longest:
            if left_out := [f"{context:,}" for context in contexts if context > longest]:
                beyond = f"the encoding's longest, {longest:,} tokens"
                session.console.print(f"left out contexts beyond {beyond}: {', '.join(left_out)}")
            contexts = [context for context in contexts if context <= longest]
        asked = self._asked(forms, contexts, trained)
        with _locked(file):
            run.check_unchanged(file)
            if file.exists():  # perhaps without a digest, from a call that was interrupted
                run.seal(file)
        there = {(row["stretch"], row["context"]) for row in read_lengths(file)}
        todo = [each for each in asked if (self._name(each[0]), each[1]) not in there]
        if len(todo) < len(asked):
            done = f"{len(asked) - len(todo)} of {len(asked)} results exist already"
            session.console.print(f"{done}; delete {file} to compute them again")
        try:
            for form, context in todo:  # raises errors before hours of scoring
                stretch_to(transformer, self._stretch(form, context, trained))
        except ValueError as error:
            if str(error).startswith(("long_", "short_", "first_")):
                raise UserError(f"task.{error}, or task.stretches=[{PLAIN}]") from error
            named = with_group(error, "encoding", session.config["encoding"])
            raise UserError(f"{named}, or task.stretches=[{PLAIN}]") from error
        given = session.settings.precision, session.evaluation.tokens_per_batch, session.domain.period
        with shown("scoring", len(todo), console=session.console) as report:
            for done, (form, context) in enumerate(todo):
                report(done)
                stretch = self._stretch(form, context, trained)
                stretch_to(transformer, stretch)
                unpadded = stretch is not None and stretch.follows_length
                found = score_by_position(transformer, store, split, context, trained, *given, unpadded)
                about = {"stretch": self._name(form), "context": context, "trained": trained}
                _merge(run, file, [{**about, **each._asdict()} for each in found], forms)
        rows = read_lengths(file)
        what = f"{split} split of {run.path}" if split == name else f"{name}, {run.path}"
        perplexity = split != name and isinstance(session.domain, Text)
        table = lengths_table({session.config["names"]["encoding"]: [rows]}, what, perplexity=perplexity)
        for part in table.turned_on_console("stretch", "context", session.console.width, hidden=("model", "seeds")):
            session.console.print(part)
        session.console.print(*table.notes, sep="\n")
        session.console.print(f"wrote {file}")

    def _asked(self, allowed: Sequence[str], contexts: Sequence[int], trained: int) -> list[tuple[str, int]]:
        """Methods and contexts, starting with the trained length, with which all others are compared."""
        forms = self.stretches
        if forms is None:
            forms = [form for form in allowed if form not in (LISTED, *ON_REQUEST)] + [LISTED] * any(self.factors)
        if unknown := [form for form in forms if form not in allowed]:
            near = "" if unknown[0] in get_args(Form) else nearest(unknown[0], allowed)
            raise UserError(f"task.stretches={unknown[0]}: {near}allowed for this run's encoding: {', '.join(allowed)}")
        if (LISTED in forms) != any(self.factors):
            raise UserError(
                f"task.stretches={LISTED} needs task.long_factors=[...], one number per frequency, from LongRoPE's "
                "search for this model: give both or neither"
            )
        contexts = [trained, *sorted({*contexts} - {trained})]
        return [
            (form, context)
            for form in dict.fromkeys((PLAIN, *forms))
            for context in contexts
            if form == PLAIN or context > trained
        ]

    def _name(self, form: str) -> str:
        """The name of a method in the file, with a hash of longrope's factors or the number of lm_infinite's keys."""
        if form == LISTED:
            return f"{form}-{hashlib.sha256(repr(self.factors).encode()).hexdigest()[:6]}"
        return f"{form}-{self.first_tokens}" if form == "lm_infinite" else form

    def _stretch(self, form: str, context: int, trained: int) -> Stretch | None:
        if form == PLAIN:
            return None
        factors = self.factors if form == LISTED else ((), ())
        return Stretch(cast("Form", form), context / trained, trained, *factors, first=self.first_tokens)


def _merge(run: RunDirectory, file: Path, scored: Sequence[Row], forms: Sequence[str]) -> None:
    """Add the rows of one context and stretch to the file, replacing earlier rows of the same."""
    with _locked(file):
        here = scored[0]["stretch"], scored[0]["context"]
        rows = [row for row in read_lengths(file) if (row["stretch"], row["context"]) != here] + [*scored]
        order = {form: place for place, form in enumerate(forms)}  # last, those that only another version has
        rows.sort(key=lambda row: (order.get(form_of(row["stretch"]), len(order)), row["stretch"], row["context"]))
        with run.replacing(file):
            write_csv(file, rows)


def _locked(file: Path) -> FileLock:
    """The lock of a table, whose folder is created."""
    file.parent.mkdir(exist_ok=True)
    return FileLock(file.with_suffix(".lock"))


def stretch_to(transformer: Transformer, stretch: Stretch | None) -> None:
    """Stretch the encoding of every layer that supports it; None undoes it."""
    for encoding in transformer.encodings:
        encoding.stretch(stretch if stretch is not None and stretch.form in encoding.supported_stretches else None)
