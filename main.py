"""python main.py [task=...] [domain=...] [encoding=...] [key=value ...]; --help explains more."""

import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent


def installed_elsewhere() -> str | None:
    """Where Python finds the package bearings, if that is not this folder; None if it is."""
    found = find_spec("bearings")
    if found is None or found.origin is None:
        return "bearings is not installed"
    place = Path(found.origin).resolve().parent
    return None if place == HERE else f"bearings is installed from {place}, not from this folder"


if __name__ == "__main__":
    if wrong := installed_elsewhere():
        remedy = f"activate the environment of this folder, or run pip install --editable {HERE}"
        print(f"error: {sys.executable}: {wrong}: {remedy}", file=sys.stderr)
        sys.exit(2)
    from bearings.__main__ import main

    main()
