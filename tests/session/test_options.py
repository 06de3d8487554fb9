"""Laws of options: one default each, an explanation, somebody who reads it, and a check before anything slow."""

import inspect
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, get_args

import pytest
from command_support import run_command  # noqa: F401
from conftest import REPOSITORY
from omegaconf import OmegaConf
from pydantic import Field

from bearings.core.options import (
    Count,
    NonNegative,
    Option,
    Options,
    Place,
    Seed,
    Share,
    defaults_of,
    explanations,
    options_of,
)
from bearings.encodings.options import PoPEOptions, RoPEOptions, TAPEOptions
from bearings.encodings.options.base import Scaling, WindowOptions
from bearings.session import settings
from bearings.session.overrides import choices_of
from bearings.session.settings import CHOSEN, CONFIGS, OWN, Settings, declared
from bearings.session.trust import KINDS, located, trusting

FILES = [f"{group}/{name}" for group in (*CHOSEN, "model") for name in choices_of(group)]
SHIPPED = {
    "settings": Settings,
    **OWN,
    **{f"{group}/{name}": None for group in CHOSEN for name in choices_of(group)},
}


def read(file: str) -> dict:
    return OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{file}.yaml"))


def block_of(part: str) -> dict:
    """What a file of a group sets in its group, also where it sets more."""
    found = read(part)
    return found.get(part.partition("/")[0], found)


def options_in(part: str) -> type[Options]:
    return SHIPPED[part] or declared(block_of(part)["_target_"], part.partition("/")[0])


def usual(group: str, name: str | None = None) -> dict:
    """What a group holds by the typed options and, if `name` is given, its file."""
    block = block_of(f"{group}/{name}") if name else {}
    return {**defaults_of(OWN.get(group) or declared(block["_target_"], group)), **block}


def repeated(given: dict, known: dict) -> list[str]:
    return [key for key, value in given.items() if key in known and known[key] == value]


@pytest.mark.parametrize("file", FILES)
def test_a_file_of_a_group_repeats_no_default(file):
    group = file.partition("/")[0]
    block = block_of(file)
    by = OWN.get(group) or declared(block["_target_"], group)
    assert repeated(block, defaults_of(by)) == []


@pytest.mark.parametrize("experiment", choices_of("experiment"))
def test_an_experiment_repeats_no_default(experiment):
    sets = read(f"experiment/{experiment}")
    chosen = {"domain": "jsb", "model": "small"}
    for each in sets.pop("defaults", []):
        chosen |= {group.removeprefix("override /"): name for group, name in each.items()}
    for encoding, options in sets.pop("encodings", {}).items():
        assert repeated(options, usual("encoding", encoding)) == []
    for group, block in sets.items():
        assert repeated(block, usual(group, chosen.get(group))) == [], group


def test_the_primary_file_holds_no_option():
    assert not {*KINDS, *options_of(Settings)} & read("config").keys()


@pytest.mark.parametrize("part", SHIPPED)
def test_every_option_has_an_explanation_and_no_explanation_lacks_an_option(part):
    by = options_in(part)
    assert {name for name, option in options_of(by).items() if not option.explanation} == set()
    assert explanations(by).keys() <= options_of(by).keys() or not issubclass(by, Options)
    assert (by.__doc__ or "").partition("\n")[0]


@pytest.mark.parametrize("options", [PoPEOptions, RoPEOptions, TAPEOptions])
def test_explanations_of_scaling_name_only_what_the_encoding_allows(options):
    found = options_of(options)
    allowed = get_args(found["scaling"].kind)
    explained = " ".join(found[name].explanation for name in ("scaling_factor", "scaling_length"))
    assert {form for form in get_args(Scaling) if form in re.findall(r"\w+", explained)} <= {*allowed}


@pytest.mark.parametrize("part", [part for part in SHIPPED if part != "settings"])
def test_every_option_is_read(part):
    """By the class that the options belong to, or a base of it; `model.pretrained` by session/pretrained.py."""
    by, group = options_in(part), part.partition("/")[0]
    if not issubclass(by, Options):
        pytest.skip("its constructor takes the options by name")
    if part in OWN:
        files = (REPOSITORY / by.__module__.split(".")[1]).rglob("*.py")
    else:
        kinds = located(block_of(part)["_target_"], group).__mro__
        files = {Path(inspect.getfile(kind)) for kind in kinds if kind.__module__.startswith("bearings.")}
    source = "".join(file.read_text() for file in files)
    names = {field.name for field in fields(by)} - {"pretrained"}
    assert names <= set(re.findall(r"\b(?:given|options\)?|\w+Options)\.(\w+)", source))


@dataclass(frozen=True)
class Toy(Options):
    """Toys.

    Attributes:
        count, least: how many;
            null for none.
        kind: of toy.
    """

    count: Count | None = 1
    least: Count = 1
    share: Annotated[float, Field(ge=0, lt=1)] = 0.5
    kind: Literal["ball", "kite"] = "ball"

    def check_together(self) -> None:
        if self.count is not None and self.count < self.least:
            raise ValueError(f"count={self.count}: it must be at least least={self.least}")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 0}, "count=0: it must be at least 1, or null for none"),
        ({"least": 0}, "least=0: it must be at least 1"),
        ({"share": 1.0}, "share=1.0: it must be in [0, 1)"),
        ({"share": float("nan")}, "share=nan: it must be a finite number in [0, 1)"),
        ({"kind": "doll"}, "kind='doll': it should be 'ball' or 'kite'"),
        ({"count": "x", "share": 2}, "count='x': it should be a valid integer; share=2.0: it must be in [0, 1)"),
        ({"least": 2}, "count=1: it must be at least least=2"),
    ],
)
def test_options_are_checked_all_at_once(given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Toy(**given)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (float, float("nan"), "loyalty=nan: it must be a finite number"),
        (float | None, float("-inf"), "loyalty=-inf: it must be a finite number, or null"),
        (int, -(2**63), f"loyalty={-(2**63)}: its absolute value must be below 9,223,372,036,854,775,808"),
        (list[Count], [0], "loyalty=[0]: each value should be greater than or equal to 1"),
        (str, True, "loyalty=true: it should be text"),
    ],
)
def test_a_wrong_value_has_one_problem(kind, value, message):
    assert Option("loyalty", kind, 0, "").problems(value) == [message]


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [(Count, [1], [0]), (NonNegative, [0], [-0.1]), (Share, [0, 1], [-0.1, 1.1]), (Place, ["a", Path("a")], [1])],
)
def test_ranges_include_their_ends(kind, right, wrong):
    option = Option("loyalty", kind, 0, "")
    assert [*map(option.problems, right)] == [[]] * len(right)
    assert all(map(option.problems, wrong))


