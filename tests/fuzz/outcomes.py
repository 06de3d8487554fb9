"""What may become of a mutant."""

import math
from collections.abc import Mapping

Figures = Mapping[str, object]
LONGEST = 2000  # characters of a message


class Listed(str):
    """In the place of figures: why a report does not show them."""


class FaultError(Exception):
    """An outcome that may not be; its text begins with a kind and a colon."""


def check_line(line: str) -> None:
    """Raise FaultError for a message that is not one short line."""
    if "\n" in line or not line.strip():
        raise FaultError(f"message: not one line: {line[:200]!r}")
    if len(line) > LONGEST:
        raise FaultError(f"message: {len(line)} characters: {line[:200]!r}")


def judge(original: Mapping, found: Mapping, pinned: bool) -> tuple[str, str]:
    """`same`, `changed` or `error`, and what differs or why a report does not show it."""
    listed = {place: line for place, line in found.items() if isinstance(line, Listed) and place not in original}
    for key in [*original, *(key for key in found if key not in original and key not in listed)]:
        before, now = original.get(key), found.get(key)
        both = isinstance(before, float) and isinstance(now, float)
        close = math.isclose(before, now, rel_tol=1e-5, abs_tol=1e-9) if both else before == now
        gone = key not in found and (key == "baselines" or any(key.startswith(place) for place in listed))
        if not close and not gone:
            return ("silent" if pinned else "changed"), f"{key}: {str(before)[:60]} became {str(now)[:60]}"
    return ("error", next(iter(listed.values()))) if listed else ("same", "")
