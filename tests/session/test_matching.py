"""match=params|flops gives every encoding's model the cost of the same model without an encoding."""

from functools import cache

import pytest
from conftest import composed, with_encoding

from bearings.core.errors import UserError
from bearings.core.words import signed
from bearings.lightning_modules.outline import outlined
from bearings.session.matching import MULTIPLE, match_summary, matched
from bearings.session.overrides import choices_of
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session

VOCABULARY = 60


def config_of(*overrides):
    names = {"names": {"domain": "jsb", "encoding": "any", "model": "base"}}
    return composed("model=base", "model.layers=4", *overrides) | names


def session_of(*overrides):
    return Session.of(config_of(*overrides))


def outline(session):
    with outlined():
        return session.transformer(VOCABULARY)


def costs(session):
    return costs_of(outline(session), session)


def costs_of(model, session):
    return {"params": model.parameter_count(), "flops": model.flops_per_token(session.data.length)}


@cache
def plain_costs():
    return costs(Session(config_of("encoding=nope")))


@pytest.mark.parametrize("encoding", choices_of("encoding"))
def test_the_cost_is_as_near_as_the_mlp_s_grid_allows(encoding):
    plain, config = plain_costs(), with_encoding(config_of(), encoding)
    for match in plain:
        if (encoding, match) == ("dape", "flops"):  # its network over scores costs more than an MLP
            with pytest.raises(UserError, match="the encoding costs more than the whole MLP"):
                matched(config | {"match": match})
            continue
        session = Session(matched(config | {"match": match}))
        model = outline(session)
        hidden, chosen = model.blocks[0].mlp.down.in_features, costs_of(model, session)
        assert hidden % MULTIPLE == 0
        smaller, larger = (
            costs(Session(config | {"model": config["model"] | {"mlp_hidden": hidden + change}}))
            for change in (-MULTIPLE, MULTIPLE)
        )
        away = abs(chosen[match] - plain[match])
        assert all(away <= abs(other[match] - plain[match]) for other in (smaller, larger))
        line = match_summary(session.config, VOCABULARY)
        share = 100 * (chosen[match] / plain[match] - 1)
        assert f"{'parameters' if match == 'params' else 'FLOPs/token'} {signed(share, 2)} %" in line
        if encoding == "pope":
            assert ("FLOPs/token +" in line) if match == "params" else ("parameters -" in line)


def test_a_matched_run_is_the_run_with_that_mlp_and_is_matched_once():
    session = session_of("encoding=path", "match=params", "data.length=64")
    hidden = session.config["model"]["mlp_hidden"]
    assert hidden == 680  # part of the run's name: another grid would give stored runs other names
    assert match_summary(session.config, VOCABULARY).startswith("mlp_hidden 680: ")
    by_hand = session_of("encoding=path", f"model.mlp_hidden={hidden}", "data.length=64")
    assert RunDirectory.of(session.config).path == RunDirectory.of(by_hand.config).path
    assert Session.of(session.config).config["model"]["mlp_hidden"] == hidden


def test_an_mlp_that_stays_as_it_is_makes_no_other_run():
    for hidden in ("null", "256", "100"):
        plain = session_of("encoding=rope", f"model.mlp_hidden={hidden}")
        session = session_of("encoding=rope", "match=params", f"model.mlp_hidden={hidden}")
        assert RunDirectory.of(session.config).path == RunDirectory.of(plain.config).path
        assert match_summary(session.config, VOCABULARY).startswith("mlp_hidden unchanged: parameters 0.00 %")


def test_an_encoding_that_costs_more_than_the_mlp_is_refused():
    with pytest.raises(UserError, match="match=params: the encoding costs more than the whole MLP of model base"):
        session_of("encoding=path", "match=params", "model.mlp_hidden=24")
    smallest = session_of("encoding=path", "match=params", "model.mlp_hidden=32").config["model"]["mlp_hidden"]
    assert smallest == MULTIPLE
