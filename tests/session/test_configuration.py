"""The shipped configurations: each composes and builds, means what it says, and is named as it is typed."""

import re

import pytest
from conftest import REPOSITORY, composed, with_encoding
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf, open_dict

from bearings.core.errors import UserError
from bearings.core.plain_yaml import as_yaml
from bearings.lightning_modules.outline import outlined
from bearings.session.configuration import asked, resolve
from bearings.session.identity import identity
from bearings.session.overrides import as_setting, as_typed, choices_of
from bearings.session.run_config import written
from bearings.session.run_directory import RunDirectory, leaves
from bearings.session.session import Session
from bearings.session.settings import CONFIGS, file_of

settings = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.recursive(settings, st.lists))
def test_a_setting_is_shown_as_typed(value):
    (override,) = OverridesParser.create().parse_overrides([f"key={as_typed(value)}"])
    assert override.value() == value
    assert type(override.value()) is type(value)


@given(st.text(st.characters(exclude_categories=["C"])))
@example("läufe/x y")
@example("it's (a) {b}, c=d")
@example(r"it\'s")
@example("a, b\\")
@example("null")
@example("12")
@example("runs/jsb/pope/small-79bd4074-s0")
def test_a_setting_with_text_is_read_as_it_was(value):
    (override,) = OverridesParser.create().parse_overrides([as_setting("key", value)])
    assert override.value() == value


