"""How many seeds an undecided difference needs, against the test itself on simulated seeds."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bearings.reporting.power import MOST, needed_sentence, seeds_needed
from bearings.reporting.statistics import difference

CLUSTERS = 60


def simulated(change, seeds, spread=0.01, random=None):
    """A difference of `change` over `seeds`, with noise over seeds whose mean is 0 and whose deviation is `spread`."""
    random = random or np.random.default_rng(0)
    noise = random.normal(size=seeds)
    noise = (noise - noise.mean()) / noise.std(ddof=1) * spread
    reference = np.full((seeds, CLUSTERS), 2.0)
    clusters = 0.002 * random.normal(size=CLUSTERS)
    return difference(
        reference + change + noise[:, None] + clusters - clusters.mean(), reference, np.ones(CLUSTERS), 0.01
    )


@pytest.mark.parametrize("change", [0.006, 0.008, 0.011])
def test_the_test_is_significant_from_about_that_number_of_seeds_on(change):
    needed = seeds_needed(simulated(change, 4), 1)
    assert needed is not None
    assert simulated(change, needed + 2).both_p < 0.05
    assert simulated(change, needed - 2).both_p > 0.05 or needed - 2 < 4


def test_smaller_differences_and_more_tests_need_more_seeds():
    found = simulated(0.01, 5)
    assert seeds_needed(found, 1) < seeds_needed(found, 50)
    assert seeds_needed(simulated(0.02, 5), 1) <= seeds_needed(found, 1)
    assert seeds_needed(simulated(0.0001, 5), 1) is None
    assert seeds_needed(replace(found, spread=None), 1) is None


@pytest.mark.parametrize("value", [-0.01, 0.01])
@pytest.mark.parametrize(("enough", "needed"), [(3, 4), (4, 4), (MOST, MOST), (MOST + 1, None)])
def test_the_side_of_zero_is_reached_by_up_to_so_many_seeds(value, enough, needed):
    """The end of the interval that is nearer to 0 is the upper one of a negative difference."""

    def with_seeds(seeds):
        def reach(tail, upwards):
            assert (tail, upwards) == (pytest.approx(0.05 / 3 / 2), value < 0)
            return 0.0 if seeds >= enough else 1.0

        return SimpleNamespace(reach=reach)

    found = replace(simulated(0.01, 4), value=value, spread=SimpleNamespace(with_seeds=with_seeds))
    assert seeds_needed(found, 3) == needed


def test_no_number_of_seeds_suffices_if_the_test_set_is_too_small():
    found = simulated(0.01, 5)
    assert seeds_needed(replace(found, spread=replace(found.spread, clusters=np.array(1e-4))), 1) is None


def test_more_seeds_reduce_what_differs_between_clusters_from_seed_to_seed():
    def interacting(seeds):
        random = np.random.default_rng(1)
        noise = 0.1 * random.normal(size=(100, CLUSTERS))[:seeds]
        noise -= noise.mean()
        return difference(2.012 + noise, np.full((seeds, CLUSTERS), 2.0), np.ones(CLUSTERS), 0.01)

    needed = seeds_needed(interacting(4), 1)
    assert needed is not None
    assert interacting(2 * needed).both_p < 0.05


def score(name, found, verdict="undecided", place="jsb"):
    contestant = SimpleNamespace(encoding=name, label=name)
    comparison = SimpleNamespace(chosen=[contestant])
    nats = SimpleNamespace(value=2 + found.value)
    return SimpleNamespace(
        contestant=contestant,
        comparison=comparison,
        place=place,
        nats=nats,
        difference=found,
        verdict=verdict,
        p=0.2,
        tests=3,
    )


def test_sentence_names_the_seeds_best_first():
    small, large = simulated(0.0001, 5), simulated(0.01, 5)
    found = [score("pope", large), score("path", small), score("fox", large, "lower")]
    seeds = seeds_needed(large, 3)
    sentence = needed_sentence(found)
    assert sentence.endswith(f": {seeds} for pope; more than {MOST}, or a larger test set, for 1 difference.")
    assert needed_sentence(found[1:2]).endswith(f" measured: more than {MOST}, or a larger test set, for 1 difference.")
    assert needed_sentence(found[2:]) is None
    better = simulated(0.009, 5)
    both = f": {seeds_needed(better, 3)} for nope, {seeds} for pope."
    assert needed_sentence([score("pope", large), score("nope", better)]).endswith(both)


def test_every_comparison_is_in_the_sentence():
    large = simulated(0.01, 5)
    places = [score("pope", large, place=place) for place in ("jsb", "maestro")]
    seeds = seeds_needed(large, 3)
    assert needed_sentence(places).endswith(f": {seeds} for pope in jsb, {seeds} for pope in maestro.")
    solve_rates = score("pope", large, place="flip_flop")
    solve_rates.difference = None
    assert needed_sentence([*places[:1], solve_rates]).endswith(f": {seeds} for pope.")
