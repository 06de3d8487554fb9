"""task=generate run=DIRECTORY: draw samples from a trained run, with or without a prompt file."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import UserError
from ..core.progress import shown
from ..core.whole_files import full_disk_named
from ..core.words import plural
from ..domains.base import Domain
from ..domains.store import UNSCORED, Store
from ..lightning_modules.evaluation import autocast
from ..lightning_modules.sampling import sample, visible
from ..lightning_modules.transformer import Transformer
from ..reporting.sample_metrics import SAMPLE, TEST, measured, metrics_table, read_metrics, write_metrics
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.task import Task
from .given_files import paths_of
from .options import GenerateOptions

STEM = 100  # bytes of a prompt's name in names of samples; file systems allow 255 for a whole name
SHOWN = 8  # files of samples that are listed one by one


class Generate(Task):
    """Write samples of a run's best checkpoint into `<run>/samples/`, as files of the domain's kind.

    Those of an unfinished run, whose checkpoint may still be replaced, go to `<run>/samples-unfinished/`. For
    domains that ask questions, and without a prompt, it writes test examples and the model's answers.

    Args:
        options: fields of `GenerateOptions`.
    """

    needs = "run"

    def __init__(self, **options: Any):
        given = GenerateOptions(**options)
        self.samples, self.tokens = given.samples, given.tokens
        self.prompt = None if given.prompt is None else paths_of(given.prompt, "prompt", folders=True)[0]
        self.seed = given.sampling_seed
        self.settings = {"temperature": given.temperature, "top_k": given.top_k, "top_p": given.top_p}

    def __call__(self, session: Session) -> None:
        run = RunDirectory.open(session.config["run"]).trained().writable()
        store, transformer = session.trained(run)
        if self.prompt is None and session.domain.solved is not None:
            written = write_answers(session, transformer, store, self.samples, _folder(run))
            self._list(session, written)
            print_preview(session, written)
        else:
            self._samples(session, run, transformer, store)

    def _list(self, session: Session, written: Sequence[Path]) -> None:
        for path in written[:SHOWN]:
            session.console.print(f"wrote {path}")
        if len(written) > SHOWN:
            session.console.print(f"... and {len(written) - SHOWN} more files in {written[0].parent}")

    def _samples(self, session: Session, run: RunDirectory, transformer: Transformer, store: Store) -> None:
        ids = np.array([session.domain.start])
        if self.prompt is not None:
            ids = session.domain.encode_file(self.prompt)
        prompt = torch.from_numpy(ids.astype(np.int64)).expand(self.samples, -1)
        settings = settled(session.domain, self.settings)
        folder, name = _folder(run), self._name(settings)
        if self.prompt is not None:  # the report marks it in the samples
            folder.mkdir(parents=True, exist_ok=True)
            session.domain.render(session.domain.decode(ids.tolist()), folder / f"{name}-prompt")
        pieces = draw_samples(session, transformer, prompt, self.tokens, seed=self.seed, **settings)
        written = render_samples(session.domain, pieces, folder, name)
        self._list(session, written)
        if self.prompt is None:
            print_preview(session, written)
        elif continuation := session.domain.preview(session.domain.decode(pieces[0][len(ids) :])):
            _print_text(session, f"{written[0].name}, after the prompt", continuation, written[0])
        if self.prompt is None and run.manifest.get("finished"):
            write_measures(session, run, store, pieces, name)

    def _name(self, settings: Mapping) -> str:
        """A file name from the settings that are not defaults, `samples` included: all share one random stream."""
        given = {"samples": self.samples, "tokens": self.tokens, **settings}
        parts = [f"{key}{value}" for key, value in given.items() if value != getattr(GenerateOptions, key)]
        if self.prompt is not None:
            digest = hashlib.sha256(self.prompt.read_bytes()).hexdigest()  # distinguishes files of the same name
            parts += [os.fsencode(self.prompt.stem)[:STEM].decode(errors="ignore"), digest[:6]]
        return "-".join([f"seed{self.seed}", *parts])


def _folder(run: RunDirectory) -> Path:
    """The folder of samples; only those of a finished run are shown with its results."""
    return run.path / ("samples" if run.manifest.get("finished") else "samples-unfinished")


def settled(domain: Domain, settings: Mapping) -> dict:
    """Sampling `settings`, with the domain's top_p if they have none."""
    return {**settings, "top_p": domain.top_p if settings["top_p"] is None else settings["top_p"]}


