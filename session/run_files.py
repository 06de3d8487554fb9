"""Checks the contents of a run's folder, as runs are shared: only regular files, folders, and links inside it."""

import os
import stat
from pathlib import Path

from ..core.errors import UserError

UNREAD = "wandb"  # the folder of W&B contains links to its logs and is never read


class StrangeFileError(UserError):
    """An entry of a run's folder that must not be read, such as a link that leads outside or a FIFO."""


def refuse_strange_files(run: Path) -> None:
    """Check all files below `run`, which may itself be a link.

    Raises:
        StrangeFileError: a link leads out of the run or is broken, or an entry is neither a file nor a folder. Reading
            a FIFO, for example, would never return.
    """
    root = os.path.realpath(run)
    for folder, folders, files in os.walk(root):
        if folder == root and UNREAD in folders:
            folders.remove(UNREAD)
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:  # another process's temporary file
                continue
            entry = f"run={run}: {os.path.relpath(path, root)}"
            if stat.S_ISLNK(mode):
                if not Path(os.path.realpath(path)).is_relative_to(root):
                    raise StrangeFileError(
                        f"{entry} is a link that leads out of the run: replace it with the file itself"
                    )
                if not os.path.exists(path):
                    raise StrangeFileError(f"{entry} is a broken link: delete it")
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise StrangeFileError(f"{entry} is neither a file nor a folder: delete it")
