"""The one exception that reaches a user as a single line."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the person at the keyboard can mend. Its text says what was given, what is allowed and what to do."""


def nearest(given: str, allowed: Iterable[str]) -> str:
    """Return `did you mean X? ` for the closest allowed name, or an empty string when none is close."""
    match = difflib.get_close_matches(given, list(allowed), n=1, cutoff=0.5)
    return f"did you mean {match[0]}? " if match else ""
