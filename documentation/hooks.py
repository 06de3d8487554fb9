"""Hooks of mkdocs, which loads this file by its path."""

from typing import Any


def on_nav(nav: Any, config: Any, files: Any) -> Any:
    """Leave out the files that only list the navigation of their folder."""
    for file in [file for file in files if file.src_uri.endswith("SUMMARY.md")]:
        files.remove(file)
    return nav
