"""match=params|flops gives every encoding's model the cost of the same model without an encoding."""

import pytest
from hydra import compose, initialize_config_dir

from bearings.core.errors import UserError
from bearings.session.configuration import CONFIGS, choices_of, resolve
from bearings.session.matching import MULTIPLE, match_summary
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session

VOCABULARY = 60


def house_of(*overrides):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        plain = resolve(compose("config", overrides=["model=base", *overrides]))
    return Session.of(plain | {"names": {"domain": "jsb", "encoding": "any", "model": "base"}})


def cost(session, match):
    model = session.transformer(VOCABULARY)
    return model.parameter_count() if match == "params" else model.flops_per_token(session.data.length)


@pytest.mark.parametrize("match", ["params", "flops"])
@pytest.mark.parametrize("encoding", choices_of("encoding"))
def test_the_cost_is_as_near_as_the_mlp_s_grid_allows(encoding, match):
    plain = house_of("encoding=nope")
    session = house_of(f"encoding={encoding}", f"match={match}")
    hidden = session.transformer(VOCABULARY).blocks[0].mlp.down.in_features
    assert hidden % MULTIPLE == 0
    away = abs(cost(session, match) - cost(plain, match))
    for other in (hidden - MULTIPLE, hidden + MULTIPLE):
        assert away <= abs(
            cost(house_of(f"encoding={encoding}", f"model.mlp_hidden={other}"), match) - cost(plain, match)
        )
    line = match_summary(session.config, VOCABULARY)
    share = 100 * (cost(session, match) / cost(plain, match) - 1)
    assert f"{'parameters' if match == 'params' else 'FLOPs/token'} {share:+.2f} %" in line
    if encoding == "pope":
        assert ("FLOPs/token +" in line) if match == "params" else ("parameters -" in line)


def test_a_matched_run_is_the_run_with_that_mlp_and_is_matched_once():
    session = house_of("encoding=path", "match=params", "data.length=64")
    hidden = session.config["model"]["mlp_hidden"]
    by_hand = house_of("encoding=path", f"model.mlp_hidden={hidden}", "data.length=64")
    assert RunDirectory.of(session.config).path == RunDirectory.of(by_hand.config).path
    assert Session.of(session.config).config["model"]["mlp_hidden"] == hidden


def test_an_mlp_that_stays_as_it_is_makes_no_other_run():
    for hidden in ("null", "256"):
        plain = house_of("encoding=rope", f"model.mlp_hidden={hidden}")
        session = house_of("encoding=rope", "match=params", f"model.mlp_hidden={hidden}")
        assert RunDirectory.of(session.config).path == RunDirectory.of(plain.config).path
        assert match_summary(session.config, VOCABULARY).startswith("mlp_hidden unchanged: parameters +0.00 %")


def test_an_encoding_that_costs_more_than_the_mlp_is_refused():
    with pytest.raises(UserError, match="match=params: the encoding costs more than the whole MLP of model base"):
        house_of("encoding=path", "match=params", "model.mlp_hidden=8")
