"""Options declared once: names, types, ranges and defaults by annotations, explanations in a docstring."""

import inspect
import math
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, get_type_hints

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from .errors import several, shortened

REQUIRED = inspect.Parameter.empty  # the default of what has none
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Place = Annotated[str, BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value)]

# What pydantic calls a number outside its range, and the bound that it should have kept.
OUTSIDE = {
    "greater_than_equal": "at least",
    "greater_than": "above",
    "less_than_equal": "at most",
    "less_than": "below",
}
WORDS = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
SECTION = re.compile(r"(?:Args|Attributes):\n((?:    .*\n|\n)+)")
ENTRY = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n     .*)*)", re.MULTILINE)


class Options:
    """Base of the frozen dataclasses that declare options, with a line for each under `Attributes:`.

    Raises:
        ValueError: a value of another type or outside its range, or values that do not fit together.
    """

    def __post_init__(self):
        values = vars(self)
        if problems := [text for name, each in options_of(type(self)).items() for text in each.problems(values[name])]:
            raise ValueError(several(problems))
        self.check_together()

    def check_together(self) -> None:
        """Raise ValueError where options do not fit together."""


class Option(NamedTuple):
    """One of the options of a component.

    `kind`: its annotation. `default`: `REQUIRED` where it has none. `explanation`: "" where it has none.
    """

    name: str
    kind: Any
    default: Any
    explanation: str

    def problems(self, value: Any, prefix: str = "") -> list[str]:
        """What is wrong with a value, in a line that begins with `prefix` and the name; empty if nothing is."""
        try:
            checked(value, self.kind)
            faults: list[Any] = []
        except ValidationError as error:
            faults = [*error.errors()]
        schema = next((each for each in _schemas(self.kind) if _bounds(each)), {})
        infinite = bool(schema) and isinstance(value, float) and not math.isfinite(value)
        if not (faults or infinite) or any(each["type"] not in OUTSIDE or each["loc"] for each in faults):
            return type_problem(f"{prefix}{self.name}", value, self.kind)
        if schema["type"] == "integer":
            within = f"be {OUTSIDE[faults[0]['type']]} {next(iter(faults[0]['ctx'].values())):,}"
        elif infinite:
            within = f"be a finite number {_bounds(schema)}"
        else:
            value, within = float(value), f"{'lie' if _bounds(schema).startswith('in ') else 'be'} {_bounds(schema)}"
        return [f"{prefix}{self.name}={value}: it must {within}{self._or_null}"]

    @property
    def accepts(self) -> str:
        """What it takes, in words: `integer at least 1 or null`."""
        return " or ".join(map(_described, _schemas(self.kind)))

    @property
    def _or_null(self) -> str:
        """What null stands for, by the explanation's `null for ...`."""
        if {"type": "null"} not in _schemas(self.kind):
            return ""
        return ", or " + next(iter(re.findall(r"null for [^.,;:(]*[^.,;:( ]", self.explanation)), "null")


@cache
def options_of(declared: type) -> dict[str, Option]:
    """The options of a dataclass, or of a class by the signature of its constructor: those of annotated parameters."""
    hints = get_type_hints(declared.__init__, include_extras=True)
    explained = explanations(declared)
    return {
        name: Option(name, hints[name], parameter.default, explained.get(name, ""))
        for name, parameter in inspect.signature(declared).parameters.items()
        if name in hints and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


def defaults_of(declared: type) -> dict[str, Any]:
    """Defaults by name, as YAML has them: lists for tuples."""
    found = {name: option.default for name, option in options_of(declared).items()}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    return {name: value for name, value in plain.items() if value is not REQUIRED}


def explanations(declared: type) -> dict[str, str]:
    """Explanations by name, from the sections `Args:` and `Attributes:` of docstrings, base classes' included."""
    found: dict[str, str] = {}
    for each in inspect.getmro(declared)[::-1]:
        for section in SECTION.findall(f"{inspect.cleandoc(each.__doc__ or '')}\n"):
            for names, text in ENTRY.findall(section):
                found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


def checked(value: Any, kind: Any) -> Any:
    """`value` as a type has it, 1.0 for 1 where that is float. Raises pydantic's ValidationError."""
    return _adapter(kind).validate_python(value)


@cache
def _adapter(kind: Any) -> TypeAdapter:
    return TypeAdapter(kind, config=ConfigDict(strict=True, arbitrary_types_allowed=True))


def type_problem(name: str, value: Any, kind: Any) -> list[str]:
    """What is wrong with a setting that should be of a type, in a line; empty where nothing is."""
    try:
        checked(value, kind)
    except ValidationError as error:
        shown = shortened(value)
        if any(map(_asks_for_list, error.errors())):
            ways = {f"{name}=[{value}]": [value], f"\"{name}=['{value}']\"": [str(value)]}
            ways = ways if isinstance(value, str | int | float) and not isinstance(value, bool) else {}
            right = next((f", as {way}" for way, given in ways.items() if not type_problem("", given, kind)), "")
            return [f"{name}={shown}: it should be a list{right}"]
        wanted = " or ".join(dict.fromkeys(each["msg"].removeprefix("Input should be ") for each in error.errors()))
        return [f"{name}={shown}: it should be {wanted}"]
    return []


def _asks_for_list(problem: Mapping) -> bool:
    """Whether pydantic says so, which has several ways to."""
    return problem["type"] in ("list_type", "sequence_str") or problem.get("ctx", {}).get("class") == "Sequence"


@cache
def _schemas(kind: Any) -> list[Mapping]:
    """JSON schemas of what a type consists of; none for a class that JSON does not have."""
    try:
        schema = TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True)).json_schema()
    except PydanticInvalidForJsonSchema:
        return []
    return schema.get("anyOf", [schema])


def _described(schema: Mapping) -> str:
    if "enum" in schema or "const" in schema:
        return " or ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        return f"list of {_described(schema.get('items', {}))}"
    return f"{WORDS.get(schema.get('type', ''), 'anything')} {_bounds(schema)}".rstrip()


def _bounds(schema: Mapping) -> str:
    """The range of a JSON schema: `at least 1`, `in [0, 1)`; "" for any number."""
    least, above, most, below = map(schema.get, ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"))
    low, high = above if least is None else least, below if most is None else most
    if low is not None and high is not None:
        return f"in {'(' if least is None else '['}{low}, {high}{')' if most is None else ']'}"
    if low is not None:
        return f"{'above' if least is None else 'at least'} {low:,}"
    return "" if high is None else f"{'below' if most is None else 'at most'} {high:,}"
