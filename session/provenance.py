"""How a run was made: commit and local changes of the source, packages, Python version and time."""

import hashlib
import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "triton", "lightning", "hydra-core", "omegaconf", "numpy", "music21", "pretty_midi")
SOURCE = ("*.py", "configs", ":(exclude)tests")  # git pathspecs: only these files decide what a run does


def git_state(root: Path = Path(__file__).parent.parent) -> dict[str, str | None]:
    """Commit of the source tree and a hash of the local changes; None outside a checkout."""

    def git(*arguments: str) -> bytes | None:
        try:
            command = ["git", "-C", root, *arguments]  # the git of the user's PATH, in this project's own folder
            return subprocess.run(command, capture_output=True, check=True).stdout  # noqa: S603 (fixed arguments)
        except (OSError, subprocess.CalledProcessError):
            return None

    # A copy without git history may be inside another project's checkout, whose commit is unrelated.
    if (git("rev-parse", "--show-prefix") or b"?").strip():
        return {"commit": None, "dirty": None}
    commit = git("rev-parse", "HEAD")
    changes = [git("diff", "--no-ext-diff", "HEAD", "--", *SOURCE) or b""]
    untracked = git("ls-files", "-z", "--others", "--exclude-standard", "--", *SOURCE) or b""
    for name in sorted(filter(None, untracked.split(b"\0"))):
        path = root / os.fsdecode(name)
        with suppress(OSError):  # it may have been deleted meanwhile
            if path.is_file():
                changes += [name, path.read_bytes()]
    return {
        "commit": commit.decode().strip() if commit else None,
        "dirty": hashlib.sha256(b"\0".join(changes)).hexdigest()[:12] if any(changes) else None,
    }


def session_facts() -> dict[str, object]:
    """Source state, packages, Python version and start time of this process, for a run's manifest."""
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "code": git_state(),
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
