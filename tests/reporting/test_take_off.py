"""Take-off on tasks with right answers: survival curves, medians and log-rank tests."""

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from report_support import make_run, report_task, rows_of, undrawn  # noqa: F401
from scipy import stats

from bearings.reporting.losses import Series
from bearings.reporting.reading import read_study
from bearings.reporting.take_off import (
    TakeOff,
    log_rank_p,
    log_rank_scores,
    take_off_plot,
    take_off_sentence,
    take_off_tables,
    take_offs,
)

pytestmark = pytest.mark.usefixtures("undrawn")


def times(*steps):
    """Seeds that take off at these steps; None: not within 100."""
    return TakeOff(
        np.array([100 if step is None else step for step in steps]), np.array([s is not None for s in steps])
    )


def statistic(mine, theirs):
    """The log-rank statistic as observed less expected take-offs, from its definition."""
    total = 0.0
    for step in np.unique(np.concatenate([mine.steps, theirs.steps])):
        here = [((each.steps >= step).sum(), ((each.steps == step) & each.reached).sum()) for each in (mine, theirs)]
        (waiting, events), (others, their_events) = here
        total += events - (events + their_events) * waiting / (waiting + others)
    return total


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((10, 20, 30), (None, None, None)),
        ((10, 40, None), (20, 30, 30, None)),
        ((10, 10, 20), (10, 20, None)),
        ((10, 20, 60), (30, 40, 50, 70, None)),
    ],
)
def test_p_counts_the_assignments_of_seeds_that_are_as_extreme(one, other):
    every, size = [*one, *other], len(one)
    observed = statistic(times(*one), times(*other))
    mine, theirs = log_rank_scores(times(*one), times(*other))
    assert (mine.sum(), theirs.sum()) == (pytest.approx(observed), pytest.approx(-observed))
    found = []
    for chosen in itertools.combinations(range(len(every)), size):
        rest = [each for i, each in enumerate(every) if i not in chosen]
        found.append(statistic(times(*(every[i] for i in chosen)), times(*rest)))
    sides = [np.mean([sign * each >= sign * observed - 1e-9 for each in found]) for sign in (1, -1)]
    assert log_rank_p(times(*one), times(*other)) == pytest.approx(min(1.0, 2 * min(sides)))


def test_two_seeds_are_too_few_for_a_test():
    assert log_rank_p(times(10, 20), times(30, 40, 50)) is log_rank_p(times(30, 40, 50), times(10, 20)) is None


def test_models_without_validations_have_no_take_off_and_a_plot_needs_both_kinds_of_seed(tmp_path):
    def model(*curves):
        return SimpleNamespace(
            label="rope", runs={seed: SimpleNamespace(curve=curve) for seed, curve in enumerate(curves)}
        )

    early, never = ({"valid_accuracy": Series(np.array([5]), np.array([accuracy]))} for accuracy in (0.9, 0.1))
    assert TakeOff.of(model(early, {}), 0.5) is None
    place = {"half_way": 0.5, "slug": "task", "name": "task"}
    assert take_offs(SimpleNamespace(solved=None, contestants=[model(early)], **place)) == {}
    for curves, drawn in (((early, early), False), ((never, never), False), ((early, never), True)):
        comparison = SimpleNamespace(solved=0.9, contestants=[model(*curves)], **place)
        assert (take_off_plot(comparison, {"rope": {}}, tmp_path) is not None) == drawn


def test_assignments_with_equal_sums_of_scores_are_equally_extreme():
    """The statistic is exactly 0, but other orders of its terms add up to 1e-16."""
    one = TakeOff(np.array([30, 10, 20, 10, 30]), np.array([True, True, True, False, True]))
    assert log_rank_p(one, times(30, 20, 10, 10, 40)) == 1.0


def test_p_is_that_of_the_usual_test_with_many_seeds():
    random = np.random.default_rng(0)
    one, other = (random.exponential(scale, 60).round(3) for scale in (50, 80))
    samples = [TakeOff(np.minimum(each, 100), each < 100) for each in (one, other)]
    censored = [stats.CensoredData.right_censored(each.steps, ~each.reached) for each in samples]
    found = log_rank_p(*samples)
    assert found == pytest.approx(stats.logrank(*censored).pvalue, abs=0.01)
    assert found == log_rank_p(*samples)  # assignments are drawn from a fixed seed


