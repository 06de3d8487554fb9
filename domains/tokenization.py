"""Tokenizers of text: GPT-2's byte-level BPE, one trained here, or plain bytes; each keeps every byte."""

import hashlib
import json
import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ..core.errors import UserError, one_line
from .documents import Document

END_OF_TEXT = "<|endoftext|>"
GPT2_VOCABULARY = 50257
# Over the vocabulary and the merges, so that any file of GPT-2's tokenizer has it, whatever its layout.
GPT2_DIGEST = "e1bf1d7abcc7e361ff81bef4019332b6b745a38a09133324388925dd4ba005e0"
PIECE = 1 << 16  # characters after which a long document is cut at the next place where that changes no token
LIMIT = 1 << 24  # bytes of a tokenizer.json: twelve times GPT-2's
CUT = re.compile(r"\S(?=[ \n])")


class Tokenizer(ABC):
    """Maps text to ids and any ids to text.

    Attributes:
        pieces: the bytes each id stands for; none for end of text.
        lengths: `[vocabulary]` number of those bytes.
        end: id of end of text.
        digest: sha256 that names this tokenizer.
    """

    def __init__(self, pieces: Sequence[bytes], end: int, digest: str):
        self.pieces, self.end, self.digest = pieces, end, digest
        self.lengths = np.array([len(piece) for piece in pieces])

    @abstractmethod
    def encode(self, documents: Sequence[Document]) -> list[np.ndarray]:
        """Ids of each document's text, with no end of text; `<|endoftext|>` in the text is text."""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of any ids: those out of range vanish, bytes that are not UTF-8 become U+FFFD."""
        known = (self.pieces[i] for i in map(int, ids) if 0 <= i < len(self.pieces))
        return b"".join(known).decode(errors="replace")


class Bytes(Tokenizer):
    """An id a byte; 256 is end of text."""

    vocabulary = 257

    def __init__(self):
        super().__init__([bytes([value]) for value in range(256)] + [b""], 256, hashlib.sha256(b"bytes").hexdigest())

    def encode(self, documents: Sequence[Document]) -> list[np.ndarray]:
        return [np.frombuffer(document.raw, np.uint8) for document in documents]


class BPE(Tokenizer):
    """Byte-level byte pair encoding over GPT-2's pre-tokens, by the `tokenizers` package on all cores.

    Args:
        vocabulary: ids by GPT-2's spelling of their bytes; an id more, the last, is end of text.
        merges: pairs of spellings, the first to be merged first.
    """

    def __init__(self, vocabulary: dict[str, int], merges: list[tuple[str, str]]):
        spelt = sorted(vocabulary, key=vocabulary.__getitem__)
        if [vocabulary[spelling] for spelling in spelt] != list(range(len(spelt))):
            raise ValueError("its ids are not 0, 1, 2, ...")
        if missing := len(BYTES.keys() - vocabulary.keys()):
            raise ValueError(f"{missing} of the 256 bytes have no token")
        digest = hashlib.sha256(json.dumps([spelt, merges]).encode()).hexdigest()
        # A spelling beyond the byte alphabet raises KeyError here.
        super().__init__([bytes(BYTES[letter] for letter in each) for each in spelt] + [b""], len(spelt), digest)
        self._bpe = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
        self._bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._bpe.decoder = decoders.ByteLevel()  # for those who read the file without this package

    def encode(self, documents: Sequence[Document]) -> list[np.ndarray]:
        cut = [list(pieces(document.text)) for document in documents]
        encodings = iter(self._bpe.encode_batch_fast([piece for each in cut for piece in each]))
        return [np.concatenate([np.array(next(encodings).ids, np.int64) for _ in each]) for each in cut]

    @classmethod
    def read(cls, path: Path) -> "BPE":
        """The tokenizer of a `tokenizer.json`.

        Raises:
            UserError: the file is missing, damaged, or holds no byte-level BPE.
        """
        try:
            with open(path, "rb") as file:
                content = file.read(LIMIT + 1)
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}): give a tokenizer.json") from error
        if len(content) > LIMIT:
            raise UserError(f"{path} has more than {LIMIT:,} bytes: give the tokenizer.json of a byte-level BPE")
        try:
            model = json.loads(content)["model"]
            return cls(*_parts(model))
        except Exception as error:  # what `tokenizers` raises is Exception itself
            reason = one_line(error)
            fault = f"{path} is no tokenizer.json of a byte-level BPE ({type(error).__name__}: {reason})"
            raise UserError(f"{fault}: get it anew, or delete it") from error

    @classmethod
    def gpt2(cls, path: Path) -> "BPE":
        """GPT-2's tokenizer; its `tokenizer.json` is verified. Raises UserError when it is another one."""
        found = cls.read(path)
        if found.digest != GPT2_DIGEST:
            raise UserError(
                f"{path} is not GPT-2's tokenizer ({len(found.pieces):,} tokens, digest {found.digest[:12]}...): "
                "get tokenizer.json from huggingface.co/openai-community/gpt2"
            )
        return found

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> "BPE":
        """Learn `size` tokens, end of text included, from `texts`: the 256 bytes, then merges, the commonest first.

        Raises:
            ValueError: the texts have too few repeated pairs for as many.
        """
        bpe = tokenizers.Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=size - 1, initial_alphabet=alphabet, show_progress=False)
        bpe.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
        if (reached := bpe.get_vocab_size() + 1) < size:
            raise ValueError(
                f"vocabulary_size={size}: the training split has pairs for {reached:,} tokens at most: lower it"
            )
        model = json.loads(bpe.to_str())["model"]
        return cls(*_parts(model))

    def write(self, path: Path) -> None:
        """Write a `tokenizer.json` that `read` reads, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        try:
            self._bpe.save(str(temporary))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def pieces(text: str) -> Iterator[str]:
    """`text` in pieces of about PIECE characters whose tokens, in order, are the tokens of the whole.

    No pre-token of GPT-2's goes on from a visible character to white space, so that cutting between them changes none.
    It lets all cores work on one long document and bounds the memory that `tokenizers` needs.
    """
    begin = 0
    while len(text) - begin > PIECE and (match := CUT.search(text, begin + PIECE)):
        yield text[begin : match.start() + 1]
        begin = match.start() + 1
    yield text[begin:]


def _parts(model: dict) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a tokenizer.json's model; older files write a pair as one string."""
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    merges = [(left, right) for left, right in pairs]
    return {spelling: i for spelling, i in model["vocab"].items() if spelling != END_OF_TEXT}, merges


def _alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones stand for themselves, the others for the letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {chr(0x100 + i): value for i, value in enumerate(others)}


BYTES = _alphabet()
