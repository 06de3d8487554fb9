"""What a file from elsewhere names is never imported or run: a line says what was refused and how to trust it."""

import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from command_support import run_command  # noqa: F401
from report_support import make_run, report_task, rows_of  # noqa: F401
from test_configuration import asked_by
from trust_support import importable_modules, sound_run  # noqa: F401

from bearings.core.errors import UserError
from bearings.core.options import defaults_of
from bearings.encodings.options import NoPEOptions
from bearings.encodings.pope import PoPE
from bearings.reporting.reading import read_study
from bearings.session.identity import identity
from bearings.session.run_config import written
from bearings.session.run_directory import RunDirectory
from bearings.session.trust import GoneError, located, trusting
from bearings.tasks.export import load_exported

HOSTILE = ["os.system", "subprocess.Popen", "torch.hub.load", "evil.Evil", "bearings.session.configuration.os.system"]


def hostile_run(sound, path, target, group="encoding"):
    """A copy of a run whose `group` names `target`."""
    shutil.copytree(sound, path)
    config = yaml.safe_load((path / "config.yaml").read_text())
    config[group]["_target_"] = target
    config |= {"trust": ["evil", "os", "subprocess", "torch"]}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize("group", ["domain", "encoding", "model", "trainer", "task"])
@pytest.mark.parametrize(
    "target", [*HOSTILE, "bearings.session.cli.run", "evil", "evil..Evil", "evil.Evil; x", 3, None, []]
)
def test_a_name_outside_the_project_is_refused_before_it_is_imported(group, target):
    with pytest.raises(UserError, match=rf"^{group}\._target_=") as raised:
        located(target, group)
    assert not isinstance(raised.value, GoneError)
    if target in HOSTILE:
        assert f"trust={target.split('.')[0]}" in str(raised.value)


@pytest.mark.parametrize(
    ("group", "target"),
    [
        ("encoding", "bearings.encodings.base.Encoding"),
        ("encoding", "bearings.encodings.path.Encoding"),
        ("encoding", "bearings.encodings.path.torch"),
        ("domain", "bearings.domains.fetch.fetch"),
        ("domain", "bearings.domains.base.Domain"),
        ("domain", "bearings.domains.music.Domain"),
        ("task", "bearings.tasks.export.shutil"),
        ("task", "bearings.tasks.keep.keep_run"),
        ("task", "bearings.tasks.report.Section"),
    ],
)
def test_what_is_of_another_kind_or_place_is_refused(group, target):
    with pytest.raises(UserError, match=f"it is not a class for {group} defined in that module"):
        located(target, group)


def test_a_package_is_trusted_where_the_user_says_so_and_nowhere_else():
    with trusting("mine"):
        assert located("mine.Mine", "encoding").__name__ == "Mine"
        with pytest.raises(UserError, match="it is not a class for encoding"):
            located("mine.function", "encoding")
        with pytest.raises(UserError, match="it is not a class for domain"):
            located("mine.Mine", "domain")
        with pytest.raises(UserError, match=r"it does not define build, decode, .*, which the domain needs"):
            located("mine.Half", "domain")
        with pytest.raises(UserError, match="refused"):
            located("mined.Mine", "encoding")
    with pytest.raises(UserError, match=r"encoding\._target_=mine\.Mine: refused, .*set trust=mine"):
        located("mine.Mine", "encoding")
    with pytest.raises(UserError, match="trust=3: it should be the name of a package"), trusting(3):
        pass


def test_a_report_leaves_hostile_runs_out_and_says_why(tmp_path, sound):
    shutil.copytree(sound, tmp_path / "runs" / "sound")
    named = {f"{group}-{target}": (group, target) for group in ("encoding", "domain") for target in HOSTILE}
    for name, (group, target) in named.items():
        hostile_run(sound, tmp_path / "runs" / name, target, group)
    study = read_study([tmp_path / "runs"])
    assert [each.path.name for each in study.runs] == ["sound"]
    assert len(study.troubles) == len(named)
    for trouble in study.troubles:
        group, target = named[Path(trouble.place).name]
        assert trouble.why.startswith(f"config.yaml: {group}._target_={target}: refused")
        assert f"set trust={target.split('.')[0]}" in trouble.why