def composed_by(*overrides):
    """What Hydra makes of settings of `python main.py`, and how."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("config", overrides=[*overrides], return_hydra_config=True)
    choices = config.hydra.runtime.choices
    with open_dict(config):
        del config["hydra"]
    return config, overrides, choices


def asked_by(*overrides):
    """The configuration that settings of `python main.py` ask for."""
    return asked(*composed_by(*overrides))[0]


def sets_of(experiment):
    return OmegaConf.to_container(file_of("experiment", experiment))


def compositions():
    for group in sorted(path.name for path in CONFIGS.iterdir() if path.is_dir() and path.name != "encoding"):
        for name in choices_of(group):
            yield pytest.param(f"{group}={name}", id=f"{group}={name}")
    for experiment in choices_of("experiment"):
        for encoding in sets_of(experiment).get("encodings", ()):
            yield pytest.param(f"experiment={experiment} encoding={encoding}", id=f"{experiment} with {encoding}")


@pytest.mark.parametrize("arguments", list(compositions()))
def test_every_shipped_yaml_composes_and_builds(arguments, tmp_path, monkeypatch):
    (tmp_path / "my-midi").mkdir()  # the folder of experiment=midi
    monkeypatch.chdir(tmp_path)
    config, _, choices = composed_by(*arguments.split())
    with outlined():
        Session.of(resolve(config, choices)).transformer(vocabulary=5)


@pytest.mark.parametrize("encoding", choices_of("encoding"))
def test_every_encoding_builds(encoding):
    with outlined():
        Session.of(with_encoding(composed() | {"content": {}}, encoding)).transformer(vocabulary=5)


@pytest.mark.parametrize("experiment", choices_of("experiment"))
def test_every_encoding_fits_every_experiment(experiment):
    sets = sets_of(experiment)
    assert "encoding" not in sets, "it would set options that other encodings lack: use `encodings`"
    config = composed(f"experiment={experiment}") | {"content": {}}
    config["model"]["layers"] = min(config["model"]["layers"], 4)
    for encoding in choices_of("encoding"):
        Session.of(with_encoding(config, encoding, **sets.get("encodings", {}).get(encoding, {})))


@pytest.mark.parametrize("experiment", choices_of("experiment"))
def test_an_experiment_s_values_are_the_run_s(experiment):
    """Nothing in config.yaml comes after it."""
    sets = sets_of(experiment)
    sets.pop("defaults", None)
    options = sets.pop("encodings", {})
    found = dict(leaves(asked_by(f"experiment={experiment}")))
    for key, value in leaves(sets):
        assert found[key] == value, key
    for encoding in options:
        found = asked_by(f"experiment={experiment}", f"encoding={encoding}")
        assert options[encoding].items() <= found["encoding"].items()


@pytest.mark.parametrize("experiment", [name for name in choices_of("experiment") if name.startswith("pope_")])
def test_a_preset_of_the_pope_paper_starts_delta_as_the_paper_does(experiment):
    paper = "zero" if "openwebtext" in experiment else "uniform"
    assert asked_by(f"experiment={experiment}", "encoding=pope")["encoding"]["delta_init"] == paper


def test_an_experiment_s_options_of_an_encoding_are_for_that_one_and_give_way_to_the_command_line():
    experiment = "experiment=pope_openwebtext_124m"
    found = asked_by(experiment)
    assert "encodings" not in found
    assert found["encoding"] == asked_by("encoding.delta_init=zero")["encoding"]
    for setting in ("encoding.delta_init", "++encoding.delta_init", "encodings.pope.delta_init"):
        assert asked_by(experiment, f"{setting}=uniform")["encoding"]["delta_init"] == "uniform"
    assert asked_by(experiment, "encoding=rope")["encoding"] == asked_by("encoding=rope")["encoding"]
    set_here = asked_by("+encodings.rope.base=500", "encoding=rope")["encoding"]["base"]
    assert (set_here, type(set_here)) == (500.0, float)
    assert RunDirectory.of(Session.of(asked_by("+encodings.rope.base=500")).config).path == (
        RunDirectory.of(Session.of(asked_by()).config).path
    )


@pytest.mark.parametrize(
    ("setting", "message"),
    {
        "+encodings.pop.base=1.0": "encodings.pop: unknown encoding; did you mean pope? allowed: ",
        "+encodings.rope.bse=1.0": "encodings.rope.bse: unknown key; did you mean encodings.rope.base?",
        "+encodings.rope.width=8": "encodings.rope.width: unknown key; ",
        "+encodings.rope.base=high": "encodings.rope.base='high': it should be a valid number",
        "+encodings.rope=3": "encodings={'rope': 3}: it should map encodings to options",
        "+encodings=3": "encodings=3: it should map encodings to options",
    }.items(),
)
def test_invalid_options_of_any_encoding_are_refused(setting, message):
    with pytest.raises(UserError) as raised:
        asked_by("encoding=path", setting)
    assert str(raised.value).startswith(message)


def test_a_whole_number_where_a_float_is_declared_is_that_float():
    """1 and 1.0 are one setting, and so one run."""
    whole = "optimizer.clip=1 optimizer.betas=[0,0] encoding=rope encoding.base=10000 trainer.steps=3"
    plain = whole.replace("clip=1", "clip=1.0").replace("[0,0]", "[0.0,0.0]").replace("10000", "10000.0")
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        one, other = (resolve(compose("config", overrides=given.split())) for given in (whole, plain))
    assert repr(one) == repr(other)
    assert repr(one["trainer"]["steps"]) == "3"


def test_readme_commands_use_existing_keys():
    commands = re.findall(r"python main\.py ([^`\n#]*)", (REPOSITORY / "README.md").read_text())
    assert len(commands) > 8
    for command in commands:
        if "dice" in command or "hydra/launcher" in command:
            continue  # the README's own toy, which test_extending.py adds; what an extra brings
        words = [word for word in command.split() if "=" in word and not word.startswith("run=")]
        choices = [re.sub(r",.*", "", word) for word in words]
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            compose("config", overrides=choices)


def test_runs_keep_their_names_and_kept_configurations_are_read(tmp_path):
    """Entries that configurations of earlier versions hold decide nothing."""
    config = {**asked_by(), "content": {}}
    assert RunDirectory.of(config).path.as_posix() == "runs/jsb/pope/small-25df8107-s0"
    kept = written(config)
    kept["encoding"]["_partial_"] = True
    kept["optimizer"]["_target_"] = "bearings.lightning_modules.language_model.LanguageModel"
    (tmp_path / "config.yaml").write_text(as_yaml(kept))
    assert RunDirectory.open(tmp_path).config == config
    assert identity(kept) == identity(written(config))
