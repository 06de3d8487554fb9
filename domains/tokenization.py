"""Lossless tokenizers of text: GPT-2's byte-level BPE, a BPE trained on the data, bytes, or letters of an alphabet."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ..core.errors import UserError, one_line
from ..core.whole_files import write_text
from ..pretrained.vocabulary import END_OF_TEXT
from .documents import Document
from .fast_tokenizers import started

GPT2_VOCABULARY = 50257
# Computed from vocabulary and merges, so it does not depend on the layout of the file.
GPT2_DIGEST = "e1bf1d7abcc7e361ff81bef4019332b6b745a38a09133324388925dd4ba005e0"
PIECE = 1 << 16  # characters after which long documents are cut at the next place where no token changes
BATCH = 1 << 21  # bytes or characters tokenized at once: enough for all cores, but with bounded memory
LIMIT = 1 << 24  # maximum bytes of a tokenizer.json; twelve times GPT-2's
CUT = re.compile(r"\S(?=[ \n])")
T = TypeVar("T")


class Tokenizer(ABC):
    """Maps text to ids and any ids to text.

    Attributes:
        pieces: the bytes of each id; empty for end of text.
        lengths: number of these bytes, `[vocabulary]`.
        start, end: ids of the tokens that begin and end a document; `start` is `end` by default.
        digest: sha256 that identifies the tokenizer.
        prefix: what encoding adds before a text.
    """

    prefix = ""

    def __init__(self, pieces: Sequence[bytes], end: int, digest: str, start: int | None = None):
        self.pieces, self.end, self.digest = pieces, end, digest
        self.start = end if start is None else start
        self.lengths = np.array([len(piece) for piece in pieces], np.int32)

    @abstractmethod
    def encode(self, documents: Sequence[Document]) -> list[np.ndarray]:
        """Ids of the text of each document, without end of text. `<|endoftext|>` is encoded like other text."""

    @abstractmethod
    def fast(self) -> tokenizers.Tokenizer:
        """A tokenizer of the package `tokenizers` with the same ids; it begins a text with end of text."""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of any ids. Ids out of range are skipped; invalid UTF-8 becomes U+FFFD."""
        known = (self.pieces[i] for i in map(int, ids) if 0 <= i < len(self.pieces))
        return b"".join(known).decode(errors="replace")


class Bytes(Tokenizer):
    """One id per byte; 256 is end of text."""

    vocabulary = 257

    def __init__(self):
        super().__init__([bytes([value]) for value in range(256)] + [b""], 256, hashlib.sha256(b"bytes").hexdigest())

    def encode(self, documents: Sequence[Document]) -> list[np.ndarray]:
        return [np.frombuffer(document.raw, np.uint8) for document in documents]

    def fast(self) -> tokenizers.Tokenizer:
        same = tokenizers.Tokenizer(models.BPE(BYTES, []))
        same.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        same.decoder = decoders.ByteLevel()
        return started(same, END_OF_TEXT, self.end)


class Alphabet(Tokenizer):
    """One id per letter of an alphabet, in its order; the next id is end of text.

    Args:
        letters: different characters.
    """

    def __init__(self, letters: str):
        digest = hashlib.sha256(json.dumps(["alphabet", letters]).encode()).hexdigest()
        super().__init__([letter.encode() for letter in letters] + [b""], len(letters), digest)
        self._letters, self._ids = letters, {letter: i for i, letter in enumerate(letters)}

    def encode(self, documents: Sequence[Document]) -> list[np.ndarray]:
        """Ids of the text of each document. Raises UserError for a letter that is not in the alphabet."""
        return [self._encode(document) for document in documents]

    def fast(self) -> tokenizers.Tokenizer:
        same = tokenizers.Tokenizer(models.WordLevel(self._ids))
        same.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
        same.decoder = decoders.Fuse()
        return started(same, END_OF_TEXT, self.end)

    def _encode(self, document: Document) -> np.ndarray:
        try:
            return np.fromiter(map(self._ids.__getitem__, document.text), np.int64, len(document.text))
        except KeyError as error:
            letter = error.args[0]
            place = document.text.index(letter) + 1
            known = self._letters if len(self._letters) < 60 else f"{self._letters[:60]}..."
            raise UserError(
                f"{document.name}: character {place:,} is {letter!r}, which domain.alphabet={known} lacks: add it, or "
                "correct the text"
            ) from error


