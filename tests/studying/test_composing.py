"""Runs that share a composition have the configurations that Hydra gives each of them."""

import pytest
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore

from bearings.session.settings import CONFIGS
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
