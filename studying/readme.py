"""The tables of the repository's README.md, each between two marker lines."""

from ..core.errors import UserError
from .catalogue import ROOT

README = ROOT / "README.md"


def with_table(readme: str, begin: str, end: str, table: str) -> str:
    """`readme` with `table` between the lines `begin` and `end`.

    Raises:
        UserError: a line is missing.
    """
    head, found_begin, rest = readme.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not (found_begin and found_end):
        raise UserError(f"{README}: the lines {begin.strip()} and {end.strip()}, which enclose a table, are missing")
    return head + begin + table + end + tail