@pytest.mark.parametrize("task", ["evaluate", "generate", "export", "score", "extrapolate", "mechanisms", "keep"])
def test_every_task_that_reads_a_run_refuses_a_hostile_one(run, tmp_path, sound, task):
    path = hostile_run(sound, tmp_path / "hostile", "evil.Evil")
    given = [f"task.files=[{tmp_path}/modules/mine.py]"] if task == "score" else []
    status, _, err = run(f"task={task}", f"run={path}", *given)
    assert status == 2
    assert err.count("\n") == 1
    assert f"error: run={path}: config.yaml: encoding._target_=evil.Evil: refused" in err
    assert "trust=evil" in err


def test_the_command_line_refuses_and_trusts(run, tmp_path):
    status, _, err = run("task=check", "encoding._target_=mine.Mine", "seed=-1")
    assert (status, err.count("\n")) == (2, 1)
    assert re.match(r"error: seed=-1: .*; encoding\._target_=mine\.Mine: .* set trust=mine", err)
    _, out, _ = run("encoding._target_=mine.Mine", "trust=mine", "--help")
    assert "encoding._target_=mine.Mine: " in out
    assert "encoding=pope: " not in out
    place = tmp_path / "conf" / "experiment"
    place.mkdir(parents=True)
    (place / "shared.yaml").write_text("# @package _global_\ntrust: [evil]\nencoding: {_target_: evil.Evil}\n")
    status, _, err = run("--config-dir", str(tmp_path / "conf"), "experiment=shared", "task=check")
    assert (status, err.count("\n")) == (2, 1)
    assert "trust=['evil']: only the command line may set it" in err


def test_a_file_of_a_configuration_that_is_no_yaml_is_named(run, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "own.yaml").write_text("seed: 1\ntrainer: {steps: ???}\n")
    status, _, err = run("--config-dir", str(tmp_path), "experiment=own", "task=check")
    assert (status, err.count("\n")) == (2, 1)
    assert f"{tmp_path / 'experiment' / 'own.yaml'} line 2 is not YAML (" in err


def test_trust_is_no_part_of_a_run(tmp_path):
    with trusting("mine"):
        dropped = [f"~encoding.{name}" for name, value in defaults_of(NoPEOptions).items() if value is not None]
        own = ["encoding=nope", *dropped, "encoding._target_=mine.Mine", "+encoding.speed=1"]
        config = {**asked_by(*own, "trust=mine"), "content": {}}
        assert config == {**asked_by(*own), "content": {}}
        assert "trust" not in config
        path = tmp_path / "run"
        path.mkdir()
        (path / "config.yaml").write_text(yaml.safe_dump(written(config)))
        assert RunDirectory.open(path).config == config
    assert "_target_: mine.Mine" in (path / "config.yaml").read_text()
    with pytest.raises(UserError, match=r"encoding\._target_=mine\.Mine: refused"):
        RunDirectory.open(path)


def test_a_class_of_another_package_can_use_the_time_of_the_medium(run, modules):
    text = "from bearings.encodings.rope import RoPE\nclass Turning(RoPE):\n    pass\n"
    (modules / "turning.py").write_text(text)
    Path("mine").mkdir()
    for part in ("train", "valid", "test"):
        Path("mine", f"{part}.txt").write_text(f"{part} text " * 30)
    own = ("encoding=rope", "encoding._target_=turning.Turning", "trust=turning", "encoding.clock=medium")
    text = ("domain=text", "domain.path=mine", "domain.tokenizer=bytes", "domain.split=files")
    assert run(*own, *text, "task=check", "experiment=debug")[0] == 0


def test_a_class_with_another_constructor_gives_one_line(run):
    status, _, err = run("encoding._target_=mine.NoArguments", "trust=mine", "domain=flip_flop", "task=check")
    assert (status, err.count("\n")) == (2, 1)
    needed = "its constructor must accept width, heads, kv_heads, head_dim"
    assert err.startswith(f"error: encoding._target_=mine.NoArguments: {needed} (got an unexpected keyword argument ")
    assert run("encoding._target_=mine.Needy", "trust=mine", "task=check")[2] == "error: encoding: missing rate\n"


