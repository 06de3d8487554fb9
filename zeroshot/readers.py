"""Reads the records of benchmark files: JSON lines, Parquet, lines of text, and members of zip archives."""

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..core.checked_files import DAMAGE, why
from ..core.errors import UserError
from ..domains.unpacking import contents
from .prompts import Prompt
from .questions import Question

LIMIT = 1 << 28  # maximum bytes of a file or a member of an archive, decompressed
Reader = Callable[[Path], Iterator[Question]]


def json_lines(prompt: Callable[[dict], Prompt]) -> Reader:
    """A reader of one record per line, in a file that may be compressed."""

    def read(path: Path) -> Iterator[Question]:
        yield from _each(path, _json(contents(path, LIMIT).decode()), prompt)

    return read


def zipped(member: str, prompt: Callable[[dict], Prompt], labels: str | None = None) -> Reader:
    """A reader of JSON lines in a zip archive; `labels` is a member with a label for each line."""

    def read(path: Path) -> Iterator[Question]:
        with zipfile.ZipFile(path) as archive:
            records = [*_json(_member(archive, member))]
            if labels is not None:
                given = _member(archive, labels).split()
                records = [{**record, "label": label} for record, label in zip(records, given, strict=True)]
        yield from _each(path, records, prompt)

    return read


def zipped_folder(folder: str, prompt: Callable[[dict], Prompt]) -> Reader:
    """A reader of all .jsonl members in a folder of a zip archive; each is a group named after its file."""

    def read(path: Path) -> Iterator[Question]:
        with zipfile.ZipFile(path) as archive:
            names = [each for each in archive.namelist() if each.startswith(folder) and each.endswith(".jsonl")]
            for name in sorted(names):
                group = name.removeprefix(folder).removesuffix(".jsonl")
                yield from _each(path, _json(_member(archive, name)), prompt, group)

    return read


def parquet(prompt: Callable[[dict], Prompt]) -> Reader:
    """A reader of the rows of a Parquet file."""

    def read(path: Path) -> Iterator[Question]:
        import pyarrow.parquet  # slow to import

        if path.stat().st_size > LIMIT:
            raise ValueError(f"it has more than {LIMIT:,} bytes")
        yield from _each(path, pyarrow.parquet.read_table(path).to_pylist(), prompt)

    return read


def groups_of_lines(prompt: Callable[[list[str]], Prompt], count: int | None) -> Reader:
    """A reader of records of `count` lines each; None: records end with an empty line."""

    def read(path: Path) -> Iterator[Question]:
        text = contents(path, LIMIT).decode().replace("\r\n", "\n").strip("\n")
        if count is None:
            records = [block.split("\n") for block in text.split("\n\n")]
        else:
            lines = text.split("\n")
            records = [lines[begin : begin + count] for begin in range(0, len(lines), count)]
        yield from _each(path, records, prompt)

    return read


def _member(archive: zipfile.ZipFile, name: str) -> str:
    info = archive.getinfo(name)
    if info.file_size > LIMIT:
        raise ValueError(f"{name} has more than {LIMIT:,} bytes")
    return archive.read(info).decode()


def _json(text: str) -> Iterator[Any]:
    return (json.loads(line) for line in text.split("\n") if line.strip())


def _each(path: Path, records: Iterable[Any], prompt: Callable[[Any], Prompt], group: str = "") -> Iterator[Question]:
    """Questions of the records. Raises UserError for a record of another form."""
    done = 0
    try:
        for record in records:
            pairs, gold, lengths = prompt(record)
            json.dumps(pairs, ensure_ascii=False).encode()  # raises for lone surrogates
            if type(gold) is not int or not 0 <= gold < len(pairs):
                raise ValueError(f"its right answer is {str(gold)[:20]}")
            if not all(continuation for _, continuation in pairs):
                raise ValueError("it has an empty continuation")
            yield Question(str(done), group, pairs, gold, lengths)
            done += 1
    except DAMAGE as error:
        place = f"{path}{f', {group}' if group else ''}, record {done + 1}"
        raise UserError(f"{place}, is damaged or in another format ({why(error)}): get the file again") from error