def write_answers(session: Session, model: Transformer, store: Store, count: int, folder: Path) -> list[Path]:
    """Write the first test examples as `folder/example-0...` and the model's answers as `folder/answered-0...`."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, index in enumerate(store.documents("test")[:count]):
        tokens = store.document(index).astype(np.int64)
        inputs = torch.from_numpy(tokens[None, :-1]).to(session.settings.device)
        with torch.inference_mode(), autocast(inputs.device, session.settings.precision):
            likeliest = model(inputs)[0].argmax(-1).cpu().numpy()
        marks = store.marks_of(index)
        given = likeliest if marks is None else np.where(marks[1:] == UNSCORED, tokens[1:], likeliest)
        for name, ids in {"example": tokens, "answered": [tokens[0], *given]}.items():
            written += session.domain.render(session.domain.decode(ids), folder / f"{name}-{number}")
    return written


def draw_samples(
    session: Session, model: Transformer, prompt: Tensor, tokens: int, seed: int = 0, **settings
) -> list[list[int]]:
    """Continue `prompt [samples, P]`; the ids of prompt and continuation. Prints the sampling `settings`.

    The model sees the end of a prompt that is longer than `data.length`.
    """
    try:
        seen = visible(model, prompt, tokens, session.data.length, session.domain.period)
    except ValueError as error:
        raise UserError(f"task.{error}") from error
    given = [f"{key} {value:g}" for key, value in settings.items() if value is not None]
    session.console.print(f"drawing {plural(len(prompt), 'sample')} of {tokens:,} tokens: {', '.join(given)}")
    if seen.shape[1] < prompt.shape[1]:
        limit = f"data.length={session.data.length:,}"
        if model.longest is not None and model.longest - tokens < session.data.length:
            limit = f"the encoding's longest context, {model.longest:,} tokens, which includes the sample"
        part = f"the model sees the last {seen.shape[1]:,} of the prompt's {prompt.shape[1]:,} tokens"
        session.console.print(f"{part}, because of {limit}")
    with shown("sampling", tokens, console=session.console) as report:
        start, never = seen.to(session.settings.device), (session.domain.start,)
        try:
            drawn = sample(model, start, tokens, seed=seed, forbidden=never, on_token=report, **settings)
        except ValueError as error:
            raise UserError(f"task.{error}") from error
    if len(drawn) > 1 and bool((drawn == drawn[0]).all()):
        session.console.print("all samples are the same; a higher temperature, top_k or top_p makes them differ")
    return torch.cat([prompt, drawn.cpu()], 1).tolist()


def render_samples(domain: Domain, pieces: Sequence[Sequence[int]], folder: Path, name: str) -> list[Path]:
    """Write the decoded ids of each piece as `folder/name-0`, `name-1`, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    with full_disk_named(folder):
        return [
            path
            for number, ids in enumerate(pieces)
            for path in domain.render(domain.decode(ids), folder / f"{name}-{number}")
        ]


def write_measures(
    session: Session, run: RunDirectory, store: Store, pieces: Sequence[Sequence[int]], name: str
) -> None:
    """Measure samples and test pieces of the same number of tokens, if the domain has metrics; write and print them."""
    domain, tokens, file = session.domain, len(pieces[0]), run.sample_metrics / f"{name}.csv"
    if domain.measures is None:
        return
    names, test = [*domain.measures.headings], store.documents("test")
    documents = ((store.names[i], int(store.clusters[i]), store.document(i)[:tokens]) for i in test)
    drawn = measured(SAMPLE, ((str(i), i, domain.measure(ids)) for i, ids in enumerate(pieces)), names)
    published = measured(TEST, ((piece, cluster, domain.measure(ids)) for piece, cluster, ids in documents), names)
    if not (drawn and published):
        which = "test pieces" if drawn else "samples"
        session.console.print(f"not measured: the {which} are shorter than {domain.measures.segment}")
        return
    with run.replacing(file):
        write_metrics(file, [*drawn, *published])
    model = session.config["names"]["encoding"]
    table = metrics_table({model: [read_metrics(file)]}, domain.measures, f"samples of {run.path} ({name})")
    session.console.print()
    session.console.print(table.on_console())
    session.console.print(*table.notes, sep="\n")
    session.console.print(f"wrote {file}")


def print_preview(session: Session, files: Sequence[Path]) -> None:
    """Print the beginning of the first sample in `files`, and where to listen to it if it is music."""
    for file in files:
        if text := _preview(session.domain, file):
            _print_text(session, file.name, text, file)
            return


def _print_text(session: Session, title: str, text: str, file: Path) -> None:
    session.console.print(f"\n{title}")
    session.console.print(text)
    if file.suffix == ".mid":
        session.console.print(f"listen: open {file} in a MIDI player, or the page of task=report")


def _preview(domain: Domain, file: Path) -> str:
    try:
        return domain.preview(domain.decode(domain.encode_file(file).tolist()))
    except UserError:  # a picture, or a piece without notes
        return ""
