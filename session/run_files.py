"""What a run's folder may hold, since runs are shared: regular files and folders, and no link that leads out of it."""

import os
import stat
from pathlib import Path

from ..core.errors import UserError

UNREAD = "wandb"  # W&B's folder, in which it links its logs


class StrangeFileError(UserError):
    """Something in a run's folder that reading must not follow or wait for."""


def refuse_strange_files(run: Path) -> None:
    """Check everything below `run`, which may itself be a link.

    Raises:
        StrangeFileError: a link leads out of the run or to nothing, or something is neither a file nor a folder, such
            as a FIFO, from which a read never returns.
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
            told = f"run={run}: {os.path.relpath(path, root)}"
            if stat.S_ISLNK(mode):
                if not Path(os.path.realpath(path)).is_relative_to(root):
                    raise StrangeFileError(
                        f"{told} is a link that leads out of the run: put the file itself in its place"
                    )
                if not os.path.exists(path):
                    raise StrangeFileError(f"{told} is a link to nothing: delete it")
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise StrangeFileError(f"{told} is neither a file nor a folder: delete it")
