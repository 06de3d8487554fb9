"""Runs that share a composition have the configurations that Hydra gives each of them."""

import pytest
import yaml
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from study_support import CPU

from bearings.session.settings import CONFIGS
from bearings.studying import composing, planning
from bearings.studying.composing import Composer


@pytest.fixture
def experiment():
    """An experiment that sets an option of every encoding."""
    ConfigStore.instance().store("own", {"encoding": {"base": 500}}, "experiment", "_global_")
    yield
    del ConfigStore.instance().repo["experiment"]


@pytest.mark.parametrize(
    ("line", "encodings"),
    [
        ("experiment=debug seed=1", ["pope", "rope", "rope_pp", "swan", "pope", "shaw"]),
        ("experiment=pope_openwebtext_124m", ["rope", "pope", "alibi", "rope"]),  # which sets options of PoPE
        ("experiment=own", ["rope", "pope", "rope"]),
        ("encoding.window=8", ["rope", "pope", "shaw"]),
        ("encoding.base=10000", ["rope", "selective_rope"]),  # the default of the first only
    ],
)
def test_a_shared_composition_equals_one_of_its_own(experiment, line, encodings):
    together = Composer()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        for encoding in encodings:
            given = [*line.split(), f"encoding={encoding}"]
            assert together.asked(given)[0] == Composer().asked(given)[0]


@pytest.mark.parametrize(("then", "again"), [("task=extrapolate", 1), ("task=evaluate data.workers=1", 3)])
def test_runs_of_all_encodings_are_composed_once_and_lines_of_then_are_checked_again_only_if_they_depend_on_the_run(
    tmp_path, monkeypatch, then, again
):
    runs = ["experiment=debug seed=0,1 encoding=rope,nope,fox"]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"runs": runs, "then": [then]}))
    calls = []
    for name in ("compose", "asked"):
        inner = getattr(composing, name)
        monkeypatch.setattr(composing, name, lambda *a, n=name, f=inner, **k: calls.append(n) or f(*a, **k))
    assert len(planning.plan(tmp_path, tmp_path / "trained", [CPU])) == 6
    assert (calls.count("compose"), calls.count("asked")) == (2, 3 + again)