def test_a_class_of_another_package_brings_its_own_options(run):
    own = ("encoding=pope", "encoding._target_=mine.Mine", "trust=mine", "domain=flip_flop", "task=check")
    assert run(*own, "encoding.speed=0.3")[0] == 0
    status, _, err = run(*own, "encoding.sped=0.3")
    assert (status, err) == (
        2,
        "error: encoding.sped: unknown key; did you mean encoding.speed? allowed: encoding.window, encoding.speed, "
        "encoding.warp\n",
    )


@pytest.mark.parametrize(
    ("values", "first", "what"),
    [
        ("v.roll(-1, 1)", 30, "tokens from 32 on"),  # the next token, in each of two layers
        # all tokens, through a gate that starts at zero
        ("v + (v - v.mean(1, True)) * self.gate", 0, "tokens from 32 on"),
        ("v * v.shape[1]", 0, "the number of later tokens"),
    ],
)
def test_a_class_of_another_package_that_uses_later_tokens_is_refused(run, modules, values, first, what):
    (modules / "leaking.py").write_text(
        "import torch\n"
        "from bearings.encodings.base import Encoding\n"
        "class Leaking(Encoding):\n"
        "    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int):\n"
        "        super().__init__(width, heads, kv_heads, head_dim)\n"
        "        self.gate = torch.nn.Parameter(torch.zeros(()))\n"
        "    def forward(self, x, q, k, v, context, state=None):\n"
        f"        return super().forward(x, q, k, {values}, context, state)\n"
    )
    given = ("encoding._target_=leaking.Leaking", "trust=leaking", "experiment=debug", "data.length=96")
    for task in ("check", "train"):
        status, _, err = run(*given, f"task={task}")
        line = f"encoding Leaking: the output at token {first} depends on {what}, so losses would be"
        assert (status, err) == (2, f"error: {line} meaningless: use only earlier tokens\n")


def test_a_class_of_another_package_whose_outputs_are_not_finite_is_refused(run, modules):
    (modules / "dividing.py").write_text(
        "from bearings.encodings.nope import NoPE\n"
        "class Dividing(NoPE):\n"
        "    def encode_query(self, q, positions):\n"
        "        return q / positions[:, None, None]\n"
    )
    own = ("encoding=nope", "encoding._target_=dividing.Dividing", "trust=dividing")
    status, _, err = run(*own, "domain=flip_flop", "task=check")
    line = "encoding Dividing: the output at token 0 is infinite or not a number, so losses would be too"
    assert (status, err) == (2, f"error: {line}: look for a division by zero or an overflow\n")


def test_a_run_is_named_after_the_class_that_replaces_that_of_a_file():
    with trusting("mine"):
        config = {**asked_by("encoding._target_=mine.Mine"), "content": {}}
    assert config["names"] == {"domain": "jsb", "encoding": "Mine", "model": "small"}
    assert RunDirectory.of(config).path.parent == Path("runs/jsb/Mine")
    same = asked_by("encoding=rope", "encoding._target_=bearings.encodings.rope.RoPE")
    assert same["names"]["encoding"] == "rope"


def test_a_run_is_named_after_a_file_in_another_folder(run, tmp_path):
    (tmp_path / "conf" / "encoding").mkdir(parents=True)
    (tmp_path / "conf" / "encoding" / "own.yaml").write_text("_target_: bearings.encodings.rope.RoPE\n")
    _, out, _ = run("--config-dir", str(tmp_path / "conf"), "encoding=own", "task=check", "domain=flip_flop")
    assert "runs/flip_flop/own/small-" in out


def test_help_lists_the_files_in_another_folder(run, tmp_path):
    for group in ("encoding", "experiment"):
        (tmp_path / "conf" / group).mkdir(parents=True)
        (tmp_path / "conf" / group / "own.yaml").write_text("# @package _global_\n")
    status, out, _ = run("--config-dir=conf", "--help")
    assert status in (0, None)
    assert "\n    other: own\n" in out
    assert "wikitext2, own\n" in out


