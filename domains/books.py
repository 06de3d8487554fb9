"""Whole texts for tests with long contexts, without the header and licence of Project Gutenberg."""

import re
from collections.abc import Sequence
from pathlib import Path

from ..core.errors import UserError
from . import documents

# Such as "*** START OF THE PROJECT GUTENBERG EBOOK EMMA ***"; older files have "***START OF THIS ...".
BEGIN = re.compile(rb"^\*\*\* ?START OF .*(?:\r?\n)", re.MULTILINE)
END = re.compile(rb"^\*\*\* ?END OF ", re.MULTILINE)


def plain_copies(paths: Sequence[Path], folder: Path, field: str = "text") -> list[Path]:
    """Write each text in files or folders as a .txt file to `folder`; a line of a .jsonl file is a text.

    Args:
        field: field or column that holds the text, in files that have them.

    Raises:
        UserError: a file is missing, empty, damaged or of another kind.
    """
    found = []
    for path in paths:
        for name, file in documents.find(path).items():
            for document in documents.read(name, file, documents.Fields(field), "file"):
                if text := without_licence(document.raw):
                    copy = folder / f"{len(found):06d}.txt"
                    copy.write_bytes(text)
                    found.append(copy)
    if not found:
        raise UserError(f"{paths[0]} contains only the header and licence of Project Gutenberg: give another file")
    return found


def without_licence(text: bytes) -> bytes:
    """The part between the lines `*** START OF` and `*** END OF` of Project Gutenberg; other texts are unchanged."""
    begin = BEGIN.search(text)
    end = END.search(text, begin.end() if begin else 0)
    return text[begin.end() if begin else 0 : end.start() if end else len(text)]