class BPE(Tokenizer):
    """Byte-level byte pair encoding with GPT-2's pre-tokenization, using the `tokenizers` package on all cores.

    Args:
        vocabulary: ids by their bytes in GPT-2's spelling. One more id, the last, is end of text.
        merges: pairs of spellings, in the order in which they are merged.
    """

    def __init__(self, vocabulary: dict[str, int], merges: list[tuple[str, str]]):
        spelt = sorted(vocabulary, key=vocabulary.__getitem__)
        if [vocabulary[spelling] for spelling in spelt] != list(range(len(spelt))):
            raise ValueError("its ids are not 0, 1, 2, ...")
        if missing := len(BYTES.keys() - vocabulary.keys()):
            raise ValueError(f"{missing} of the 256 bytes have no token")
        digest = hashlib.sha256(json.dumps([spelt, merges]).encode()).hexdigest()
        # Raises KeyError for characters that are not in the byte alphabet.
        super().__init__([bytes(BYTES[letter] for letter in each) for each in spelt] + [b""], len(spelt), digest)
        self._bpe = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
        self._bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._bpe.decoder = decoders.ByteLevel()  # for use of the file without this package

    def encode(self, documents: Sequence[Document]) -> list[np.ndarray]:
        return joined([list(pieces(document.text)) for document in documents], self._bpe.encode_batch_fast)

    def fast(self) -> tokenizers.Tokenizer:
        return started(tokenizers.Tokenizer.from_str(self._bpe.to_str()), END_OF_TEXT, self.end)

    @classmethod
    def read(cls, path: Path) -> "BPE":
        """Read a tokenizer from a `tokenizer.json`.

        Raises:
            UserError: the file is missing, damaged, or not a byte-level BPE.
        """
        try:
            with open(path, "rb") as file:
                content = file.read(LIMIT + 1)
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}): give a tokenizer.json") from error
        if len(content) > LIMIT:
            raise UserError(f"{path} has more than {LIMIT:,} bytes: give the tokenizer.json of a byte-level BPE")
        try:
            found = json.loads(content)
            if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
                raise ValueError("it has no model")
            return cls(*_parts(found["model"]))
        except Exception as error:  # `tokenizers` raises plain Exception
            reason = one_line(error)
            fault = f"{path} is not a tokenizer.json of a byte-level BPE ({reason})"
            raise UserError(f"{fault}: give another file, or delete it if it was downloaded") from error

    @classmethod
    def gpt2(cls, path: Path) -> "BPE":
        """Read and verify GPT-2's `tokenizer.json`. Raises UserError if it is a different one."""
        found = cls.read(path)
        if found.digest != GPT2_DIGEST:
            raise UserError(
                f"{path} is not GPT-2's tokenizer ({len(found.pieces):,} tokens, digest {found.digest[:12]}...): "
                "get tokenizer.json from huggingface.co/openai-community/gpt2"
            )
        return found

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> "BPE":
        """Train a tokenizer with `size` tokens: the 256 bytes, merges from most to least frequent, and end of text.

        Raises:
            ValueError: the texts have too few repeated pairs.
        """
        bpe = tokenizers.Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=size - 1, initial_alphabet=alphabet, show_progress=False)
        bpe.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
        if (reached := bpe.get_vocab_size() + 1) < size:
            raise ValueError(
                f"vocabulary_size={size}: the training split has pairs for only {reached:,} tokens: lower it"
            )
        model = json.loads(bpe.to_str())["model"]
        return cls(*_parts(model))

    def write(self, path: Path) -> None:
        """Write a `tokenizer.json` for `read`, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, self._bpe.to_str(pretty=True))


def pieces(text: str) -> Iterator[str]:
    """Split `text` into pieces of about PIECE characters whose tokens, concatenated, are the tokens of `text`.

    GPT-2's pre-tokens never continue from a visible character to white space, so cutting there does not change them.
    This lets all cores work on a long document and limits the memory that `tokenizers` needs.
    """
    begin = 0
    while len(text) - begin > PIECE and (match := CUT.search(text, begin + PIECE)):
        yield text[begin : match.start() + 1]
        begin = match.start() + 1
    yield text[begin:]


def joined(cut: Sequence[list[str]], encode: Callable[[list[str]], list[tokenizers.Encoding]]) -> list[np.ndarray]:
    """Ids of each document, given its pieces, all of which `encode` encodes in parallel.

    A long document is encoded in parts, because an encoding takes many times the memory of its ids.
    """
    parts = batches(chain.from_iterable(cut), len)
    ids = (np.array(encoding.ids, np.int32) for part in parts for encoding in encode(part))
    return [np.concatenate([*islice(ids, len(each))]) for each in cut]


def batches(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Group consecutive items into batches with a total `size` of at least BATCH."""
    batch, total = [], 0
    for item in items:
        batch.append(item)
        total += size(item)
        if total >= BATCH:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def _parts(model: dict) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of the model in a tokenizer.json. Older files store pairs as one string."""
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    merges = [(left, right) for left, right in pairs]
    return {spelling: i for spelling, i in model["vocab"].items() if spelling != END_OF_TEXT}, merges


def _alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones as themselves, others as characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {chr(0x100 + i): value for i, value in enumerate(others)}


BYTES = _alphabet()
