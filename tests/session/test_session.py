"""The session of a task: its parts are built when they are first read."""

import pytest
import torch
from conftest import composed
from training_support import configured

from bearings.core.errors import UserError
from bearings.lightning_modules.outline import outlined
from bearings.session.models import build_transformer, model_facts
from bearings.session.session import Session


def test_each_part_is_built_when_it_is_first_read_and_once(tmp_path):
    plain = configured(tmp_path)
    session = Session({**plain, "evaluation": {**plain["evaluation"], "overlap": 2.0}})
    assert "domain" not in vars(session)
    assert session.data is session.data
    assert vars(session).keys() - vars(Session(plain)).keys() == {"domain", "data"}
    with pytest.raises(UserError, match=r"^evaluation\.overlap=2\.0: "):
        _ = session.evaluation
    with pytest.raises(UserError, match=r"^evaluation\.overlap=2\.0: "):
        Session.of(session.config)


def test_facts_about_a_model_name_its_options_that_are_no_defaults_and_may_change_results():
    config = composed("encoding=rope", "encoding.base=500.0", "encoding.implementation=torch")
    with outlined():
        facts = model_facts(config, build_transformer(config, 5))
    assert facts["options"] == {"base": 500.0}


def test_a_model_has_the_checkpointing_and_the_initial_weights_that_the_settings_name(tmp_path):
    models = [
        Session(configured(tmp_path, f"seed={seed}", "trainer.activation_checkpointing=true")).transformer(5)
        for seed in (0, 0, 1)
    ]
    assert [model.checkpointing for model in models] == [True] * 3
    first, again, other = (model.embedding.weight for model in models)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
