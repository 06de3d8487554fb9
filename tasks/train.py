"""task=train: prepare the data, train, score the test split once, write samples, print the results."""

import gc
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from rich.text import Text

from ..core import launcher
from ..core.errors import DivergedError, UserError
from ..domains.records import Records
from ..domains.store import Store
from ..lightning_modules.transformer import Transformer
from ..reporting.losses import plot_losses, read_curve, validations
from ..session.banner import banner_lines, print_lines
from ..session.models import model_facts
from ..session.next_steps import print_next_steps
from ..session.provenance import session_facts
from ..session.results import print_results
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.task import Task
from .evaluate import score
from .generate import draw_samples, print_preview, render_samples, settled, write_answers
from .mechanisms import write_mechanisms
from .options import TrainOptions


class Train(Task):
    """Train a run, resume it, or print the results of a finished one.

    Args:
        options: fields of `TrainOptions`.
    """

    resumes = True

    def __init__(self, **options: Any):
        given = TrainOptions(**options)
        self.samples, self.tokens = given.samples, given.tokens
        self.settings = {"temperature": given.temperature, "top_k": given.top_k, "top_p": given.top_p}

    def __call__(self, session: Session) -> float | None:
        """Returns nats per token on the validation split, on rank 0."""
        with session.settings.determinism():
            return self._train(session)

    def _train(self, session: Session) -> float | None:
        run = RunDirectory.of(session.config)
        session.settings.refuse_other_ranks()
        run.refuse_impossible_place()  # before the data are prepared, which may take hours
        store = session.store()
        gc.collect()  # in a sweep, the model before this one may still take up memory
        model = session.model_in_place(store.manifest["vocabulary"], training=True)
        session.console.print(Text("bearings", "bold"), f" {run.path}")
        memory = session.step_memory(model.transformer)
        graphs = session.cuda_graphs(model.transformer, memory)
        print_lines(session, banner_lines(session, store, model, memory, graphs))
        first = launcher.rank() == 0
        run.check_data(store.manifest)
        if first and (changed := run.changed_source()):
            session.console.print(changed)
        if not run.manifest.get("finished"):
            session.refuse_too_large_a_step(memory)
            with ExitStack() as held:
                if first:
                    held.enter_context(run.claimed(12.0 * model.transformer.parameter_count()))
                    held.enter_context(run.failure_recorded())
                    run.begin_session(
                        store.manifest,
                        model_facts(session.config, model.transformer),
                        {
                            **session_facts(session.config),
                            **session.device_facts(model.transformer),
                            "cuda_graphs": graphs[0],
                        },
                    )
                from ..session.fit import fit  # late: it imports Lightning, which takes seconds

                fit(session, run, store, model, graphs[0], first)
                self._finish(session, run, store, first)
        else:
            if first:
                run.keep_config()
            session.console.print(f"already finished; to train it again, delete {run.path}")
        if not first:
            return None
        self._show(session, run, store)
        return self._records(session, run, store, "valid").nats_per_token

    def _finish(self, session: Session, run: RunDirectory, store: Store, first: bool) -> None:
        if not run.best.exists():
            if validations(read_curve(run.path / "metrics.csv")):
                raise UserError(f"{run.best} was lost: delete {run.path} and train the run again")
            raise DivergedError(
                "no validation score was finite, so there is no checkpoint to test: lower optimizer.learning_rate",
                session.settings.steps,
            )
        transformer = session.load(run.best, store.manifest["vocabulary"])
        scored = []
        for split in self.scored(session):
            records = score(session, transformer, store, split)
            if first:
                records.save(run.records(split))
                scored.append(run.records(split))
        if not first:
            return
        self._inspect(session, transformer, store, run)
        plot_losses(run.path / "metrics.csv", run.path / "plots" / "loss", session.config["names"])
        run.seal(run.best, run.path / "metrics.csv", *scored)
        run.write_manifest(finished=True)

    def _inspect(self, session: Session, transformer: Transformer, store: Store, run: RunDirectory) -> None:
        """Write samples or answers of the trained model, and where its attention goes."""
        if self.samples and session.domain.solved is not None:
            write_answers(session, transformer, store, self.samples, run.path / "samples")
        elif self.samples:
            settings = settled(session.domain, self.settings)
            prompt = torch.full((self.samples, 1), session.domain.start)
            tokens = min(self.tokens, (transformer.longest or self.tokens + 1) - 1)
            pieces = draw_samples(session, transformer, prompt, tokens, **settings)
            render_samples(session.domain, pieces, run.path / "samples", "sample")
        write_mechanisms(session, transformer, store, run)

    def scored(self, session: Session) -> Sequence[str]:
        """The splits on which the trained model is scored."""
        return session.domain.splits[1:]

    def _records(self, session: Session, run: RunDirectory, store: Store, split: str) -> Records:
        """The scores of a split of a finished run. They may not exist: task=tune does not score the test split."""
        file = run.records(split)
        if not file.exists():
            records = score(session, session.load(run.checked_best(), store.manifest["vocabulary"]), store, split)
            with run.replacing(file):
                records.save(file)
        return Records.load(file)

    def _show(self, session: Session, run: RunDirectory, store: Store) -> None:
        for split in session.domain.splits[2:]:
            records = self._records(session, run, store, split)
            session.console.print()
            title = f"{split} split, scored once with the best checkpoint on validation"
            print_results(session, run, store, split, records, title)
        for folder in (run.path / "samples", run.path / "plots"):
            if files := sorted(file.name for file in folder.glob("*")):
                session.console.print(f"wrote {folder}: {', '.join(files)}")
        print_preview(session, sorted((run.path / "samples").glob("*")))
        print_next_steps(session, run)
