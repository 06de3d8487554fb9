"""Settings and files that the command of a study gives to all runs."""

import re

import pytest
import yaml
from command_support import run_command  # noqa: F401

from bearings.core.errors import UserError
from bearings.studying import jobs, planning, running


@pytest.mark.parametrize("search", [{}, {"search": "task=tune task.rates=[1e-3,2e-3]"}])
def test_a_list_may_name_files_in_the_folder_of_config_dir(tmp_path, run, monkeypatch, search):
    own = tmp_path / "my files"
    (own / "encoding").mkdir(parents=True)
    (own / "encoding" / "own.yaml").write_text("_target_: bearings.encodings.rope.RoPE\n")
    (tmp_path / "mine").mkdir()
    study = {
        "runs": ["experiment=debug seed=0,1 encoding=own encoding.base=500"],
        "then": ["task=extrapolate task.contexts=[64]"],
        "published": {"test": {"own": "1.5 nats"}},
        **search,
    }
    (tmp_path / "mine" / "study.yaml").write_text(yaml.safe_dump(study))
    to_do = []
    monkeypatch.setattr(running, "execute", lambda todo, *_: to_do.extend(todo) or [])
    _, _, error = run("--config-dir=my files", "task=study", "study=mine")
    assert len(to_do) == (1 if search else 2), error
    for group in (to_do[:1], to_do):
        assert {command[2] for command in jobs.commands(group)} == {f"--config-dir={own}"}
    (tmp_path / "mine" / "study.yaml").write_text(yaml.safe_dump({"runs": ["encoding=owm seed=0"]}))
    status, _, error = run("--config-dir=my files", "task=study", "study=mine")
    assert (status, error.count("\n")) == (2, 1)
    assert "study.yaml, encoding=owm seed=0: encoding=owm: did you mean own? allowed: " in error


@pytest.mark.parametrize(
    "setting",
    [
        *("trainer.steps=50", "+trainer.steps=50", "seed=3", "model=base", "match=flops"),
        "encoding.implementation=torch",
    ],
)
def test_settings_that_change_what_runs_find_are_refused(setting, tmp_path):
    """Their records would be kept among the study's own."""
    (tmp_path / "study.yaml").write_text("runs:\n  - experiment=debug seed=0 encoding=rope\n")
    places = ["data.workers=1", "stores=elsewhere", "task.samples=0"]
    (plain,), (moved,) = (planning.plan(tmp_path, tmp_path / "trained", given) for given in ([], places))
    assert moved.path == plain.path
    with pytest.raises(
        UserError, match=rf"^{re.escape(setting)}: this setting changes the results of the study's runs: .*study\.yaml"
    ):
        planning.plan(tmp_path, tmp_path / "trained", [*places, setting])


def test_data_of_one_domain_are_no_setting_of_runs_of_several(tmp_path):
    lines = ["experiment=path_flip_flop seed=0 encoding=rope", "experiment=debug seed=0,1 encoding=rope,nope"]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"runs": lines}))
    with pytest.raises(UserError) as raised:
        planning.plan(tmp_path, tmp_path / "trained", ["domain.path=a.json"])
    assert str(raised.value) == (
        f"domain.path=a.json: the runs of {tmp_path / 'study.yaml'} have several domains, flip_flop, jsb: set "
        "domain.path in its lines instead"
    )
