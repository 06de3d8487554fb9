"""Reads shared YAML files as plain data: no aliases, tags or interpolations, and nothing large or deeply nested."""

import math
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from .checked_files import read_text
from .errors import one_line, shortened

LARGEST = 1 << 20  # maximum file size in bytes
DEEPEST = 16  # maximum nesting of lists and mappings
LONGEST_KEY = 120
FORBIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path, largest: int = LARGEST) -> Any:
    """The contents of a YAML file: null, booleans, numbers, text, and lists and mappings of these.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a regular file, is larger than `largest` bytes, is not UTF-8 or YAML, or contains anything
            else. The message is one line.
    """
    try:
        text = read_text(path, largest)
        found = _loaded(text)
    except yaml.MarkedYAMLError as error:
        raise ValueError(fault_of(error)) from error
    except yaml.reader.ReaderError as error:
        raise ValueError(f"character {error.position + 1}: {error.reason}") from error
    except (yaml.YAMLError, ValueError, LookupError, ArithmeticError, TypeError, AttributeError) as error:
        raise ValueError(one_line(error)) from error
    _refuse_other_than_plain(found)
    return found


def fault_of(error: yaml.MarkedYAMLError) -> str:
    """Where text is not YAML and why, in one line."""
    # A key without a colon is noticed only in the line after it.
    before = error.context_mark if error.context == "while scanning a simple key" else None
    mark = before or error.problem_mark or error.context_mark
    place = f"line {mark.line + 1} is not YAML" if mark else "it is not YAML"
    return f"{place} ({error.problem or error.context})"


def as_yaml(tree: Any) -> str:
    """Plain data as YAML text for `read_yaml`."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _loaded(text: str) -> Any:
    """The value in YAML text; None if there is none."""
    events = _events(text)
    first = next(events, None)
    found = None if first is None else _value(first, events)
    if next(events, None) is not None:
        raise ValueError("it has more than one document")
    return found


def _events(text: str) -> Iterator[Any]:
    """The beginnings and ends of values in YAML text.

    Raises ValueError if loading could expand it, or create anything but plain data.
    """
    depth = 0
    for event in yaml.parse(text, _Loader):
        if getattr(event, "anchor", None) is not None:
            raise ValueError(f"line {event.start_mark.line + 1}: aliases and anchors are not allowed")
        if getattr(event, "tag", None) is not None:
            raise ValueError(f"line {event.start_mark.line + 1}: tags are not allowed")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"line {event.start_mark.line + 1}: nested more than {DEEPEST} levels deep")
        if isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            yield event


def _value(begin: Any, events: Iterator[Any]) -> Any:
    """The value that begins with an event; the others are taken from `events`."""
    if isinstance(begin, yaml.ScalarEvent):
        return _scalar(begin.value, begin.implicit[0])
    inside = []
    while not isinstance(event := next(events), yaml.CollectionEndEvent):
        inside.append(_value(event, events))
    if isinstance(begin, yaml.SequenceStartEvent):
        return inside
    return dict(zip(inside[::2], inside[1::2], strict=True))


@lru_cache(maxsize=10_000)  # configurations of runs have most scalars in common
def _scalar(text: str, unquoted: bool) -> Any:
    loader = _Loader("")
    tag = loader.resolve(yaml.ScalarNode, text, (unquoted, not unquoted))
    return loader.construct_object(yaml.ScalarNode(tag, text))


def _refuse_other_than_plain(value: Any, key: str = "") -> None:
    where = f"{key}: " if key else ""
    if isinstance(value, dict):
        for name, each in value.items():
            if not isinstance(name, str):
                raise ValueError(f"{where}the key {shortened(name)} must be text")
            if len(name) > LONGEST_KEY:
                raise ValueError(f"{where}a key has {len(name):,} characters; at most {LONGEST_KEY} are allowed")
            _refuse_other_than_plain(name, key)
            _refuse_other_than_plain(each, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for each in value:
            _refuse_other_than_plain(each, key)
    elif isinstance(value, str):
        if FORBIDDEN.search(value):
            raise ValueError(f"{where}it contains characters that cannot be printed")
        if "${" in value:
            raise ValueError(f"{where}{value[:60]}: interpolations are not allowed")
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"{where}a number has more than 64 bits")
    elif isinstance(value, float):
        if math.isnan(value):
            raise ValueError(f"{where}it is not a number")
    elif value is not None:
        raise ValueError(f"{where}{type(value).__name__}s are not allowed; put the value in quotes to make it text")