def test_a_file_in_another_folder_that_hydra_would_ignore_is_refused(run, tmp_path):
    (tmp_path / "conf" / "encoding").mkdir(parents=True)
    (tmp_path / "conf" / "encoding" / "rope.yaml").write_text("_target_: bearings.encodings.nope.NoPE\n")
    status, _, err = run("--config-dir=conf", "encoding=rope", "domain=flip_flop", "task=check")
    line = "conf/encoding/rope.yaml: encoding=rope is the file in configs/encoding: give yours another name"
    assert (status, err) == (2, f"error: {line}\n")


def test_a_file_in_another_folder_needs_no_options(run, tmp_path):
    (tmp_path / "conf" / "encoding").mkdir(parents=True)
    (tmp_path / "conf" / "encoding" / "own.yaml").write_text("_target_: mine.Mine\n")
    given = ("--config-dir", str(tmp_path / "conf"), "encoding=own", "trust=mine", "domain=flip_flop", "task=check")
    names = set()
    for options in ((), ("encoding.speed=0.1",), ("encoding.speed=0.3",)):
        status, out, err = run(*given, *options)
        assert (status, err) == (0, "")
        names |= set(re.findall(r"small-[0-9a-f]{8}", out))
    assert len(names) == 2
    status, _, err = run(*given, "encoding.sped=0.3")
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith("error: encoding.sped: unknown key; did you mean encoding.speed? allowed: ")


@pytest.mark.parametrize("text", ["base: 3", "# @package _global_\nencoding: 3", "# @package _global_\nseed: 3"])
def test_a_file_in_another_folder_without_a_class_is_one_line(run, tmp_path, text):
    for group in ("encoding", "task"):
        (tmp_path / "conf" / group).mkdir(parents=True)
        (tmp_path / "conf" / group / "own.yaml").write_text(text.replace("encoding", group))
        status, _, err = run("--config-dir=conf", f"{group}=own")
        assert re.fullmatch(rf"error: {group}=.*: it should contain settings and a _target_\n", err)
        assert (status, run("--config-dir=conf", f"{group}=own", "--help")[0]) == (2, 0)


