"""The tokenizer of a pretrained model, used without changes: any BPE whose tokens spell the text byte by byte."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from ..core.errors import UserError, one_line
from ..core.whole_files import write_text
from ..pretrained.formats import vocabulary_of
from ..pretrained.vocabulary import BYTE, SPACE, Vocabulary
from .documents import Document
from .fast_tokenizers import started
from .tokenization import BYTES, PIECE, Tokenizer, joined

CUT = re.compile(r"\w(?= \w)")  # no pre-tokenization joins words across one space


class Pretrained(Tokenizer):
    """Encodes text as the pretrained model's own tokenizer does, without the tokens that begin and end a document.

    Args:
        vocabulary: the tokenizer.

    Raises:
        ValueError: the package `tokenizers` cannot use it.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary, spec = vocabulary, vocabulary.spec
        try:
            self._bpe = tokenizers.Tokenizer.from_str(json.dumps(spec))
        except Exception as error:  # `tokenizers` raises plain Exception
            raise ValueError(one_line(error)) from error
        self._bpe.no_padding()
        self._bpe.no_truncation()
        self._bpe.encode_special_tokens = True  # special tokens in documents are ordinary text
        digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
        super().__init__(_pieces(spec, vocabulary.size), vocabulary.end, digest, vocabulary.start)
        plain, spaced = (sum(self.lengths[self._ids(text)]) - len(text) for text in ("a", " a"))
        if not 0 <= spaced <= plain <= 1:
            raise ValueError("it changes the text")
        self.prefix = " " * int(plain)
        self._unless_space = plain > spaced  # it adds the prefix only to text that does not begin with a space

    @classmethod
    def read(cls, path: Path) -> "Pretrained":
        """Read the tokenizer of a pretrained model, or the file that `write` wrote.

        Raises:
            UserError: there is none, or it is damaged or not supported.
        """
        vocabulary = vocabulary_of(path)
        try:
            return cls(vocabulary)
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(f"{path} is not a tokenizer that can be used: {one_line(error)}") from error

    def write(self, path: Path) -> None:
        """Write a `tokenizer.json`, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(self.vocabulary.spec, ensure_ascii=False))

    def encode(self, documents: Sequence[Document]) -> list[np.ndarray]:
        """See `Tokenizer`. Raises UserError for a document that the tokenizer changes."""
        cut = [[*self._cut(document.text)] for document in documents]
        found = joined(cut, partial(self._bpe.encode_batch_fast, add_special_tokens=False))
        for document, ids in zip(documents, found, strict=True):
            if self._spelt(ids) != self.prefix.encode() * bool(document.raw) + document.raw:
                raise UserError(
                    f"{document.name}: the pretrained model's tokenizer changes this text, for example by normalising "
                    "characters, so bits per byte would be wrong: remove the document, or use another tokenizer"
                )
        return found

    def fast(self) -> tokenizers.Tokenizer:
        same = tokenizers.Tokenizer.from_str(self._bpe.to_str())
        return started(same, str(same.id_to_token(self.start)), self.start)

    def _spelt(self, ids: np.ndarray) -> bytes:
        """The bytes of `ids`, joined in parts, because joining takes 100 bytes of memory per token."""
        parts = np.split(ids, range(PIECE, len(ids), PIECE))
        return b"".join(b"".join(map(self.pieces.__getitem__, part.tolist())) for part in parts)

    def _cut(self, text: str) -> Iterator[str]:
        """Pieces of about PIECE characters, with the same tokens as the whole text."""
        begin = 0
        while len(text) - begin > PIECE and (match := CUT.search(text, begin + PIECE)):
            yield self._spaced(text[begin : match.end()])
            begin = match.end() + len(self.prefix)  # the tokenizer adds the space again
        yield self._spaced(text[begin:])

    def _spaced(self, text: str) -> str:
        return f" {text}" if self._unless_space and text.startswith(" ") else text

    def _ids(self, text: str) -> list[int]:
        return self._bpe.encode(text, add_special_tokens=False).ids


def _pieces(spec: Mapping[str, Any], size: int) -> list[bytes]:
    """The bytes of each id; none for special tokens."""
    found = [b""] * size
    steps = json.dumps([spec.get("pre_tokenizer"), spec.get("decoder")])
    by_bytes = '"ByteLevel"' in steps
    for piece, i in spec["model"]["vocab"].items():
        byte = BYTE.fullmatch(piece)
        if byte and not by_bytes:
            found[i] = bytes([int(byte[1], 16)])
        elif by_bytes:
            found[i] = bytes(BYTES[letter] for letter in piece) if BYTES.keys() >= {*piece} else piece.encode()
        else:
            found[i] = piece.replace(SPACE, " ").encode()
    for token in spec.get("added_tokens", []):
        found[token["id"]] = b"" if token["special"] else token["content"].encode()
    return found
