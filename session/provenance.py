"""How a run was made: commit and local changes of the source, packages, Python version and time."""

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..core.hidden import hidden

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


def code_state(config: Mapping[str, Any]) -> dict[str, str | None]:
    """`git_state`; the sources of other packages whose classes `config` names count as local changes."""
    state, packages = git_state(), packages_of(config)
    if state["commit"] is None or not packages:
        return state
    digest = hashlib.sha256((state["dirty"] or "").encode())
    for name, path in sorted(source for package in packages for source in _sources(package).items()):
        with suppress(OSError):  # it may have been deleted meanwhile
            digest.update(os.fsencode(name) + b"\0" + path.read_bytes() + b"\0")
    return {**state, "dirty": digest.hexdigest()[:12]}


def packages_of(config: Mapping[str, Any]) -> set[str]:
    """The packages other than this one whose classes a configuration names."""
    return {target.partition(".")[0] for target in _targets(config)} - {"bearings"}


def _targets(value: Any) -> Iterator[str]:
    """The classes that a configuration, or a part of it, names."""
    if isinstance(value, Mapping):
        if isinstance(target := value.get("_target_"), str):
            yield target
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from _targets(each)


def _sources(package: str) -> dict[str, Path]:
    """The Python files of an installed package or module, by their names in it; nothing is imported."""
    if (spec := find_spec(package)) is None:
        return {}
    if not spec.submodule_search_locations:
        return {package: Path(spec.origin or "")}
    paths = {
        path.relative_to(folder): path
        for folder in spec.submodule_search_locations
        for path in Path(folder).rglob("*.py")
    }
    return {f"{package}/{name}": path for name, path in paths.items() if path.is_file() and not hidden(name)}


def session_facts(config: Mapping[str, Any]) -> dict[str, object]:
    """Source state, packages, Python version and start time of this process, for the manifest of a run of `config`."""
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "code": code_state(config),
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
