"""Options are declared once: name, type, range and default as annotations, explanations in the docstring."""

import inspect
import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from .errors import several, shortened

REQUIRED = inspect.Parameter.empty  # default of an option without a default
LARGEST = 2**63  # integers must be smaller in absolute value, for PyTorch and for config.yaml
Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Layers = Annotated[int, Field(ge=1, le=1024)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Below1 = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=LARGEST)]
Folder = Annotated[str, Field(min_length=1)]
Place = Annotated[str, BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value)]

# Pydantic's names of range errors, and the violated bound in words.
OUTSIDE = {
    "greater_than_equal": "at least",
    "greater_than": "above",
    "less_than_equal": "at most",
    "less_than": "below",
}
WORDS = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "object": "mapping",
    "null": "null",
}
# Pydantic's names of types, and those in messages.
PLAIN = {"a valid boolean": "true or false", "a valid dictionary": "a mapping", "a valid string": "text"}
SECTION = re.compile(r"(?:Args|Attributes):\n((?:    .*\n|\n)+)")
ENTRY = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n     .*)*)", re.MULTILINE)


def as_path(place: str | os.PathLike) -> Path:
    """A path in which `~` is the user's home folder; `~NAME` stays as it is if there is no such user."""
    return Path(os.path.expanduser(place))


class Options:
    """Base class of frozen dataclasses that declare options and explain each under `Attributes:`.

    Raises:
        ValueError: a value has the wrong type or is out of range, or values contradict each other.
    """

    def __post_init__(self):
        values = vars(self)
        if problems := [text for name, each in options_of(type(self)).items() for text in each.problems(values[name])]:
            raise ValueError(several(problems))
        self.check_together()

    def check_together(self) -> None:
        """Raise ValueError if options contradict each other."""


class Option(NamedTuple):
    """An option of a component.

    `kind` is its annotation. `default` is `REQUIRED` if it has no default. `explanation` may be "".
    """

    name: str
    kind: Any
    default: Any
    explanation: str

    def problems(self, value: Any, prefix: str = "") -> list[str]:
        """The problems of a value, each in one line that begins with `prefix` and the name."""
        try:
            checked(value, self.kind)
            faults: list[Any] = []
        except ValidationError as error:
            faults = [*error.errors()]
        if not faults and isinstance(value, int) and abs(value) >= LARGEST:
            return [f"{prefix}{self.name}={value}: its absolute value must be below {LARGEST:,}"]
        infinite = isinstance(value, float) and not math.isfinite(value)
        if not (faults or infinite):
            return []
        if any(each["type"] not in OUTSIDE or each["loc"] for each in faults):
            return type_problem(f"{prefix}{self.name}", value, self.kind)
        schema = next((each for each in _schemas(self.kind) if _bounds(each)), {})
        if infinite:
            within = f"be a finite number {_bounds(schema)}".rstrip()
        elif schema["type"] == "integer":
            within = f"be {OUTSIDE[faults[0]['type']]} {next(iter(faults[0]['ctx'].values())):,}"
        else:
            value, within = float(value), f"be {_bounds(schema)}"
        return [f"{prefix}{self.name}={value}: it must {within}{self._or_null}"]

    @property
    def accepts(self) -> str:
        """The accepted values in words: `integer at least 1 or null`."""
        return " or ".join(map(_described, _schemas(self.kind)))

    @property
    def _or_null(self) -> str:
        """The meaning of null, from `null for ...` in the explanation."""
        if {"type": "null"} not in _schemas(self.kind):
            return ""
        return ", or " + next(iter(re.findall(r"null for [^.,;:(]*[^.,;:( ]", self.explanation)), "null")


@cache
def options_of(declared: type) -> dict[str, Option]:
    """The options of a dataclass or another class: the named parameters of its constructor."""
    hints = get_type_hints(declared.__init__, include_extras=True)
    explained = explanations(declared)
    return {
        name: Option(name, hints.get(name, Any), parameter.default, explained.get(name, ""))
        for name, parameter in inspect.signature(declared).parameters.items()
        if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    }


def defaults_of(declared: type) -> dict[str, Any]:
    """Defaults by name, with lists for tuples, as in YAML."""
    found = {name: option.default for name, option in options_of(declared).items()}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    return {name: value for name, value in plain.items() if value is not REQUIRED}


def explanations(declared: type) -> dict[str, str]:
    """Explanations by name, from `Args:` and `Attributes:` in docstrings, including those of base classes."""
    found: dict[str, str] = {}
    for each in inspect.getmro(declared)[::-1]:
        for section in SECTION.findall(f"{inspect.cleandoc(each.__doc__ or '')}\n"):
            for names, text in ENTRY.findall(section):
                found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


