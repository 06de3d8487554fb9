"""The speeds beside a study, which `benchmarks.training` measures."""

import pytest

from bearings.core.errors import UserError
from bearings.studying.outcomes import SPEEDS, speeds_of


def test_each_encoding_is_shown_at_its_fastest(tmp_path):
    assert speeds_of(tmp_path) == {}
    rows = ["rope,launched,100,60", "rope,graph,250,60", "path,graph,200,60"]
    (tmp_path / SPEEDS).write_text("\n".join(["contender,steps,tokens_per_s,vocabulary", *rows, ""]))
    assert speeds_of(tmp_path) == {"rope": 250.0, "path": 200.0}


@pytest.mark.parametrize(
    "text",
    [
        "contender\nrope\n",
        "contender,tokens_per_s,vocabulary\nrope,fast,60\n",
        "contender,tokens_per_s,vocabulary\nrope,1,60\nrope,2,64\n",
    ],
)
def test_a_table_that_cannot_be_read_is_named(tmp_path, text):
    (tmp_path / SPEEDS).write_text(text)
    with pytest.raises(UserError, match=r"speed\.csv: not a table of speeds \(.*\): restore or delete it"):
        speeds_of(tmp_path)
