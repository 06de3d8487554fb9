"""Text from files on a terminal: as it is, with neither rich's markup nor a terminal's commands read into it."""

import re
from typing import Any

from rich.console import Console
from rich.text import Text

# All control characters except tab and newline, marks that reverse the direction of writing, and bytes of file names
# that are no UTF-8 and cannot be printed.
UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""`text` with what a terminal would obey instead of showing it as escapes, such as `\x1b`."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class PlainConsole(Console):
    """A console that shows strings as they are, in tables and titles too; styles come with `Text` objects."""

    def __init__(self, **options: Any):
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)
