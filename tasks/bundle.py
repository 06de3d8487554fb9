"""A trained model and its domain in Python: score files and text, and draw samples."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import UserError, one_line
from ..core.options import as_path
from ..core.words import plural
from ..domains.base import Domain
from ..domains.records import Records
from ..domains.unit_labels import unit_label
from ..lightning_modules.evaluation import Evaluation
from ..lightning_modules.options import DataOptions, EvaluationOptions
from ..lightning_modules.sampling import sample, visible
from ..lightning_modules.transformer import Transformer
from ..session.configuration import refuse_problems
from ..session.run_choices import on_one_device
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.trust import trusting
from .export import CONFIG, format_of, is_run, load_exported
from .generate import settled
from .given_files import SPLIT, refuse_questions, store_of

# A string like this is a file that does not exist rather than text.
FILE_NAME = re.compile(r"\S+\.(txt|tokens|fa|fasta|fna|2bit|mid)", re.IGNORECASE)
EXTENSIONS = (".txt", ".fa", ".mid")  # of saved samples


@dataclass(frozen=True)
class Score:
    """The scores of one or more documents, as `task=score` and the reports define them.

    Attributes:
        records: nats, tokens and units of each document.
        domain: name of the domain.
    """

    records: Records
    domain: str

    @property
    def tokens(self) -> int:
        """Number of scored tokens. The start token of a document is context only."""
        return int(self.records.tokens.sum())

    @property
    def nats(self) -> float:
        """Summed negative log-likelihood."""
        return float(self.records.nats.sum())

    @property
    def nats_per_token(self) -> float:
        return self.records.nats_per_token

    @property
    def units(self) -> dict[str, float]:
        """Number of natural units, such as bytes or notes."""
        return dict(zip(self.records.unit_names, self.records.units.sum(0).tolist(), strict=True))

    @property
    def bits_per_unit(self) -> dict[str, float]:
        """Bits per natural unit, by unit; NaN if the documents contain none of it."""
        return self.records.bits_per_unit

    def __repr__(self) -> str:
        bits = [f"{value:.4f} bits/{unit_label(self.domain, unit)}" for unit, value in self.bits_per_unit.items()]
        return f"Score({', '.join([f'{self.nats_per_token:.4f} nats/token', *bits])}, {self.tokens:,} tokens)"


class Bundle:
    """A model with the domain that encodes its input and decodes its output.

    `bearings.load` returns one. To use a model of your own, give it together with a domain:
    `Bundle(Transformer(domain.vocabulary, encoding), domain)`.

    Args:
        model: maps ids `[B, T]` to logits `[B, T, V]`.
        domain: encodes text and files, and decodes ids.
        length: longest context for scoring, and longest prompt that the model sees, in tokens; `data.length` of a run.
        overlap: fraction of each window that is context for documents longer than `length`; `evaluation.overlap`.

    Raises:
        ValueError: `length` or `overlap` is outside its range, or model and domain differ in the number of token ids.
    """

    def __init__(
        self,
        model: Transformer,
        domain: Domain,
        length: int = DataOptions.length,
        overlap: float = EvaluationOptions.overlap,
    ):
        _refuse_below_1(length=length)
        EvaluationOptions(overlap=overlap)
        if isinstance(model, Transformer) and model.head.out_features != domain.vocabulary:
            ids = f"the model has {model.head.out_features:,} token ids and the domain {domain.vocabulary:,}"
            raise ValueError(f"{ids}: build the model with domain.vocabulary")
        self.model, self.domain, self.length, self.overlap = model, domain, length, overlap

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    def to(self, device: str | torch.device) -> "Bundle":
        """Move the model to a device. Returns this bundle."""
        self.model.to(device)
        return self

    def encode(self, item: str | Path) -> Tensor:
        """Ids `[1, T]` of a text or a file, on the model's device, start token first. See `score` for `item`.

        Raises:
            UserError: see `score`.
        """
        path = _path(item, self.domain)
        ids = self.domain.encode_text(str(item)) if path is None else self.domain.encode_file(path)
        return torch.from_numpy(np.asarray(ids, np.int64))[None].to(self.device)

    def decode(self, ids: Tensor | Sequence[int]) -> Any:
        """Decode the ids `[T]` or `[1, T]` of one sequence: text, a DNA sequence, or a PrettyMIDI object."""
        return self.domain.decode(torch.as_tensor(ids).flatten().tolist())

    def score(self, item: str | Path | Sequence[str | Path], length: int | None = None) -> Score:
        """Score text or files that are not part of the training data.

        Args:
            item: a path, or a string; or a list of them, which are scored together. A string that names an existing
                file or folder is its path; any other string is text or a DNA sequence, for domains that have these.
            length: longest context in tokens; None for the length of training.

        Raises:
            UserError: a file is missing or of another kind, or there is nothing to score in it; or an item is neither a
                string nor a path.
            ValueError: `length` is below 1.
        """
        _refuse_below_1(length=length)
        refuse_questions(self.domain)
        items, named = [*item] if isinstance(item, Iterable) and not isinstance(item, str | bytes) else [item], []
        if not items:
            raise UserError("score([]): give at least one text or file")
        for number, each in enumerate(items):
            if (path := _path(each, self.domain)) is not None:
                named.append((str(each), self.domain.encode_documents(path)))
            else:
                named.append((f"text {number}", iter([("", self.domain.encode_text(str(each)))])))
        evaluation = Evaluation(length or self.length, "32-true", self.domain.period, overlap=self.overlap)
        with TemporaryDirectory() as folder:
            store = store_of(self.domain, named, Path(folder) / "store")
            return Score(evaluation.score(self.model, store, SPLIT), self.domain.name)

    def sample(
        self,
        prompt: str | Path | None = None,
        tokens: int = 256,
        count: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Any:
        """Draw a sample that continues `prompt`.

        Args:
            prompt: a text or a file, as for `score`; None to begin with the start token. The model sees at most the
                last `length` tokens of it.
            tokens: number of tokens to draw.
            count: number of samples; None for one.
            seed: the same seed gives the same samples on the same device.
            options: fields of `SamplingOptions`: `temperature`, `top_k`, `top_p`.

        Returns:
            Prompt and continuation, decoded by the domain: text, a DNA sequence, or a PrettyMIDI object; a list of
            these if `count` is given. `save` writes them to files.

        Raises:
            UserError: the prompt cannot be read.
            ValueError: an option is outside its range, or the sample is longer than the encoding allows.
        """
        _refuse_below_1(tokens=tokens, count=count)
        start = [[self.domain.start]]
        ids = torch.tensor(start, device=self.device) if prompt is None else self.encode(prompt)
        ids = ids.expand(1 if count is None else count, -1)
        settings = settled(self.domain, {"top_p": None, **options})
        seen = visible(self.model, ids, tokens, self.length, self.domain.period)
        drawn = sample(self.model, seen, tokens, seed=seed, forbidden=(self.domain.start,), **settings)
        found = [self.decode(row) for row in torch.cat([ids, drawn], 1)]
        return found[0] if count is None else found

    def save(self, item: Any, stem: str | Path) -> list[Path]:
        """Write a sample to `stem` plus its extension: `.txt`, `.fa` or `.mid`. Returns the paths.

        An extension that `stem` has already is not repeated.

        Raises:
            UserError: `item` is a list, which `sample` returns if `count` is given.
        """
        if isinstance(item, list):
            raise UserError(f"save: item is a list of {plural(len(item), 'sample')}: save each of them by itself")
        stem = as_path(stem)
        stem = stem.with_suffix("") if stem.suffix in EXTENSIONS else stem
        stem.parent.mkdir(parents=True, exist_ok=True)
        return self.domain.render(item, stem)


def load(
    folder: str | Path,
    device: str | torch.device | None = None,
    stores: str | Path = "data",
    trust: str | Sequence[str] = (),
) -> Bundle:
    """Load a trained model and its domain, from the folder of an export or of a run.

    Nothing in the folder is executed: weights are read without pickled objects, and the configuration can name classes
    of this package and of packages in `trust` only. The model is in evaluation mode, in float32.

    Args:
        folder: a folder that `task=export` has written, or a run directory, of which the best checkpoint is used.
        device: None for a GPU if there is one.
        stores: for a run, the folder of prepared data, which contains the tokenizers of text domains.
        trust: packages outside this project whose classes the configuration may name. Their code is executed.

    Raises:
        UserError: a file is missing, damaged or from another version, a class is not trusted, or PyTorch does not see
            the device.
    """
    folder = as_path(folder)
    if not (folder / CONFIG).exists() and (found := format_of(folder)):
        raise UserError(
            f"{folder} holds an export with task.format={found}, which transformers loads: export without task.format"
        )
    if not (folder / CONFIG).exists():
        raise UserError(f"{folder} has no {CONFIG}: give a folder of task=export, or the directory of a run")
    bundle = _of_run(folder, stores, trust) if is_run(folder) else _of_export(folder, trust)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return bundle.to(device)
    except (RuntimeError, AssertionError) as error:  # an AssertionError if PyTorch is built without CUDA
        raise UserError(f"device={device}: {one_line(error)}: give cpu, or a device that PyTorch sees") from error


def _of_export(folder: Path, trust: str | Sequence[str]) -> Bundle:
    exported = load_exported(folder, trust)
    return Bundle(exported.model, exported.domain, **exported.scoring)


def _of_run(folder: Path, stores: str | Path, trust: str | Sequence[str]) -> Bundle:
    with trusting(trust):
        run = RunDirectory.open(folder).trained()
        vocabulary = run.data["vocabulary"]
        refuse_problems(run.config)
        session = Session(on_one_device(run, "cpu"))
        with TemporaryDirectory() as shared:  # tokenizers of text domains
            session.domain.share(as_path(stores), run.config["content"], Path(shared))
            session.domain.use_shared(Path(shared))
        model = session.load(run.checked_best(), vocabulary)
    return Bundle(model, session.domain, session.data.length, session.evaluation.overlap)


def _refuse_below_1(**numbers: int | None) -> None:
    """Raise ValueError for anything but an integer from 1 on. None is allowed."""
    for name, number in numbers.items():
        if number is None:
            continue
        if not isinstance(number, Integral):
            raise ValueError(f"{name}={number!r}: it must be an integer")
        if number < 1:
            raise ValueError(f"{name}={number}: it must be at least 1")


def _path(item: object, domain: Domain) -> Path | None:
    """The file that `item` names; None if it is text. Raises UserError for another type."""
    if not isinstance(item, str | Path):
        raise UserError(
            f"an object of the type {type(item).__name__} is neither text nor a file: give a string, a pathlib.Path, "
            "or to score several texts or files, a list of these"
        )
    if isinstance(item, str) and type(domain).encode_text is not Domain.encode_text:
        exists = item and os.path.exists(as_path(item))  # Path("") would be the working directory
        return as_path(item) if exists or FILE_NAME.fullmatch(item) else None
    return as_path(item)
