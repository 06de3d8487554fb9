"""The shipped configurations: each composes and builds, means what it says, and is named as it is typed."""

import re

import pytest
import torch
from conftest import REPOSITORY
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from bearings.tasks.configuration import CONFIGS, as_typed, choices_of, resolve
from bearings.tasks.house import House

settings = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.recursive(settings, st.lists))
def test_a_setting_is_told_as_it_is_typed(value):
    (override,) = OverridesParser.create().parse_overrides([f"key={as_typed(value)}"])
    assert override.value() == value
    assert type(override.value()) is type(value)


def compositions():
    for group in sorted(path.name for path in CONFIGS.iterdir() if path.is_dir()):
        for name in choices_of(group):
            yield pytest.param(f"{group}={name}", id=f"{group}={name}")
    for experiment in choices_of("experiment"):
        for encoding in choices_of("encoding"):
            yield pytest.param(f"experiment={experiment} encoding={encoding}", id=f"{experiment} with {encoding}")


@pytest.mark.parametrize("arguments", list(compositions()))
def test_every_shipped_yaml_composes_and_builds(arguments, tmp_path):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        plain = resolve(compose("config", overrides=arguments.split()))
    with torch.device("meta"):
        House.of(plain).transformer(vocabulary=5)


def leaves(tree, prefix=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@pytest.mark.parametrize("experiment", choices_of("experiment"))
def test_an_experiment_s_values_are_the_run_s(experiment):
    """Nothing in config.yaml comes after it."""
    asked = OmegaConf.to_container(OmegaConf.load(CONFIGS / "experiment" / f"{experiment}.yaml"))
    asked.pop("defaults", None)
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        composed = dict(leaves(resolve(compose("config", overrides=[f"experiment={experiment}"]))))
    for key, value in leaves(asked):
        assert composed[key] == value, key


def test_a_whole_number_where_a_float_is_declared_is_that_float():
    """1 and 1.0 are one setting, and so one run."""
    whole = "optimizer.clip=1 optimizer.betas=[0,1] encoding=rope encoding.base=10000 trainer.steps=3"
    plain = whole.replace("clip=1", "clip=1.0").replace("[0,1]", "[0.0,1.0]").replace("10000", "10000.0")
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        one, other = (resolve(compose("config", overrides=given.split())) for given in (whole, plain))
    assert repr(one) == repr(other)
    assert repr(one["trainer"]["steps"]) == "3"


def test_the_readme_names_no_key_that_does_not_exist():
    commands = re.findall(r"python main\.py ([^`\n#]*)", (REPOSITORY / "README.md").read_text())
    assert len(commands) > 8
    for command in commands:
        if "dice" in command or "hydra/launcher" in command:
            continue  # the README's own toy, which test_extending.py adds; what an extra brings
        words = [word for word in command.split() if "=" in word and not word.startswith("run=")]
        choices = [re.sub(r",.*", "", word) for word in words]
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            compose("config", overrides=choices)
