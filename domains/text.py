"""Text with GPT-2's tokens, bytes, characters of an alphabet, or the tokens of a trained or pretrained tokenizer."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from ..core.errors import UserError
from ..core.options import as_path
from ..core.words import plural
from . import documents, overlaps
from .clocks import Clock
from .corpus import Corpus
from .documents import Document
from .fetch import fetch
from .pretrained_tokenizer import Pretrained
from .store import SPLITS, Store, StoreWriter
from .tokenization import BPE, GPT2_VOCABULARY, Alphabet, Bytes, Tokenizer, batches

TOKENIZER = "tokenizer.json"  # in an exported folder
GPT2_SHA256, GPT2_BYTES = "8414cab924d8b9b33013f0d221c5862f365ee9be39c5c2bfae8a5a9e970478a6", 1_355_256


class Text(Corpus):
    """Documents of text. Each begins with a start token, which is context only, and ends with an end token, a target.

    So a model learns where documents end, and the nats of a document include its end. White space, line ends and all
    other bytes are preserved.

    Args:
        options: fields of `TextOptions`, in order.

    Raises:
        ValueError: see `TextOptions`.
    """

    name = "text"
    margin = 0.0025  # the published difference between RoPE and PoPE at the smallest size is 0.010
    units = ("byte",)

    def __init__(self, *options: Any, **named: Any):
        super().__init__(*options, **named)
        given = self.given
        self.tokenizer, self.alphabet = given.tokenizer, given.alphabet
        self.tokenizer_path = as_path(given.tokenizer_path) if given.tokenizer_path else None
        self.tokenizer_urls, self.vocabulary_size = list(given.tokenizer_urls), given.vocabulary_size
        # Options and tokenizer digest of the open store, whose source may no longer exist.
        self._options: Mapping[str, Any] | None = None
        self._made_with: str | None = None

    @property
    def vocabulary(self) -> int:
        if self.tokenizer == "alphabet":
            return len(self.alphabet or "") + 1
        if self.tokenizer == "pretrained":
            return len(self.codec.pieces)
        return {"gpt2": GPT2_VOCABULARY, "bytes": Bytes.vocabulary, "train": self.vocabulary_size}[self.tokenizer]

    @property
    def start(self) -> int:
        """End of text, the last id; for a pretrained tokenizer, the id that begins a text."""
        return self.codec.start if self.tokenizer == "pretrained" else self.vocabulary - 1

    def options(self) -> Mapping[str, Any]:
        trained = {"vocabulary_size": self.vocabulary_size, "tokenizers": version("tokenizers")}
        marked = {"split_field": self.fields.split, "group_field": self.fields.group, "alphabet": self.alphabet}
        return {
            **self._source(),
            "field": self.fields.text,
            **{name: value for name, value in marked.items() if value is not None},
            "documents": self.documents,
            "tokenizer": self.tokenizer,
            **(trained if self.tokenizer == "train" else {}),
            **({"tokenizer_sha256": self._pretrained.digest} if self.tokenizer == "pretrained" else {}),
            "split": self.split if self.split == "files" else self.fractions,
        }

    def options_again(self) -> Mapping[str, Any]:
        vars(self).pop("_pretrained", None)
        if self.hub is not None:
            self.hub.read_again()
        return self.options()

    def prepare(self, root: Path, known: Mapping[str, Any] | None = None) -> Store:
        self._folder = Path(root) / self.name  # for tokenizers and downloads, next to the stores
        self._made_with, self._options = None, known if known and self.is_prepared(root, known) else None
        for made in ("codec", "_pretrained"):
            vars(self).pop(made, None)  # the files may have changed
        store = super().prepare(root, known)
        self._options, self._made_with = store.manifest["options"], store.manifest["tokenizer"]["sha256"]
        return store

    def build(self, writer: StoreWriter) -> None:
        self._files()  # first, so that errors occur before a tokenizer is downloaded
        tokenizer = self.codec
        counts, tokens, labels, splits = Counter(), 0, {}, {}  # the last two by document
        published = self.split == "files" or self.fields.split is not None
        in_blocks = self._one_document(self._files())
        end = np.array([] if in_blocks else [tokenizer.end], np.int32)  # no end of text, because the document continues
        for (document, split, cluster), ids in self._encoded(tokenizer):
            row = np.concatenate([[tokenizer.start], ids, end], dtype=np.int32)
            if int(self._bytes(row).sum()) != len(document.raw):
                raise RuntimeError(f"{document.name}: the bytes of its tokens differ from those of its text")
            writer.add(document.name, split, cluster, row, {"byte": len(document.raw)})
            counts[split] += 1
            tokens += len(ids)
            if published:
                # The cluster is a hash of the text, or of the group.
                labels[document.name] = documents.drawn(document.raw, 0, 0)[0] if document.group else cluster
                splits[document.name] = split
        if empty := [split for split in SPLITS if not counts[split]]:
            wanted = "name files after train, valid and test"
            if in_blocks and counts.total() > 1:
                wanted = "it repeats itself, and copies are in one split only; give a text with more different parts"
            elif self.split == "hash" and counts.total() < len(SPLITS):
                wanted = "give at least three documents, or split files into smaller ones (domain.documents)"
            elif self.split == "hash":
                wanted = "increase domain.valid_fraction and domain.test_fraction, or cut files into smaller documents"
                wanted += "" if self.documents == "line" else " (domain.documents=paragraph or line)"
            if self.fields.split:
                wanted = f"the values of {self.fields.split!r} must include train, valid and test"
            where = self.path or (self.hub.name if self.hub else "the download")
            every = plural(counts.total(), "document")
            raise UserError(f"none of {every} in {where} is in {', '.join(empty)}: {wanted}")
        writer.facts.update(
            tokenizer={"sha256": tokenizer.digest, "end_of_text": tokenizer.end},
            tokens_of_text=tokens,  # without the end of text at either end
        )
        if in_blocks:
            writer.facts["splits_by"] = "position in the only document (train, valid, test)"
        if published:
            writer.facts["documents_also_in_train"] = overlaps.shared(labels, splits)

    def encode_file(self, path: Path) -> np.ndarray:
        """Start token and tokens of a .txt file."""
        if path.name.lower().endswith((*documents.TABLES, *documents.PACKED)):
            raise UserError(f"{path} is text in another format: give a .txt file")
        if path.exists() and not path.is_file():
            raise UserError(f"{path} is not a regular file: give a .txt file")
        try:
            with open(path, "rb") as file:
                raw = documents.without_mark(file.read(documents.RECORD + 1))
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}): give a .txt file") from error
        if not raw:
            raise UserError(f"{path} is empty: give a .txt file")
        if len(raw) > documents.RECORD:
            raise UserError(f"{path} has more than {documents.RECORD:,} bytes: give a shorter .txt file")
        return self._encode(Document(path.name, documents.decoded(raw, path, 1), raw, len(raw)))

    def encode_text(self, text: str) -> np.ndarray:
        """Start token and tokens of a text."""
        if not text:
            raise UserError("the text is empty: give at least one character")
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise UserError("the text contains an unpaired surrogate, invalid in UTF-8: remove it") from error
        return self._encode(Document("text", text, raw, len(raw)))

    def _encode(self, document: Document) -> np.ndarray:
        (ids,) = self.codec.encode([document])
        return np.concatenate([[self.start], ids]).astype(np.int64)

    def unit_weights(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        return {"byte": self._bytes(np.asarray(tokens, np.int64)).astype(np.float64)}

    def _bytes(self, tokens: np.ndarray) -> np.ndarray:
        """Number of bytes of each token. What the tokenizer adds before a text does not count."""
        found = self.codec.lengths[tokens]
        if self.codec.prefix and len(tokens) > 1 and tokens[0] == self.codec.start and found[1]:
            found[1] -= len(self.codec.prefix)
        return found

    def clock(self) -> Clock:
        """Bytes of the text."""
        return Clock(self.codec.lengths)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of any ids. End of text and ids out of range are skipped; invalid UTF-8 becomes U+FFFD."""
        given = [*ids]
        text = self.codec.decode(given)
        return text.removeprefix(self.codec.prefix) if given[:1] == [self.codec.start] else text

    def render(self, item: str, stem: Path) -> list[Path]:
        """Write `stem`.txt in UTF-8 with unchanged line ends."""
        path = stem.with_name(stem.name + ".txt")
        path.write_bytes(item.encode())
        return [path]

    @cached_property
    def codec(self) -> Tokenizer:
        """The tokenizer, which is loaded, downloaded or trained on first use.

        Raises:
            UserError: the tokenizer of the open store is missing, or a different one was found.
        """
        if self.tokenizer == "bytes":
            return Bytes()
        if self.tokenizer == "alphabet":
            return Alphabet(self.alphabet or "")
        if self.tokenizer == "gpt2":
            return BPE.gpt2(self.tokenizer_path or self._download_gpt2())
        options = self.options() if self._options is None else self._options
        kept = self._folder and self._learnt(self._folder, options)
        if kept and kept.exists():
            found = self._reader(kept)
            if self._made_with not in (None, found.digest):
                raise UserError(
                    f"domain.tokenizer={self.tokenizer}: this is not the tokenizer that the data in {self._folder} "
                    "were encoded with: restore that one, or prepare the data again with stores=DIRECTORY"
                )
            return found
        try:
            trained = self._trained() if self.tokenizer == "train" else self._pretrained
        except UserError as error:
            raise error if kept is None or self._made_with is None else UserError(_lost(kept)) from error
        if kept:
            # If the text has changed, a different tokenizer would invalidate results.
            if self._made_with not in (None, trained.digest):
                raise UserError(_lost(kept))
            trained.write(kept)
        return trained

    @cached_property
    def _pretrained(self) -> Pretrained:
        """The tokenizer at `tokenizer_path`."""
        if self.tokenizer_path is None:
            raise UserError(
                "domain.tokenizer=pretrained: set domain.tokenizer_path to a tokenizer.json, a .gguf file or a "
                "tok*.bin, or set model.pretrained"
            )
        return Pretrained.read(self.tokenizer_path)

    @property
    def _reader(self) -> Callable[[Path], BPE | Pretrained]:
        return {"gpt2": BPE.gpt2, "train": BPE.read, "pretrained": Pretrained.read}[self.tokenizer]

    def share(self, root: Path, known: Mapping[str, Any], folder: Path) -> list[Path]:
        """Write the tokenizer as `tokenizer.json`, which the package `tokenizers` can read."""
        if self.tokenizer in ("bytes", "alphabet"):
            return []
        file, self._folder = folder / TOKENIZER, Path(root) / self.name
        if self.tokenizer == "gpt2":
            given = self.tokenizer_path or self._download_gpt2()
            BPE.gpt2(given)  # raises UserError if it has been removed or replaced
            file.write_bytes(given.read_bytes())
            return [file]
        learnt = self._learnt(self._folder, known)
        if not learnt.exists():
            raise UserError(_lost(learnt))
        self._reader(learnt).write(file)
        return [file]

    def fast_tokenizer(self) -> tokenizers.Tokenizer:
        return self.codec.fast()

    def use_shared(self, folder: Path) -> None:
        if self.tokenizer in ("gpt2", "train", "pretrained"):
            vars(self)["codec"] = self._reader(folder / TOKENIZER)

    def _learnt(self, folder: Path, options: Mapping[str, Any]) -> Path:
        key = hashlib.sha256(json.dumps([self.name, dict(options)], sort_keys=True).encode()).hexdigest()[:12]
        return folder / "tokenizers" / f"{key}.json"

    def _download_gpt2(self) -> Path:
        hint = (
            "get it from huggingface.co/openai-community/gpt2 and set domain.tokenizer_path=/where/you/put/it, or use "
            "domain.tokenizer=bytes or train, which download nothing"
        )
        if self._folder is None:
            raise UserError(f"GPT-2's tokenizer.json is missing, because the store is not prepared yet: {hint}")
        target = self._folder / "downloads" / "gpt2-tokenizer.json"
        return fetch(self.tokenizer_urls, GPT2_SHA256, target, hint, size=GPT2_BYTES)

    def _trained(self) -> BPE:
        texts = (document.text for document, split, _ in self._documents("learning tokens") if split == "train")
        try:
            return BPE.train(texts, self.vocabulary_size)
        except ValueError as error:
            raise UserError(f"domain.{error}") from error

    def _encoded(self, tokenizer: Tokenizer) -> Iterator[tuple[tuple[Document, str, str], np.ndarray]]:
        """Yield every document and its ids. Reading, tokenizing and writing of different batches overlap."""
        with ThreadPoolExecutor(1) as pool:
            before = None
            for batch in batches(self._documents("tokenizing"), lambda each: len(each[0].raw)):
                job = pool.submit(tokenizer.encode, [document for document, _, _ in batch])
                if before is not None:
                    yield from zip(before[0], before[1].result(), strict=True)
                before = batch, job
            if before is not None:
                yield from zip(before[0], before[1].result(), strict=True)


def _lost(learnt: Path) -> str:
    return (
        f"{learnt}, the tokenizer that the data were encoded with, is missing: restore it, or set stores=DIRECTORY to "
        "the folder of stores that contains it"
    )
