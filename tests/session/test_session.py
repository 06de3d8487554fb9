"""The session of a task: its parts are built when they are first read."""

import pytest
from training_support import configured

from bearings.core.errors import UserError
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
