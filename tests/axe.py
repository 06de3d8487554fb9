"""Accessibility checks of a page that is open in Chromium, by axe-core from npm."""

import os
from pathlib import Path

import pytest

SERIOUS = ("serious", "critical")


def script() -> Path:
    """axe-core's `axe.min.js`: $AXE, or in node_modules here or in a parent folder. Skips the test if there is none."""
    named = os.environ.get("AXE")
    folders = [*Path(__file__).parents, Path.cwd()]
    places = [Path(named)] if named else [folder / "node_modules/axe-core/axe.min.js" for folder in folders]
    for place in places:
        if place.is_file():
            return place
    pytest.skip("axe-core is not installed: run `npm install axe-core`, or set AXE to the path of axe.min.js")


def violations(page) -> list[str]:
    """The serious and critical violations on `page`, each as `rule: selector (help text)`. A Playwright page."""
    page.evaluate(script().read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{rule['id']}: {' '.join(map(str, node['target']))} ({rule['help']})"
        for rule in found
        if rule["impact"] in SERIOUS
        for node in rule["nodes"]
    ]
