"""The Domain contract: sources, a token store, units, and a way back from tokens to something a person can read."""

import hashlib
import json
import shutil
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from ..core.errors import UserError, shortened
from ..core.progress import shown
from .baselines import markov
from .store import FORMAT, SPLITS, Store, StoreWriter


class Domain(ABC):
    """Where tokens come from. A subclass in `domains/NAME.py` with `configs/domain/NAME.yaml` is a new domain.

    Class attributes a domain sets:
        name: folder of its stores, and its name in tables.
        units: natural units, the one that figures are quoted in first (`("note", "step")`).
        start: id of the token that begins every document, as context only; it may close a document as its last target.
        period: tokens between the places where a window may begin (4 for four interleaved voices).
        lookback: tokens before a token that decide, with itself, its weight in the first of `units`.
        revision: raised whenever `build` would write other bytes from the same source.
        groups: kinds of target that are scored apart, beside together; `build` then marks every token.
        splits: train, valid, test, and further splits that are tested like test.
        top_p: smallest set of tokens that samples are drawn from, by probability, unless a task names another; None for
            all tokens.
        margin: nats a token by which encodings may differ and still count as equal; `task.margin` overrides it. About
            a quarter of the smallest difference that papers report on such data.
        solved: accuracy from which a run has solved the task; None where targets are not right or wrong answers.
            Encodings are then compared by how many seeds solve it, not by nats.
        chance: accuracy of guessing, where `solved` is set.
    """

    name: str
    units: tuple[str, ...]
    start: int = 0
    period: int = 1
    lookback: int = 0
    revision: int = 1
    groups: tuple[str, ...] = ()
    splits: tuple[str, ...] = SPLITS
    top_p: float | None = None
    margin: float = 0.005
    solved: float | None = None
    chance: float = 0.0

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Number of token ids."""

    @abstractmethod
    def options(self) -> Mapping[str, Any]:
        """Everything that decides the store's contents: source, its hash or version, tokenizer, quantisation."""

    def content(self) -> dict[str, Any]:
        """`options` as they are read back from a file, with lists for tuples, so that both can be compared."""
        return json.loads(json.dumps(dict(self.options())))

    @abstractmethod
    def build(self, writer: StoreWriter) -> None:
        """Read the source and `writer.add` every document; facts for the manifest go into `writer.facts`.

        Raises:
            UserError: a source is missing, corrupt, truncated or empty; names the file and the place.
        """

    @abstractmethod
    def unit_weights(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """Natural units that each token of one document (start token first, weight 0) stands for, by unit."""

    @abstractmethod
    def encode_file(self, path: Path) -> np.ndarray:
        """Tokens, start token first, of a file such as `render` writes: a prompt to continue, say.

        Raises:
            UserError: the file is missing or cannot be read as this domain's kind; names it and says what is wrong.
        """

    def encode_documents(self, path: Path) -> Iterator[tuple[str, np.ndarray]]:
        """Name and tokens of every document of a file that is to be scored. By default the file is one.

        Raises:
            UserError: as `encode_file`.
        """
        yield path.name, self.encode_file(path)

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> Any:
        """Turn any ids, sensible or not, into the domain's object (PrettyMIDI, sequence, text). Total."""

    @abstractmethod
    def render(self, item: Any, stem: Path) -> list[Path]:
        """Write a decoded object as files a person opens, `stem` plus an ending each; returns what was written.

        The folder of `stem` exists; files of the same name are replaced.
        """

    def preview(self, item: Any) -> str:
        """A few lines of plain text that show a decoded object on a terminal; empty if the domain has no such form."""
        return first_lines(item) if isinstance(item, str) else ""

    @property
    def searched(self) -> Path | None:
        """What is searched for data to its depth if it is a folder; None where nothing is."""
        return None

    def augment(self, tokens: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """A training window (start token first) as it shall be seen this time. The default changes nothing.

        Targets that are not scored, and tokens of a domain with `lookback`, must stay where they are.
        """
        return tokens

    def markov(self, store: Store, split: str, max_order: int) -> dict[int, np.ndarray]:
        """Nats of each document of `split` under smoothed Markov models of order 0 to `max_order`: the baseline."""
        return markov(store, split, max_order)

    def prepare(self, root: Path, known: Mapping[str, Any] | None = None) -> Store:
        """Open the store under `root`, building it first when it is not there. Processes that race build it once.

        Args:
            known: the options of a store that may be there: it is opened though its source has gone or changed.
        """
        if known is not None and self.is_prepared(root, known):
            return self._open(self._directory(root, known), known)
        options = dict(self.options())
        directory = self._directory(root, options)
        if not (directory / "manifest.json").exists():
            directory.parent.mkdir(parents=True, exist_ok=True)
            # Also while another process builds it, which holds the lock.
            with shown(f"preparing {self.name}", bar=False), FileLock(directory.with_suffix(".lock")):
                if not (directory / "manifest.json").exists():
                    for killed in directory.parent.glob(f".{directory.name}.*"):
                        shutil.rmtree(killed)
                    with StoreWriter(directory, self.vocabulary, self.units, self.groups, self.splits) as writer:
                        writer.facts.update(domain=self.name, revision=self.revision, options=options)
                        self.build(writer)
        return self._open(directory, options)

    def is_prepared(self, root: Path, known: Mapping[str, Any]) -> bool:
        """Whether the store with the options `known` is under `root`."""
        return (self._directory(root, known) / "manifest.json").exists()

    def share(self, root: Path, known: Mapping[str, Any], folder: Path) -> list[Path]:
        """Write to `folder` what it takes, beside this package, to encode for a model of the store with options `known`
        and to decode what it says. Most domains need nothing."""
        return []

    def use_shared(self, folder: Path) -> None:  # noqa: B027 (most domains need nothing)
        """Encode and decode by what `share` has written to `folder`. Raises UserError where it cannot be read."""

    def _open(self, directory: Path, options: Mapping[str, Any]) -> Store:
        """The store in `directory`, built with `options`. Raises UserError where its manifest says otherwise."""
        store = Store.open(directory)
        wanted = {
            **{"domain": self.name, "revision": self.revision, "options": options, "vocabulary": self.vocabulary},
            **{"units": self.units, "groups": self.groups, "splits": self.splits},
        }
        for key, value in wanted.items():
            if json.dumps(store.manifest.get(key), sort_keys=True) != json.dumps(value, sort_keys=True):
                found = shortened(store.manifest.get(key))
                raise UserError(
                    f"{directory / 'manifest.json'}: {key}={found}, not {shortened(value)}: delete {directory} to "
                    "rebuild it"
                )
        return store

    def _directory(self, root: Path, options: Mapping[str, Any]) -> Path:
        key = json.dumps([self.name, FORMAT, self.revision, dict(options)], sort_keys=True)
        return Path(root) / self.name / hashlib.sha256(key.encode()).hexdigest()[:12]


def first_lines(text: str, lines: int = 4, width: int = 72) -> str:
    """The beginning of a text, in at most `lines` lines of at most `width` characters."""
    parts = (part for line in text[: lines * width].splitlines() for part in textwrap.wrap(line, width))
    return "\n".join([*islice(parts, lines)])