def test_median_counts_censored_seeds_only_while_they_are_observed():
    assert times(10, 20, 30).median == 20
    assert times(10, None, None).median is None
    early = TakeOff(np.array([10, 20, 5]), np.array([True, True, False]))  # one run ended at step 5
    assert early.median == 10


@pytest.mark.parametrize("seeds", range(2, 41, 2))
def test_median_of_half_of_the_seeds_is_the_last_of_their_take_offs(seeds):
    half = seeds // 2
    assert times(*range(1, half + 1), *[None] * half).median == half


def test_table_and_plot_of_a_report(tmp_path, report):
    curves = {"rope": (None, None, None), "pope": (10, 20, None), "path": (10, 10, 20)}
    for encoding, steps in curves.items():
        for seed, step in enumerate(steps):
            given = {"domain": "flip_flop", "units": ("answer",), "correct": 0.6 if step is None else 1.0}
            path = make_run(tmp_path / "runs", encoding, seed, **given)
            rows = ["step,train_nll,valid_nll,valid_accuracy"]
            rows += [f"{at},1,1,{0.9 if step is not None and at >= step else 0.5}" for at in (10, 20, 30)]
            (path / "metrics.csv").write_text("\n".join(rows) + "\n")
    folder, _ = report()
    rows = rows_of(folder / "tables" / "flip_flop-take-off.csv")
    assert [(name, row["reached"], row["median"]) for name, row in rows.items()] == [
        ("path", "3 of 3", "10"),
        ("pope", "2 of 3", "20"),
        ("rope", "0 of 3", "not reached"),
    ]
    assert float(rows["path"]["p"]) == pytest.approx(0.1)  # 2 of the 20 assignments
    assert float(rows["path"]["holm_p"]) == pytest.approx(0.2)
    assert (rows["rope"]["p"], rows["rope"]["against"], rows["path"]["against"]) == ("", "", "rope")
    assert (folder / "plots" / "flip_flop-take-off.svg").exists()
    with open(folder / "plots" / "flip_flop-take-off.csv") as file:
        drawn = file.read()
    assert "pope,20,66.6" in drawn
    assert "path,30,100" in drawn  # curves go on to the last step of all
    text = (folder / "report.md").read_text()
    assert "the first validation with at least 75 % right" in text  # half-way between 50 % and 100 %
    assert "Share of seeds with at least 75 % right" in text


def table_of(tmp_path, unmade=0, **curves):
    """The table of models whose seeds take off at the given steps, of a study that lists `unmade` further models."""
    for encoding, steps in curves.items():
        for seed, step in enumerate(steps):
            given = {"domain": "flip_flop", "units": ("answer",), "correct": 0.6 if step is None else 1.0}
            path = make_run(tmp_path / "runs", encoding, seed, **given)
            rows = [f"{at},1,1,{0.9 if step is not None and at >= step else 0.5}" for at in range(10, 101, 10)]
            (path / "metrics.csv").write_text("\n".join(["step,train_nll,valid_nll,valid_accuracy", *rows]) + "\n")
    study = read_study([tmp_path / "runs"])
    (comparison,) = study.comparisons
    study = replace(study, unmade={next(iter(comparison.studies)): unmade})
    return take_off_tables(study, "rope")[comparison.name]


def test_sentence_says_who_takes_off_earlier_by_the_statistic_of_the_test(tmp_path):
    """The earliest seed, whose model comes first in the table, does not decide it."""
    table = table_of(tmp_path, rope=[20] * 6, path=[10, *[90] * 5])
    assert [row["model"] for row in table.rows] == ["path", "rope"]
    seen = "6 of 6 seeds against 6 of 6, median step 90 against 20, adjusted p 0.015"
    assert take_off_sentence(table) == f"Take-off: path takes off later than rope ({seen})"


