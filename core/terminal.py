"""Prints text from files literally: neither as rich markup nor as terminal control sequences."""

import re
from typing import Any

from rich.console import Console
from rich.text import Text

# Control characters except tab and newline, marks that change the direction of writing, and bytes of file names that
# are not UTF-8.
UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""`text` with control characters written as escapes, such as `\x1b`."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class PlainConsole(Console):
    """A console that prints strings literally, also in tables and titles. Use `Text` objects for styles.

    It breaks lines of tables only, so that paths and commands in other lines can be found and copied.
    """

    def __init__(self, **options: Any):
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        if all(isinstance(each, str | Text) for each in objects):
            options.setdefault("soft_wrap", True)
        super().print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)