def test_options_say_what_they_accept():
    options = options_of(Toy)
    assert [option.accepts for option in options.values()] == [
        "integer at least 1 or null",
        "integer at least 1",
        "number in [0, 1)",
        "ball or kite",
    ]
    assert options["least"].explanation == "how many; null for none."
    for kind, accepted in {Literal["ball"]: "ball", Seed: "integer in [0, 2^63)", inspect.Signature: ""}.items():
        assert Option("kind", kind, None, "").accepts == accepted


def test_options_are_inherited_with_the_constructor(tmp_path, monkeypatch):
    (tmp_path / "heirs.py").write_text(
        "from bearings.encodings.rope import RoPE\n"
        "class Heir(RoPE): pass\n"
        "class Own(RoPE):\n"
        "    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, speed: float = 0.1, of=(1,)):\n"
        "        pass\n"
        "class Bare(RoPE):\n"
        "    def __init__(self, width, heads, kv_heads, head_dim, speed=0.1, *rest, **others): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with trusting("heirs"):
        assert declared("heirs.Heir", "encoding") is RoPEOptions
        assert defaults_of(declared("heirs.Own", "encoding")) == {"speed": 0.1, "of": [1]}
        assert [*options_of(declared("heirs.Bare", "encoding"))] == ["width", "heads", "kv_heads", "head_dim", "speed"]
        assert defaults_of(declared("heirs.Bare", "encoding")) == {"speed": 0.1}
        assert options_of(declared("heirs.Bare", "encoding"))["speed"].accepts == "anything"
        assert defaults_of(declared("conftest.Letters", "domain")) == {}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class Mine(RoPE): ...", defaults_of(RoPEOptions)),
        ("class Mine(DistanceBias): ...", defaults_of(WindowOptions)),
        ("class Base(RoPE): ...\nclass Mine(Base): ...", defaults_of(RoPEOptions)),
        ("class Mine(RoPE):\n def __init__(self, width, *, speed=0.1, rate, of=(1,)): ...", {"speed": 0.1, "of": [1]}),
        ("class Mine(Elsewhere): ...", {}),
    ],
)
def test_defaults_of_classes_without_declared_options_are_read_from_their_source(
    tmp_path, monkeypatch, source, expected
):
    for name in ("base.py", "families/distance.py"):
        (tmp_path / "encodings" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "encodings" / name).write_text((REPOSITORY / "encodings" / name).read_text())
    names = "from bearings.encodings.rope import RoPE\nfrom .families.distance import DistanceBias\n"
    (tmp_path / "encodings" / "mine.py").write_text(f"{names}from elsewhere import Elsewhere\n{source}\n")
    monkeypatch.setattr("bearings.session.settings.CONFIGS", tmp_path / "configs")
    assert settings._defaults("bearings.encodings.mine.Mine", "encoding") == expected


def test_all_mistakes_are_one_line(run):
    wrong = ["model.heads=0", "encoding.base=-1", "trainer.steps=abc", "task.samples=-3", "domain.transpose=9"]
    status, _, err = run(*wrong)
    assert status == 2
    assert err.count("\n") == 1
    for message in (
        "domain.transpose=9: it must be at most 6",
        "encoding.base=-1.0: it must be above 0",
        "task.samples=-3: it must be at least 0",
        "model.heads=0: it must be at least 1",
        "trainer.steps='abc': it should be a valid integer",
    ):
        assert message in err


def test_help_explains_the_options_of_what_is_chosen(run):
    status, out, _ = run("encoding=pope", "task=check", "trainer.steps=7", "--help")
    assert status in (0, None)
    for text in (
        "encoding.delta_init=uniform (zero or uniform)\n      ",
        "trainer.steps=7 (integer at least 0; default 2000)\n      number of optimiser steps; 0 evaluates",
        "model.width=96 (integer in [1, 262144]; default 256)\n      hidden size C.",
    ):
        assert text in out
    assert max(map(len, out.splitlines())) <= 160
    _, out, _ = run("encoding=fope", "task=tune", "data.length=64", "--help")
    assert "encoding.trained_length=64 (integer at least 1; default 512)\n" in out
    assert "task.grid=null (mapping or null)\n" in out
    _, out, _ = run("task=report", "--help")
    assert "task.margin=null (number above 0 or null)\n      difference in nats per token up to which encodings" in out
    assert "\n  runs=runs (text)\n" in out
    assert "\n  seed=" not in out  # the task does not read it
    assert "\nmodel" not in out
    status, _, err = run("-m", "encoding=rope,pope", "--help")
    line = "encoding=rope,pope: --help explains the options of one run: give one value"
    assert (status, err) == (2, f"error: {line}\n")
    _, out, _ = run("encoding=pattern", "--help")
    assert 'encoding.layers=["rope", "nope"] (list of text or mapping)\n' in out
