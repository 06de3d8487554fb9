"""The session of a task: its parts are built when they are first read."""

import pytest
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
