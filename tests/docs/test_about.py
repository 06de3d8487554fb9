"""Every encoding of this repository describes itself for its page."""

import re

import pytest
from encodings_support import ENCODINGS

from bearings.core.about import MECHANISMS
from bearings.encodings.pattern import PATTERNS
from bearings.session.settings import mechanism_of


@pytest.mark.parametrize("name", sorted(ENCODINGS))
def test_is_documented(name):
    about = vars(ENCODINGS[name]).get("about")
    assert about is not None, f"encodings/{name}.py: {ENCODINGS[name].__name__} needs `about = About(...)` for its page"
    assert about.mechanism in MECHANISMS, f"mechanism={about.mechanism}: allowed: {', '.join(MECHANISMS)}"
    for field in ("name", "summary", "equation", "terms", "cache"):
        assert getattr(about, field), f"about.{field} is empty"
    assert re.fullmatch(r"\d{4}\.\d{4,5}", about.paper.arxiv), f"arxiv={about.paper.arxiv}: a number such as 2104.09864"
    assert mechanism_of(name) == about.mechanism  # `--help` reads the source


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_are_documented(name):
    assert mechanism_of(name) == PATTERNS[name].mechanism == "layers"
    assert name == "pattern" or PATTERNS[name].paper.url.startswith("https://")
