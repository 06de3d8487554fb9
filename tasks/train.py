"""task=train: prepare the data, train, score the test split once, write samples, print one table."""

import csv
import math
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from rich.text import Text

from bearings import launcher
from bearings.errors import DivergedError, UserError
from bearings.lightning_modules.evaluation import Records
from bearings.lightning_modules.sampling import check_sampling
from bearings.tasks.evaluate import score
from bearings.tasks.generate import settled, write_answers, write_samples
from bearings.tasks.house import House
from bearings.tasks.mechanisms import write_mechanisms
from bearings.tasks.plots import plot_losses
from bearings.tasks.run_directory import RunDirectory
from bearings.tasks.tables import facts, print_facts, print_results


class Train:
    """Train a run, or go on with it, or show what it found.

    Args:
        samples: pieces to write at the end; sample_tokens: their length in tokens.
        temperature, top_k, top_p: as in task=generate.
    """

    def __init__(
        self,
        samples: int = 2,
        sample_tokens: int = 512,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
    ):
        if samples < 0:
            raise ValueError(f"samples={samples}: it must be 0 or more")
        check_sampling(sample_tokens, temperature, top_k, top_p)
        self.samples, self.tokens = samples, sample_tokens
        self.settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}

    def __call__(self, house: House) -> None:
        run = RunDirectory.of(house.config)
        run.refuse_impossible_place()  # before the data are prepared, which may take hours
        store = house.store()
        model = house.model_in_place(store.manifest["vocabulary"], training=True)
        house.console.print(Text("bearings", "bold"), f" {run.path}")
        memory = house.step_memory(model.transformer)
        graphs = house.cuda_graphs(model.transformer, memory)
        lines = facts(house, store, model, memory, graphs)
        print_facts(house, lines)
        first = launcher.rank() == 0
        run.check_data(store.manifest)
        if first and (changed := run.changed_source()):
            house.console.print(changed, soft_wrap=True)
        if not run.manifest.get("finished"):
            house.refuse_too_large_a_step(memory)
            with ExitStack() as held:
                if first:
                    held.enter_context(run.claimed(12.0 * model.transformer.parameter_count()))
                    held.enter_context(run.failure_recorded())
                    compiled = house.compiled(model.transformer)
                    run.describe(store.manifest, house.settings, lines["attention"], compiled, graphs[0])
                from bearings.tasks.fit import fit  # late: it imports Lightning, which takes seconds

                fit(house, run, store, model, graphs[0], first)
                self._finish(house, run, store, first)
        else:
            house.console.print("already finished: showing what it found (delete the directory to train it again)")
        if first:
            self._show(house, run, store)

    def _finish(self, house: House, run: RunDirectory, store, first: bool) -> None:
        if not run.best.exists():
            if validated(run):
                raise UserError(f"{run.best} was lost: delete {run.path} and train the run again")
            raise DivergedError(f"{run.path}: no validation score was finite, so there is no best checkpoint to test")
        transformer = house.load(run.best, store.manifest["vocabulary"])
        scored = []
        for split in self.scored(house):
            records = score(house, transformer, store, split)
            if first:
                records.save(run.records(split))
                scored.append(run.records(split))
        if not first:
            return
        if self.samples and house.domain.solved is not None:
            write_answers(house, transformer, store, self.samples, run.path / "samples")
        elif self.samples:
            settings = settled(house.domain, self.settings)
            prompt = torch.full((self.samples, 1), house.domain.start)
            write_samples(house, transformer, prompt, self.tokens, run.path / "samples", "sample", **settings)
        measured = write_mechanisms(house, transformer, store, run.mechanisms)
        plot_losses(run.path / "metrics.csv", run.path / "plots" / "loss", house.config["names"])
        run.seal(run.best, run.path / "metrics.csv", *scored, *measured)
        run.write_manifest(finished=True)

    def scored(self, house: House) -> Sequence[str]:
        """Splits that the trained model is scored on."""
        return house.domain.splits[1:]

    def _show(self, house: House, run: RunDirectory, store) -> None:
        for split in house.domain.splits[2:]:
            file = run.records(split)
            if not file.exists():  # task=tune leaves it unscored
                score(house, house.load(run.checked_best(), store.manifest["vocabulary"]), store, split).save(file)
                run.seal(file)
            print_results(
                house,
                run,
                store,
                split,
                Records.load(file),
                f"{split} split, scored once with the checkpoint best on validation",
            )
        written = [*sorted((run.path / "samples").glob("*")), *sorted((run.path / "plots").glob("*"))]
        for path in written:
            house.console.print(f"wrote {path}", soft_wrap=True)


def validated(run: RunDirectory) -> bool:
    """Whether a validation score of the run was finite."""
    with open(run.path / "metrics.csv", newline="") as file:
        return any(row["valid_nll"] and math.isfinite(float(row["valid_nll"])) for row in csv.DictReader(file))