def test_sentence_counts_what_is_undecided(tmp_path):
    found = take_off_sentence(
        table_of(tmp_path, rope=[20] * 5, path=[10] * 5, pope=[20] * 5, nope=[20, 20, 20, 20, 30])
    )
    assert found is not None
    assert found.startswith("Take-off: path takes off earlier than rope (5 of 5 seeds against 5 of 5, median step 10 ")
    assert found.endswith("; 2 differences are undecided (adjusted p 1.000)")
    alone = table_of(tmp_path / "alone", rope=[20] * 5)
    assert take_off_sentence(alone) is None
    assert not any("Holm" in note for note in alone.notes)


def test_models_that_the_study_still_plans_count_as_tests(tmp_path):
    tables = []
    for unmade in (0, 9):
        folder = tmp_path / str(unmade)
        folder.mkdir()
        (folder / "runs").mkdir()
        (folder / "runs" / "study.yaml").write_text("runs: [encoding=rope]\n")
        tables.append(table_of(folder, unmade, rope=[20] * 5, path=[10] * 5))
    done, unfinished = tables
    assert unfinished.rows[0]["holm_p"] == pytest.approx(10 * done.rows[0]["holm_p"])
    assert take_off_sentence(done).startswith("Take-off: path takes off earlier than rope (")
    assert take_off_sentence(unfinished).startswith("Take-off: path against rope is undecided (")


def test_tests_of_all_comparisons_of_a_study_are_adjusted_together():
    """Also those of a comparison without a table, in which no model takes off."""
    late, early, never = [0.1, 0.6], [0.6, 0.6], [0.1, 0.1]
    first = comparison_of(validated("rope", *[late] * 5), validated("path", *[early] * 5))
    second = comparison_of(validated("rope", *[never] * 5), validated("path", *[never] * 5))
    second.name = "another task"
    tables = take_off_tables(SimpleNamespace(unmade={}, comparisons=[first, second]), "rope")
    assert [*tables] == ["task"]
    assert [row["holm_p"] for row in tables["task"].rows if row["p"] is not None] == [2 * tables["task"].rows[0]["p"]]
    first.studies, second.studies = frozenset({Path("first")}), frozenset({Path("second")})
    unmade = {Path("second"): 3}
    apart = take_off_tables(SimpleNamespace(unmade=unmade, comparisons=[first, second]), "rope")["task"].rows[0]
    assert apart["holm_p"] == apart["p"]


def test_without_take_off_there_is_no_table(tmp_path, report):
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "rope", seed, domain="flip_flop", units=("answer",), correct=0.5)
    folder, _ = report()
    assert not list((folder / "tables").glob("*take-off*"))
    assert not list((folder / "plots").glob("*take-off*"))


def validated(label, *curves):
    """A model whose seeds validate every 10 steps with these accuracies."""
    runs = {
        seed: SimpleNamespace(curve={"valid_accuracy": Series(10 * np.arange(1, 1 + len(curve)), np.array(curve))})
        for seed, curve in enumerate(curves)
    }
    return SimpleNamespace(label=label, runs=runs)


def comparison_of(*chosen, others=()):
    """A comparison whose reference is the first model; `others` have a rate that is not the chosen one."""
    return SimpleNamespace(
        name="task",
        slug="task",
        solved=0.9,
        half_way=0.5,
        studies=frozenset(),
        chosen=[*chosen],
        contestants=[*chosen, *others],
        reference=lambda contestant, named: chosen[0],
    )


def test_models_whose_median_is_reached_come_first_and_then_the_earliest(tmp_path):
    table = table_of(tmp_path, rope=[20, 30, 30], path=[10, None, None], pope=[None, 20, 20])
    assert [(row["model"], row["median"]) for row in table.rows] == [
        ("pope", "20"),
        ("rope", "30"),
        ("path", "not reached"),
    ]


def test_a_seed_that_ended_early_without_a_take_off_is_no_early_take_off():
    early, late = [0.1, 0.6], [0.1, 0.1, 0.6]
    comparison = comparison_of(validated("rope", early, early, early), validated("path", late, late, [0.1]))
    (table,) = take_off_tables(SimpleNamespace(unmade={}, comparisons=[comparison]), "rope").values()
    assert [row["model"] for row in table.rows] == ["rope", "path"]


