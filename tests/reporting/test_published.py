"""The comparison of a study that is nearest to published losses."""

from types import SimpleNamespace

import pytest

from bearings.reporting.published import nearest_published
from bearings.reporting.statistics import Estimate

REPORTED = {"rope": "0.5000 nats", "pope": "0.4000 nats"}


def score(comparison, model, nats, reported=REPORTED, split="test", seeds=(-0.01, 0.01), chosen=True, pooled=0):
    """A score with an interval over seeds that extends from `nats` by `seeds`."""
    published = {split: reported[model]} if model in reported else {}
    return SimpleNamespace(
        comparison=SimpleNamespace(name=comparison),
        split=split,
        contestant=SimpleNamespace(label=model, any_run=SimpleNamespace(published=published)),
        nats=Estimate(nats, None if seeds is None else (nats + seeds[0], nats + seeds[1])),
        chosen=chosen,
        pooled=pooled,
    )


def test_the_nearest_setting_is_named_with_its_losses_best_first():
    far = [score("jsb (a)", "rope", 0.49), score("jsb (a)", "pope", 0.45)]  # RoPE alone would be nearer
    near = [score("jsb (b)", "rope", 0.52), score("jsb (b)", "pope", 0.41), score("jsb (b)", "path", 0.1)]
    assert nearest_published([*far, *near]) == (
        "Of 2 settings, jsb (b) is nearest to the published nats/token: pope 0.4100 (0.4000 to 0.4200; published: "
        "0.4000), rope 0.5200 (0.5100 to 0.5300; published: 0.5000)"
    )


def test_settings_without_all_models_and_rates_that_were_not_chosen_do_not_count():
    near = [score("jsb (b)", "rope", 0.52), score("jsb (b)", "pope", 0.41, seeds=None)]
    far = [score("jsb (d)", "rope", 0.9), score("jsb (d)", "pope", 0.9)]
    exact = [score("jsb (a)", "rope", 0.5), score("jsb (c)", "rope", 0.5), score("jsb (c)", "pope", 0.4, chosen=False)]
    told = nearest_published([*exact, *near, *far, score("jsb, pooled", "pope", 0.4, pooled=2)])
    assert told.startswith("Of 2 settings, jsb (b) ")
    assert "pope 0.4100 (published: 0.4000)" in told
    assert nearest_published([*exact, *near]) is None


@pytest.mark.parametrize(
    "found",
    [
        [],
        [score("jsb", "rope", 0.5), score("jsb", "pope", 0.4)],
        [score(name, "rope", 0.5, {"rope": "5.18 %"}) for name in ("a", "b")],
        [score(name, "rope", 0.5, split=name) for name in ("a", "b")],
    ],
    ids=["nothing", "one setting", "other units", "different splits"],
)
def test_nothing_is_said_without_a_choice(found):
    assert nearest_published(found) is None
