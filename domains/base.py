"""The base class of domains: sources, a token store, units, and decoding of tokens to readable files."""

import hashlib
import json
import shutil
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from filelock import FileLock

from ..core.errors import UserError, shortened
from ..core.progress import shown
from ..core.whole_files import full_disk_named
from .baselines import markov
from .clocks import Clock
from .store import FORMAT, SPLITS, Store, StoreWriter

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LINES, WIDTH = 4, 72  # of a preview


class Measures(NamedTuple):
    """The metrics that `Domain.measure` computes.

    Attributes:
        headings: heading in tables of each metric, with its unit, by name, in the order of `Domain.measure`.
        segment: what a segment is, such as "10 seconds".
        axis: what the position in a piece is measured in, such as "position, seconds".
        extent: length of a segment in that unit.
        note: definitions and their source.
    """

    headings: Mapping[str, str]
    segment: str
    axis: str
    extent: float
    note: str


class Domain(ABC):
    """A source of tokens. To add a domain, write a subclass in `domains/NAME.py` and `configs/domain/NAME.yaml`.

    Class attributes that a domain sets:
        name: folder of its stores, and its name in tables.
        units: natural units, the main one first (`("note", "step")`).
        start: id of the token that begins every document. It is only context there, but it may also end a
            document, as the last target.
        period: windows begin at multiples of this number of tokens (4 for four interleaved voices).
        lookback: number of preceding tokens that, together with a token, determine its weight in the first of `units`.
        revision: incremented whenever `build` would write different bytes from the same source.
        groups: kinds of targets that are also scored separately; if set, `build` marks every token.
        splits: train, valid, test, and additional splits that are scored like test.
        top_p: default for nucleus sampling, which draws from the smallest set of tokens with at least this total
            probability; None draws from all tokens.
        margin: difference in nats per token below which encodings count as equivalent; `task.margin` overrides it.
            About a quarter of the smallest difference that papers report on such data; the default is for chorales.
        solved: minimum accuracy at which a run counts as having solved the task; None if there are no right or wrong
            answers. If set, encodings are compared by the number of seeds that solve the task, not by nats.
        chance: accuracy of guessing, if `solved` is set and `chance_with` is not overridden.
        measures: metrics for comparing samples with the test split; None if there are none.
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
    measures: Measures | None = None

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Number of token ids."""

    @abstractmethod
    def options(self) -> Mapping[str, Any]:
        """All settings that determine the contents of the store: source and its hash, tokenizer, quantisation."""

    def options_again(self) -> Mapping[str, Any]:
        """`options`, without what earlier calls have found out about the source."""
        return self.options()

    @classmethod
    def chance_with(cls, options: Mapping[str, Any]) -> float:
        """Accuracy of guessing with these settings of the domain, for tasks in which it depends on them."""
        return cls.chance

    @classmethod
    def augmented_with(cls, options: Mapping[str, Any]) -> str | None:
        """What `augment` does with these settings of the domain, as a sentence for reports; None for nothing."""
        return None

    @classmethod
    def subset(cls, content: Mapping[str, Any], document: str) -> str | None:
        """The subset that a test document belongs to, if reports also score parts of the test split; otherwise None.

        Args:
            content: as of `content`, of a run.
        """
        return None

    def content(self) -> dict[str, Any]:
        """`options` as read from JSON, with lists instead of tuples, for comparison with a manifest."""
        return json.loads(json.dumps(dict(self.options())))

    @abstractmethod
    def build(self, writer: StoreWriter) -> None:
        """Read the source and call `writer.add` for every document. `writer.facts` are added to the manifest.

        Raises:
            UserError: a source is missing, corrupt, truncated or empty. The message names the file and the position.
        """

    @abstractmethod
    def unit_weights(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """Number of natural units per token of one document, by unit. The start token comes first and has weight 0."""

    @abstractmethod
    def encode_file(self, path: Path) -> np.ndarray:
        """Tokens of a file in the format that `render` writes, such as a prompt to continue; the start token is first.

        Raises:
            UserError: the file is missing or has the wrong format. The message names the file and the problem.
        """

    def encode_text(self, text: str) -> np.ndarray:
        """Tokens of a string, start token first, for domains of text or sequences; by default an error.

        Raises:
            UserError: the domain reads files only, or the string contains something else.
        """
        raise UserError(f"domain {self.name} reads files, not strings: give the path of a file")

    def encode_documents(self, path: Path) -> Iterator[tuple[str, np.ndarray]]:
        """Name and tokens of every document in a file, for scoring. By default a file is one document.

        Raises:
            UserError: see `encode_file`.
        """
        yield path.name, self.encode_file(path)

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> Any:
        """Decode ids to the domain's object (PrettyMIDI, sequence, text). Accepts any ids and never raises."""

    @abstractmethod
    def render(self, item: Any, stem: Path) -> list[Path]:
        """Write a decoded object to one or more files named `stem` plus an extension. Returns their paths.

        The folder of `stem` already exists. Files with the same name are replaced.
        """

    def preview(self, item: Any) -> str:
        """A few lines of plain text that show a decoded object on a terminal; empty if it has no text form."""
        return first_lines(item) if isinstance(item, str) else ""

    def measure(self, ids: Iterable[int]) -> np.ndarray:
        """Metrics of the consecutive segments of a sample, `[segments, metrics]`, NaN where undefined.

        Accepts any ids. Only for domains with `measures`.
        """
        raise NotImplementedError

    @property
    def searched(self) -> Sequence[Path]:
        """The paths of the data, of which folders are searched recursively."""
        return ()

    def clock(self) -> Clock | None:
        """How tokens advance the time of the medium, for `encoding.clock=medium`; None if there is no such time."""
        return None

    def fast_tokenizer(self) -> "Tokenizer | None":
        """A tokenizer of the package `tokenizers` that encodes text as `encode_file` encodes a file with this text.

        Exported models include it. None if the domain's files are not text.
        """
        return None

    def augment(self, tokens: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return an augmented copy of a training window (start token first). The default changes nothing.

        Unscored targets, and all tokens of a domain with `lookback`, must keep their positions.
        """
        return tokens

    def markov(self, store: Store, split: str, max_order: int) -> dict[int, np.ndarray]:
        """Nats of each document of `split` under smoothed Markov models of order 0 to `max_order`, as baselines."""
        return markov(store, split, max_order)

    def prepare(self, root: Path, known: Mapping[str, Any] | None = None) -> Store:
        """Open the store under `root`, building it if needed. Concurrent processes build it only once.

        Args:
            root: folder of the stores of all domains.
            known: options of an existing store. That store is opened even if its source is missing or has changed.
        """
        if known is not None and self.is_prepared(root, known):
            return self._open(self._directory(root, known), known)
        options = dict(self.options())
        directory = self._directory(root, options)
        if not (directory / "manifest.json").exists():
            directory.parent.mkdir(parents=True, exist_ok=True)
            # Also shown while another process builds the store and holds the lock.
            with shown(f"preparing {self.name}", bar=False), FileLock(directory.with_suffix(".lock")):
                if not (directory / "manifest.json").exists():
                    for killed in directory.parent.glob(f".{directory.name}.*/"):  # not a file of `remember`
                        shutil.rmtree(killed)
                    with (
                        full_disk_named(directory),
                        StoreWriter(directory, self.vocabulary, self.units, self.groups, self.splits) as writer,
                    ):
                        writer.facts.update(domain=self.name, revision=self.revision, options=options)
                        self.build(writer)
                        if dict(self.options_again()) != options:
                            raise UserError(
                                f"the source of domain {self.name} changed while it was read: rerun the same command"
                            )
        return self._open(directory, options)

    def is_prepared(self, root: Path, known: Mapping[str, Any]) -> bool:
        """Whether a store with the options `known` exists under `root`."""
        return (self._directory(root, known) / "manifest.json").exists()

    def share(self, root: Path, known: Mapping[str, Any], folder: Path) -> list[Path]:
        """Write to `folder` the files that a trained model needs, besides this package, to encode and decode.

        Most domains need none. `known` are the options of the store that the model was trained on.
        """
        return []

    def use_shared(self, folder: Path) -> None:  # noqa: B027 (most domains need nothing)
        """Encode and decode with the files that `share` wrote to `folder`. Raises UserError if they are unreadable."""

    def _open(self, directory: Path, options: Mapping[str, Any]) -> Store:
        """Open the store in `directory`. Raises UserError if its manifest does not match `options`."""
        store = Store.open(directory)
        wanted = {
            **{"domain": self.name, "revision": self.revision, "options": options, "vocabulary": self.vocabulary},
            **{"units": self.units, "groups": self.groups, "splits": self.splits},
        }
        for key, value in wanted.items():
            if json.dumps(store.manifest.get(key), sort_keys=True) != json.dumps(value, sort_keys=True):
                found = shortened(store.manifest.get(key))
                raise UserError(
                    f"{directory / 'manifest.json'}: {key}={found}, expected {shortened(value)}: delete {directory} to "
                    "rebuild it"
                )
        return store

    def _directory(self, root: Path, options: Mapping[str, Any]) -> Path:
        key = json.dumps([self.name, FORMAT, self.revision, dict(options)], sort_keys=True)
        return Path(root) / self.name / hashlib.sha256(key.encode()).hexdigest()[:12]


def first_lines(text: str) -> str:
    """The beginning of a text, in at most LINES lines of at most WIDTH characters."""
    parts = (part for line in text[: LINES * WIDTH].splitlines() for part in textwrap.wrap(line, WIDTH))
    return "\n".join([*islice(parts, LINES)])