def checked(value: Any, kind: Any) -> Any:
    """`value` converted to a type, such as 1 to the float 1.0. Raises pydantic's ValidationError."""
    return _adapter(kind).validate_python(value)


@cache
def _adapter(kind: Any) -> TypeAdapter:
    return TypeAdapter(kind, config=ConfigDict(strict=True, arbitrary_types_allowed=True))


def type_problem(name: str, value: Any, kind: Any) -> list[str]:
    """The problem of a setting that should have a type, in one line; empty if there is none."""
    try:
        checked(value, kind)
    except ValidationError as error:
        shown, found = shortened(value), error.errors()
        if isinstance(value, list | tuple) and (inside := [each for each in found if _in_list(each)]):
            return [f"{name}={shown}: each value should be {_wanted(inside)}{_quoted(name, value, kind)}"]
        if any(each["type"] == "dict_type" for each in found):
            return [f"{name}={shown}: it should be a mapping, as {name}={{KEY:VALUE}}"]
        if any("[key]" in each["loc"] for each in found):
            return [f"{name}={shown}: each key should be text, as {name}={{KEY:VALUE}}"]
        if isinstance(value, Mapping) and found[0]["loc"] and _asks_for_list(found[0]):
            key = found[0]["loc"][0]
            return [f"{name}: {key}={shortened(value[key])} should be a list, as {name}={{{key}:[{value[key]}]}}"]
        if any(map(_asks_for_list, found)):
            if isinstance(value, str) and value.startswith("["):
                return [f"{name}={shown}: it should be a list, without quotes around it"]
            ways = {f"{name}=[{value}]": [value], f"\"{name}=['{value}']\"": [str(value)]}
            ways = ways if isinstance(value, str | int | float) and not isinstance(value, bool) else {}
            right = next((f", as {way}" for way, given in ways.items() if not type_problem("", given, kind)), "")
            return [f"{name}={shown}: it should be a list{right}"]
        if all(each["type"] in ("too_short", "too_long", "string_too_short") for each in found):
            limits = [each.get("ctx", {}) for each in found]
            count = max(limit.get("min_length") or limit["max_length"] for limit in limits)
            return [f"{name}={shown}: it should {'not be empty' if count == 1 else f'have {count} values'}"]
        return [f"{name}={shown}: it should be {_wanted(found)}{_quoted(name, value, kind)}"]
    return []


def _in_list(problem: Mapping) -> bool:
    """Whether a pydantic error is about an element of a list."""
    return any(isinstance(part, int) for part in problem["loc"])


def _wanted(problems: Sequence[Mapping]) -> str:
    """The types that pydantic errors ask for."""
    asked = dict.fromkeys(each["msg"].removeprefix("Input should be ") for each in problems)
    return " or ".join(PLAIN.get(each) or each for each in asked)


def _quoted(name: str, value: Any, kind: Any) -> str:
    """How to write a number, or a list with numbers, as the text that a type asks for; "" if that is not the remedy."""
    parts = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(part, str | int | float) and not isinstance(part, bool) for part in parts):
        return ""
    text = [*map(str, parts)] if isinstance(value, list | tuple) else str(value)
    if text == value or type_problem("", text, kind):
        return ""
    typed = not any(isinstance(part, float) for part in parts)  # 1e5 has become 100000.0
    return f', as "{name}={text!r}"' if typed else ": put it in quotes"


def _asks_for_list(problem: Mapping) -> bool:
    """Whether a pydantic error means that a list is required."""
    return problem["type"] in ("list_type", "sequence_str") or problem.get("ctx", {}).get("class") == "Sequence"


@cache
def _schemas(kind: Any) -> list[Mapping]:
    """JSON schemas of the alternatives of a type; none for a type without a JSON schema."""
    try:
        schema = TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True)).json_schema()
    except PydanticInvalidForJsonSchema:
        return []
    return schema.get("anyOf", [schema])


def _described(schema: Mapping) -> str:
    if "enum" in schema or "const" in schema:
        return " or ".join(map(str, schema.get("enum", [schema.get("const")])))
    if "anyOf" in schema:
        return " or ".join(map(_described, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"list of {_described(schema.get('items', {}))}"
    return f"{WORDS.get(schema.get('type', ''), 'anything')} {_bounds(schema)}".rstrip()


def _bounds(schema: Mapping) -> str:
    """The range in a JSON schema: `at least 1`, `in [0, 1)`, or "" if unbounded."""
    least, above, most, below = map(schema.get, ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"))
    low, high = above if least is None else least, below if most is None else most
    if low is not None and high is not None:
        end = "2^63" if high == 2**63 else high
        return f"in {'(' if least is None else '['}{low}, {end}{')' if most is None else ']'}"
    if low is not None:
        return f"{'above' if least is None else 'at least'} {low:,}"
    return "" if high is None else f"{'below' if most is None else 'at most'} {high:,}"