def test_table_and_plot_are_about_the_accuracy_half_way_and_the_table_about_chosen_rates(tmp_path):
    models = [validated("rope", *[[0.1, 0.1]] * 3), validated("path", *[[0.1, 0.6]] * 3)]
    models.insert(1, SimpleNamespace(label="nope", runs={0: SimpleNamespace(curve={})}))  # never validated
    comparison = comparison_of(*models, others=[validated("path, learning_rate=1", *[[0.6, 0.6]] * 3)])
    (table,) = take_off_tables(SimpleNamespace(unmade={}, comparisons=[comparison]), "rope").values()
    assert [(row["model"], row["reached"]) for row in table.rows] == [("path", "3 of 3"), ("rope", "0 of 3")]
    assert table.rows[0]["holm_p"] == table.rows[0]["p"]  # one test
    assert "validation with at least 50 % right." in table.notes[0]
    assert table.notes[1].startswith("p: log-rank test over seeds")
    plot = take_off_plot(comparison, {each.label: {} for each in comparison.contestants}, tmp_path)
    assert "with at least 50 % right on the validation split" in plot.caption


def test_curves_keep_their_height_until_the_next_take_off(tmp_path, monkeypatch):
    comparison = comparison_of(
        validated("rope", [0.1, 0.1], [0.1, 0.6], [0.6, 0.6]), validated("path", [0.1, 0.1, 0.1])
    )
    drawn = []
    monkeypatch.setattr("bearings.reporting.take_off.write_plot", lambda figure, *_: drawn.append(figure))
    take_off_plot(comparison, {"rope": {}, "path": {}}, tmp_path)
    line, _ = drawn[0].axes[0].lines
    assert line.get_drawstyle() == "steps-post"
    assert line.get_xdata().tolist() == [0, 10, 20, 30]  # to the last validation of all models
    assert line.get_ydata().tolist() == pytest.approx([0, 100 / 3, 200 / 3, 200 / 3])


def test_models_of_which_only_another_rate_takes_off_have_no_table():
    never = [validated(encoding, *[[0.1, 0.1]] * 3) for encoding in ("rope", "path")]
    comparison = comparison_of(*never, others=[validated("path, learning_rate=1", *[[0.6, 0.6]] * 3)])
    assert not take_off_tables(SimpleNamespace(unmade={}, comparisons=[comparison]), "rope")


def test_sentence_counts_the_seeds_of_both_models_that_take_off(tmp_path):
    found = take_off_sentence(table_of(tmp_path, rope=[None] * 5, path=[10] * 5))
    seen = "5 of 5 seeds against 0 of 5, median step 10 against not reached, adjusted p 0.008"
    assert found == f"Take-off: path takes off earlier than rope ({seen})"
    found = take_off_sentence(table_of(tmp_path / "late", rope=[10] * 5, path=[None] * 5))
    seen = "0 of 5 seeds against 5 of 5, median step not reached against 10, adjusted p 0.008"
    assert found == f"Take-off: path takes off later than rope ({seen})"


def test_sentence_says_once_that_neither_median_is_reached(tmp_path):
    found = take_off_sentence(table_of(tmp_path, rope=[None] * 5, path=[10, *[None] * 4]))
    assert "1 of 5 seeds against 0 of 5, median step not reached by either, adjusted p 1.000" in found


def test_lowest_p_of_undecided_differences_is_adjusted():
    common = {"seeds": 5, "reached": "5 of 5", "median": "10", "earlier": True}
    rows = [
        {"model": "rope", "against": "rope", "p": None, **common},
        {"model": "pope", "against": "rope", "p": 0.03, "holm_p": 0.06, **common},
        {"model": "path", "against": "rope", "p": 0.5, "holm_p": 0.5, **common},
    ]
    found = take_off_sentence(SimpleNamespace(rows=rows))
    assert found == "Take-off: 2 differences are undecided (adjusted p at least 0.060)"
