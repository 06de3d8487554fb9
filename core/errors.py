"""Exceptions that are shown to the user as a single line."""

import difflib
import errno
import json
import os
import re
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate

from .stopping import STATUS

MOST_FAULTS = 10  # maximum number of problems in one message
MOST_SHOWN = 200  # maximum length of a value in a message
LONGEST_LINE = 1500
FULL = (errno.ENOSPC, errno.EDQUOT)  # no room for a file
TEMPORARY = re.compile(r"(?<![^/])\.([^/]+)\.\w{8}(\.tmp)?(?![^/])")  # in a path, in place of NAME: .NAME.1a2b3c4d.tmp


class UserError(Exception):
    """An error that the user can fix. Its message names what was given, what is allowed, and what to do."""

    exit_status = 2
    prefix = "error: "


class InterruptedRunError(UserError):
    """Training was asked to stop. The last checkpoint contains every finished step."""

    exit_status = STATUS
    prefix = ""


class HeldError(UserError):
    """Another process is training the run."""


class DivergedError(UserError):
    """A loss, gradient or score is not finite.

    Attributes:
        step: the step at which training diverged; None if the updates of training are not the cause.
    """

    def __init__(self, message: str, step: int | None = None):
        super().__init__(message)
        self.step = step


def nearest(given: str, allowed: Iterable[str]) -> str:
    """`did you mean X? ` for the closest allowed name, regardless of case; an empty string if none is close."""
    named = {name.lower(): name for name in allowed}
    match = difflib.get_close_matches(given.lower(), named, n=1, cutoff=0.5)
    return f"did you mean {named[match[0]]}? " if match else ""


def suggestions(given: str, allowed: Collection[str]) -> str:
    """The end of a message about a name that is not `allowed`: the nearest one, and all of them."""
    return f"{nearest(given, allowed)}allowed: {', '.join(allowed)}"


def nearest_key(given: str, allowed: Sequence[str]) -> str:
    """Like `nearest`, but compares only the part of a setting's key after the group: `steps` means `trainer.steps`."""
    group, _, name = given.rpartition(".")
    here = [key for key in allowed if key.startswith(f"{group}.")]
    for keys, cutoff in (([*here, *allowed], 0.9), (here or allowed, 0.6)):
        by_name = {key.rpartition(".")[2]: key for key in reversed(keys)}
        if match := difflib.get_close_matches(name.lower(), by_name, n=1, cutoff=cutoff):
            return f"did you mean {by_name[match[0]]}? "
    return ""


def one_line(error: BaseException, most: int = MOST_SHOWN) -> str:
    """The message of an error as one line of at most `most` characters; the name of its type if it is empty."""
    return (" ".join(str(error).split()) or type(error).__name__)[:most]


def shortened(value: object) -> str:
    """A value for a message, cut after MOST_SHOWN characters. `null`, `true` and `false` are written as in YAML."""
    shown = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}…"


def several(faults: Sequence[str]) -> str:
    """The first messages as one line of about LONGEST_LINE characters; it ends in `...` if some are left out."""
    shown = [fault for fault, end in zip(faults, accumulate(map(len, faults)), strict=True) if end <= LONGEST_LINE]
    shown = shown[:MOST_FAULTS] or [*faults[:1]]
    return "; ".join([*shown, *["..."] * (len(faults) > len(shown))])


def explain_os_error(error: OSError) -> str | None:
    """One line for an error with a file, such as a full disk or a forbidden path; None for other errors."""
    elsewhere = "choose another folder with the option that names it (such as runs, stores, study or task.out)"
    advice = {
        errno.ENOSPC: f"the disk is full: free some space, or {elsewhere}",
        errno.EDQUOT: f"the disk quota is used up: free some space, or {elsewhere}",
        errno.ENOENT: f"no such file or directory: if it was deleted, rerun the same command; otherwise {elsewhere}",
        errno.EACCES: f"permission denied: change the permissions, or {elsewhere}",
        errno.EROFS: f"the file system is read-only: {elsewhere}",
        errno.ENOTDIR: f"a part of the path is a file: {elsewhere}",
        errno.EEXIST: f"a file or a broken link is where a folder should be: {elsewhere}",
        errno.ELOOP: "a symbolic link is where a file should be: delete the link",
        errno.EISDIR: f"a folder is where a file should be: {elsewhere}",
    }.get(error.errno or 0)
    if advice is None and error.filename and error.strerror:
        advice = f"{error.strerror[0].lower()}{error.strerror[1:]}: {elsewhere}"
    copied = error.errno in FULL and error.filename2  # the copy is what does not fit, not the original
    place = TEMPORARY.sub(r"\1", os.fsdecode(copied or error.filename or "writing failed"))
    return advice and f"{place}: {advice}"
