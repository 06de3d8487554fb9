"""Hidden files, which are skipped where a folder or an archive is searched."""

from pathlib import PurePath


def hidden(path: PurePath) -> bool:
    """Whether a file or one of its folders is hidden. `path` is relative to the folder that is searched."""
    return any(part.startswith(".") for part in path.parts)
