"""Every number and switch among the options of an encoding changes its attention, and every option is checked."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from encodings_support import ENCODINGS, HEADS, KV_HEADS, WIDTH, attend, make_encoding, make_inputs

from bearings.core.options import Options, defaults_of, options_of
from bearings.encodings.base import Encoding
from bearings.encodings.options.base import ScalingOptions
from bearings.session.settings import declared

SHARED = defaults_of(ScalingOptions).keys()  # tested in test_length.py and test_encoding_laws.py
# Where the rule of `another` does not give an effect.
VALUES = {"hidden": 3, "kernel": 5, "probe_channels": 4, "trained_length": 1024}


def another(option: str, value: Any) -> Any:
    if option in VALUES:
        return VALUES[option]
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value / 2


def cases() -> Iterator[tuple[str, str, Any]]:
    for name, kind in ENCODINGS.items():
        if kind.input_encoding is Encoding.input_encoding and kind.shared_module is Encoding.shared_module:
            for option, value in defaults_of(declared(f"{kind.__module__}.{kind.__name__}", "encoding")).items():
                if option not in SHARED and (option in VALUES or isinstance(value, int | float)):
                    yield name, option, another(option, value)


@pytest.mark.parametrize(("name", "option", "value"), [pytest.param(*case, id="-".join(case[:2])) for case in cases()])
def test_every_option_has_an_effect(name, option, value):
    """With initial parameters, or with larger ones."""
    inputs = make_inputs(150)

    def initial(**given) -> Encoding:
        torch.manual_seed(0)
        return ENCODINGS[name](WIDTH, HEADS, KV_HEADS, 16, **given).double()

    def larger(**given) -> Encoding:
        return make_encoding(name, **given)

    with torch.no_grad():
        pairs = [[attend(make(**given), inputs) for given in ({}, {option: value})] for make in (initial, larger)]
    assert any(not torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_option_refuses_another_type(name):
    kind = ENCODINGS[name]
    given = declared(f"{kind.__module__}.{kind.__name__}", "encoding")
    for option in options_of(given) if issubclass(given, Options) else ():
        with pytest.raises(ValueError, match=f"{option}=<object"):
            kind(WIDTH, HEADS, KV_HEADS, 16, **{option: object()})