def test_an_experiment_in_another_folder_is_checked_as_one_in_configs(run, tmp_path):
    for group in ("encoding", "experiment"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    (tmp_path / "conf" / "encoding" / "own.yaml").write_text("_target_: mine.Mine\n")
    for name, text in {
        "wide": "model: {width: 96}\nencodings: {own: {speed: 0.3}}",
        "heir": "defaults: [wide]",
        "typo": "encodings: {owm: {speed: 0.3}}",
        "flat": "model: 3\ntask: check",
    }.items():
        (tmp_path / "conf" / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n{text}\n")
    (tmp_path / "conf" / "experiment" / "bare.yaml").write_text("model: {width: 96}\n")
    command = ("--config-dir=conf", "domain=flip_flop", "task=check")
    for name in ("heir", "wide"):
        given = (*command, f"experiment={name}")
        status, _, err = run(*given, "model=base")
        line = (
            f"model=base: experiment={name} sets model.width itself: leave out one of the two, or override single keys"
        )
        assert (status, err) == (2, f"error: {line}\n")
    assert run(*given, "encoding=rope")[::2] == (0, "")
    names = set()
    for options in ((), ("encoding.speed=0.3",), ("encoding.speed=0.1",)):
        status, out, err = run(*given, "encoding=own", "trust=mine", *options)
        assert (status, err) == (0, "")
        names |= set(re.findall(r"small-[0-9a-f]{8}", out))
    assert len(names) == 2
    for name, line in {
        "typo": "encodings.owm: unknown encoding; did you mean own? allowed: ",
        "flat": "task='check': it should contain settings and a _target_; model=3: it should contain settings and a ",
        "bare": "experiment: unknown key; start the file of the experiment with the line # @package _global_\n",
    }.items():
        status, _, err = run(*command, f"experiment={name}", "encoding=rope")
        assert status == 2
        assert err.startswith(f"error: {line}")


def test_a_run_records_the_defaults_of_a_class_of_another_package():
    with trusting("mine"):
        plain, same, other = (
            asked_by("encoding._target_=mine.Mine", *given)["encoding"]
            for given in ((), ("++encoding.speed=0.1",), ("++encoding.speed=0.2", "+encodings.pope.window=8"))
        )
    assert plain == same == {"window": None, "speed": 0.1, "_target_": "mine.Mine"}
    assert other == plain | {"speed": 0.2, "window": 8}


def test_a_run_s_file_names_no_class_where_its_names_do():
    config = {**asked_by("encoding=pope"), "content": {}}
    kept = written(config)
    assert "_target_" not in str({key: value for key, value in kept.items() if key != "task"})
    other = written(config | {"encoding": {**config["encoding"], "_target_": "bearings.encodings.rope.RoPE"}})
    assert other["encoding"]["_target_"] == "bearings.encodings.rope.RoPE"


def exported(folder, **changes):
    """A folder as task=export writes it, without the weights."""
    config = asked_by("encoding=pope", "domain=flip_flop")
    config = written(config | {"content": {}})
    kept = {key: config[key] for key in ("names", "domain", "model", "encoding", "content", "seed")}
    for key, change in {"vocabulary": 12, "store": "5" * 64, **changes}.items():
        kept[key] = {**kept[key], **change} if isinstance(change, dict) else change
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(kept))
    return folder


@pytest.mark.parametrize("group", ["encoding", "domain", "model"])
@pytest.mark.parametrize("target", HOSTILE)
def test_an_export_that_names_other_code_is_refused(tmp_path, group, target):
    folder = exported(tmp_path / "export", **{group: {"_target_": target}}, trust=[target.split(".")[0]])
    with pytest.raises(UserError, match=rf"{group}\._target_={re.escape(target)}: refused.* trust="):
        load_exported(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"width": "abc"}}, "model.width='abc': it should be a valid integer"),
        ({"model": {"_args_": [1]}}, "model._args_: unknown key"),
        ({"encoding": {"dleta_init": "zero"}}, "encoding.dleta_init: unknown key; did you mean encoding.delta_init?"),
        ({"names": {"encoding": "../../x"}}, "names.encoding='../../x': it should be the name"),
        (
            {"names": {"encoding": "gone"}},
            "configs/encoding/gone.yaml, which names its class, does not exist: put it back",
        ),
        ({"vocabulary": "12"}, "vocabulary='12': it should be a valid integer"),
        ({"domain": {"seed": "${oc.env:HOME}"}}, "domain.seed: .*interpolations are not allowed"),
    ],
)
def test_an_export_passes_the_checks_of_a_command_line(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        load_exported(exported(tmp_path / "export", **changes))


def test_an_export_of_a_trusted_package_is_read(tmp_path):
    own = {"_target_": "mine.Mine", "speed": 0.1}
    folder = exported(tmp_path / "export")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"encoding": own}))
    with pytest.raises(UserError, match=r"encoding\._target_=mine\.Mine: refused"):
        load_exported(folder)
    with pytest.raises(UserError, match="contains no readable model"):  # its weights are not there
        load_exported(folder, trust=["mine"])
    assert "mine" in sys.modules


def test_identities_read_from_files_are_those_that_made_them(tmp_path):
    for encoding in ("rope", "pope"):
        config = {**asked_by(f"encoding={encoding}"), "content": {"a": [1, 2.5, None, "x"]}}
        path = tmp_path / encoding
        path.mkdir()
        (path / "config.yaml").write_text(yaml.safe_dump(written(config)))
        assert identity(RunDirectory.open(path).config) == identity(config)
    assert located("bearings.encodings.pope.PoPE", "encoding") is PoPE


@pytest.mark.parametrize("size", ["layers", "width", "heads", "head_dim", "mlp_hidden"])
def test_sizes_without_bounds_are_refused(tmp_path, size):
    with pytest.raises(UserError, match=r"model\..*: it must be at most"):
        load_exported(exported(tmp_path / "export", model={"head_dim": 32, size: 10**12}))
