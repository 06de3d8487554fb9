"""The commands in README and docs: those of fenced `sh` blocks and inline ones, and what each needs."""

import re
from pathlib import Path
from typing import NamedTuple

from conftest import REPOSITORY

# `<!-- needs: gpu -->` before a block, or on the line of an inline command, excuses it from being executed in a test.
REASONS = {"gpu", "download", "cluster", "minutes", "data", "the example"}
NEEDS = re.compile(r"<!-- needs: ([^>]*?) -->")
BLOCK = re.compile(r"^( *)```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:python main\.py|python -m bearings\.|make |bearings )[^`\n]*(?:\n[^`\n]+)?)`")


class Command(NamedTuple):
    place: str
    text: str
    needs: tuple[str, ...]


def commands() -> list[Command]:
    """All commands, in the order of files and lines."""
    files = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    return [command for file in files for command in commands_of(file)]


def commands_of(file: Path) -> list[Command]:
    text, found = file.read_text(encoding="utf-8"), []
    for block in BLOCK.finditer(text):
        before = text[: block.start()].rstrip("\n").rpartition("\n")[2]
        needs = needs_in(before if before.strip().startswith("<!--") else "")
        for line in re.sub(r"\\\n\s*", "", block[2]).splitlines():
            if command := re.sub(r"(^|\s)#.*", "", line).strip():
                found.append(Command(place(file, text, block.start()), command, needs))
    prose = re.sub(r"^ *```.*?^ *```", lambda block: "\n" * block[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    for inline in INLINE.finditer(prose):
        line = prose[prose.rfind("\n", 0, inline.start()) + 1 : (prose + "\n").index("\n", inline.end())]
        found.append(Command(place(file, prose, inline.start()), " ".join(inline[1].split()), needs_in(line)))
    return found


def needs_in(text: str) -> tuple[str, ...]:
    return tuple(reason.strip() for marker in NEEDS.findall(text) for reason in marker.split(","))


def place(file: Path, text: str, position: int) -> str:
    return f"{file.relative_to(REPOSITORY)}:{text.count(chr(10), 0, position) + 1}"
