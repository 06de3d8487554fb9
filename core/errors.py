"""The exceptions that reach a user as a single line."""

import difflib
import errno
from collections.abc import Iterable, Sequence

from .stopping import STATUS

MOST_FAULTS = 10  # damaged files that one message names


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


def several(faults: Sequence[str]) -> str:
    """The first MOST_FAULTS messages as one line, which ends in `...` when there are more."""
    return "; ".join([*faults[:MOST_FAULTS], *["..."] * (len(faults) > MOST_FAULTS)])


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
    }.get(error.errno)
    return advice and f"{error.filename or 'writing failed'}: {advice}"
