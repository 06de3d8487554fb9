"""The exceptions that reach a user as a single line."""

import difflib
import errno
from collections.abc import Iterable, Sequence
from itertools import accumulate

from .stopping import STATUS

MOST_FAULTS = 10  # that one message names
MOST_SHOWN = 200  # characters of a value in a message
LONGEST_LINE = 1500


class UserError(Exception):
    """Something the person at the keyboard can mend. Its text says what was given, what is allowed and what to do."""

    exit_status = 2
    prefix = "error: "


class InterruptedRunError(UserError):
    """Training was asked to stop; the last checkpoint holds every finished step."""

    exit_status = STATUS
    prefix = ""


class HeldError(UserError):
    """Another process trains the run."""


class DivergedError(UserError):
    """Training came to a loss, gradient or score that is not finite."""


def nearest(given: str, allowed: Iterable[str]) -> str:
    """Return `did you mean X? ` for the closest allowed name, or an empty string when none is close."""
    match = difflib.get_close_matches(given, list(allowed), n=1, cutoff=0.5)
    return f"did you mean {match[0]}? " if match else ""


def one_line(error: BaseException, most: int = MOST_SHOWN) -> str:
    """The text of an error as one line of at most `most` characters; the name of its type if it has none."""
    return (" ".join(str(error).split()) or type(error).__name__)[:most]


def shortened(value: object) -> str:
    """A value as it stands in a message, at most MOST_SHOWN characters of it."""
    shown = repr(value)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}…"


def several(faults: Sequence[str]) -> str:
    """The first messages as one line of about LONGEST_LINE characters at most, which ends in `...` if more follow."""
    shown = [fault for fault, end in zip(faults, accumulate(map(len, faults)), strict=True) if end <= LONGEST_LINE]
    shown = shown[:MOST_FAULTS] or [*faults[:1]]
    return "; ".join([*shown, *["..."] * (len(faults) > len(shown))])


def explain_os_error(error: OSError) -> str | None:
    """One line for a full, read-only or forbidden place; None for anything else."""
    elsewhere = "choose other places with runs=DIRECTORY stores=DIRECTORY, or task.out= where a task has it"
    advice = {
        errno.ENOSPC: f"the disk is full: make room, or {elsewhere}",
        errno.EDQUOT: f"the quota is used up: make room, or {elsewhere}",
        errno.EACCES: f"it may not be written or read: change its permissions, or {elsewhere}",
        errno.EROFS: f"the file system is read-only: {elsewhere}",
        errno.ENOTDIR: f"a part of the path is a file: {elsewhere}",
        errno.EEXIST: f"a file, or a link to nowhere, is where a folder should be: {elsewhere}",
        errno.ELOOP: "a symbolic link is where a file should be: delete it",
        errno.EISDIR: f"a folder is where a file should be: {elsewhere}",
    }.get(error.errno or 0)
    return advice and f"{error.filename or 'writing failed'}: {advice}"
