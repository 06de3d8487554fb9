"""Names and settings of models and comparisons as text, for sentences, titles and file names."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from ..session.overrides import as_typed

SHA256 = re.compile(r"[0-9a-f]{64}")


def file_name(text: str) -> str:
    """`text` as part of a file name, shortened to 60 characters."""
    name = re.sub(r"[^\w=.+]+", "-", text)
    return name if len(name) <= 60 else f"{name[:53]}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:6]}"


def parenthesised(label: str, pair: str = "()") -> str:
    """A model's label for use in a sentence, with its settings in parentheses or another pair of brackets."""
    encoding, _, settings = label.partition(", ")
    return f"{encoding} {pair[0]}{settings}{pair[1]}" if settings else encoding


def without_digests(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts except digests of data."""
    return {key: value for key, value in facts.items() if "sha256" not in key}


def settings_of(facts: Mapping[str, Any]) -> list[str]:
    """Each fact as `NAME=VALUE`, once: settings of a domain that determine its tokens are facts of its content too."""
    return list(dict.fromkeys(f"{key.split('.')[-1]}={short(value)}" for key, value in facts.items()))


def short(value: Any) -> str:
    """A value as short text, in the form a setting is typed."""
    text = as_typed(value)
    return f"{text[:12]}…" if SHA256.fullmatch(text) else text if len(text) < 60 else f"{text[:60]}…"
