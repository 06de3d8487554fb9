"""Schedules are pure functions with the ends they promise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bearings.lightning_modules.schedule import learning_rate_factor


@given(st.integers(1, 500), st.integers(0, 600), st.sampled_from(["cosine", "linear", "constant"]), st.floats(0.0, 1.0))
def test_factors_rise_then_fall_inside_their_bounds(total, warmup, schedule, final):
    factors = [learning_rate_factor(step, total, warmup, schedule, final) for step in range(total)]
    assert all(0 < f <= 1 for f in factors[:warmup])
    assert factors[:warmup] == sorted(factors[:warmup])
    assert all(final - 1e-12 <= f <= 1 for f in factors[warmup:])
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)
    if warmup < total:
        reached = final if schedule != "constant" and warmup < total - 1 else 1
        assert (factors[warmup], factors[-1]) == (1, pytest.approx(reached))


@pytest.mark.parametrize(
    ("schedule", "quarter", "middle"),
    [("cosine", 0.55 + 0.45 * 0.5**0.5, 0.55), ("linear", 0.775, 0.55), ("constant", 1.0, 1.0)],
)
def test_ends_quarter_and_middle(schedule, quarter, middle):
    assert learning_rate_factor(0, 111, 10, schedule, 0.1) == pytest.approx(1 / 11)
    assert learning_rate_factor(9, 111, 10, schedule, 0.1) == pytest.approx(10 / 11)
    assert learning_rate_factor(10, 111, 10, schedule, 0.1) == 1
    assert learning_rate_factor(35, 111, 10, schedule, 0.1) == pytest.approx(quarter)
    assert learning_rate_factor(60, 111, 10, schedule, 0.1) == pytest.approx(middle)
    assert learning_rate_factor(110, 111, 10, schedule, 0.1) == pytest.approx(1.0 if schedule == "constant" else 0.1)
