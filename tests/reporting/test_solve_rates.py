"""Solve rates of tasks with right answers, their exact intervals and tests."""

from types import SimpleNamespace

import numpy as np
import pytest
from report_support import diverge, make_run, records, report_task, rewritten, rows_of, undrawn  # noqa: F401
from scipy import stats

from bearings.reporting.losses import Series
from bearings.reporting.reading import read_study
from bearings.reporting.scores import Score, study_scores
from bearings.reporting.solving import exact_interval, rates_p, solving, take_off

pytestmark = pytest.mark.usefixtures("undrawn")


SPLITS = ("test", "sparse", "dense")


def test_tasks_with_right_answers_have_exact_intervals_of_the_solve_rate(tmp_path, report):
    for encoding, shares in {"rope": (0.5, 0.6, 0.7), "pope": (1.0, 0.99, 0.95)}.items():
        for seed, share in enumerate(shares):
            given = {"domain": "flip_flop", "splits": SPLITS, "units": ("answer",), "correct": share}
            path = make_run(tmp_path / "runs", encoding, seed, **given)
            validated = (0.74, 0.75, 0.99) if share > 0.9 else (0.6, 0.7, 0.7)
            lines = [f"{5 * i + 5},{accuracy},1,1\n" for i, accuracy in enumerate(validated)]
            (path / "metrics.csv").write_text("".join(["step,valid_accuracy,valid_nll,train_nll\n", *lines]))
    folder, _ = report()
    for split in SPLITS:
        rows = rows_of(folder / "tables" / f"flip_flop-{split}.csv")
        assert (rows["rope"]["solved"], rows["pope"]["solved"]) == ("0 of 3", "1 of 3")  # from 99.9 % on
        assert [*map(float, rows["pope"]["errors"].split())] == pytest.approx([0, 1, 5], abs=0.1)
        assert (rows["rope"]["take_off"], rows["pope"]["take_off"]) == ("never never never", "0.01k 0.01k 0.01k")
        ends = [float(rows["pope"][f"solve_rate_{end}"]) for end in ("low", "high")]
        assert ends == pytest.approx([stats.beta.ppf(0.025, 1, 3), stats.beta.ppf(0.975, 2, 2)])
        assert rows["pope"]["verdict"] == "undecided"
        assert not {"interval_low", "difference", "difference_interval_low"} & rows["pope"].keys()
    assert not list(folder.glob("tables/*-differences.csv"))
    assert "Solved: at least 99.9 % of the answers are right." in (folder / "report.md").read_text()


def test_tables_name_the_reference_of_each_solve_rate(tmp_path, report):
    """Each size of the MLP has its own."""
    for encoding in ("rope", "nope"):
        for hidden in (64, 128):
            for seed in range(3):
                given = {"domain": "flip_flop", "units": ("answer",), "correct": 1.0}
                make_run(tmp_path / "runs", encoding, seed, f"model.mlp_hidden={hidden}", **given)
    folder, _ = report()
    rows = rows_of(folder / "tables" / "flip_flop-test.csv")
    assert rows["nope, mlp_hidden=128"]["against"] == "rope, mlp_hidden=128"
    assert rows["nope, mlp_hidden=64"]["against"] == "rope, mlp_hidden=64"
    assert "| reference |" in (folder / "tables" / "flip_flop-test.md").read_text()


def test_a_seed_that_diverged_does_not_solve_the_task(tmp_path, report):
    for encoding, seeds in {"rope": range(3), "pope": range(4)}.items():
        for seed in seeds:
            make_run(tmp_path / "runs", encoding, seed, domain="flip_flop", units=("answer",), correct=1.0)
    diverge(make_run(tmp_path / "runs", "pope", 4, domain="flip_flop", units=("answer",), correct=1.0))
    folder, _ = report()
    row = rows_of(folder / "tables" / "flip_flop-test.csv")["pope"]
    assert (row["seeds"], row["solved"]) == ("4", "4 of 5")
    assert float(row["solve_rate_low"]) == pytest.approx(stats.beta.ppf(0.025, 4, 2))
    note = "Solve rates count these runs as not solving the task; other results are of the other runs."
    assert f"Diverged: pope, 1 of 5 seeds (seed 4 at step 12). {note}" in (folder / "report.md").read_text()


def test_seeds_that_diverged_count_for_the_test_of_solve_rates(tmp_path):
    for encoding in ("rope", "pope"):
        for seed in range(5):
            run = make_run(tmp_path, encoding, seed, domain="flip_flop", units=("answer",), correct=1.0)
            if (encoding, seed) >= ("rope", 1):  # only one seed finishes
                diverge(run)
    found = {score.contestant.label: score for score in study_scores(read_study([tmp_path]), "pope")}
    assert (found["rope"].p, found["rope"].verdict) == (pytest.approx(rates_p((1, 5), (5, 5))), "solves less often")


def test_solve_rates_with_too_few_common_seeds_are_no_test(tmp_path):
    for encoding, seeds in {"rope": (0, 1, 2), "pope": (0, 1, 2), "path": (1, 2, 3)}.items():
        for seed in seeds:
            make_run(tmp_path, encoding, seed, domain="flip_flop", units=("answer",), correct=float(encoding == "pope"))
    found = {score.contestant.label: score for score in study_scores(read_study([tmp_path]), "rope")}
    assert (found["pope"].tests, found["pope"].holm_p) == (1, found["pope"].p)
    assert (found["path"].p, found["path"].verdict) == (None, "not enough seeds")


@pytest.mark.parametrize(
    ("mine", "theirs", "verdict"), [((5, 5), (10, 40), "more"), ((10, 40), (5, 5), "less"), ((20, 40), (1, 10), "more")]
)
def test_verdicts_compare_rates_of_unequal_numbers_of_seeds(mine, theirs, verdict):
    one, other = (SimpleNamespace(runs=dict.fromkeys(range(seeds))) for _, seeds in (mine, theirs))
    rates = [SimpleNamespace(rate=rate) for rate in (mine, theirs)]
    score = Score(None, "test", one, None, {}, other, None, *rates, holm_p=rates_p(mine, theirs))
    assert score.verdict == f"solves {verdict} often"


@pytest.mark.parametrize("values", [2, 32])
def test_half_way_depends_on_the_number_of_answers(tmp_path, values):
    given = {"domain": "mqrar", "units": ("answer",), "correct": 0.5}
    make_run(tmp_path / "runs", "rope", 0, f"domain.values={values}", **given)
    (comparison,) = read_study([tmp_path / "runs"]).comparisons
    assert comparison.half_way == pytest.approx((1 / values + 0.99) / 2)


def test_solve_rates_are_compared_with_an_exact_test():
    assert rates_p((3, 3), (0, 3)) == pytest.approx(2 / 64)  # at a solve rate of one half, the least favourable
    assert rates_p((5, 5), (0, 5)) == pytest.approx(2 / 1024)
    assert rates_p((1, 3), (0, 3)) > 0.5
    assert rates_p((2, 3), (0, 3)) == pytest.approx(14 / 64)  # 7 of 64 outcomes are as extreme, on either side
    rate = np.linspace(0, 1, 10_001)
    as_extreme = rate**3 * ((1 - rate) ** 5 + 5 * rate * (1 - rate) ** 4)  # all of 3, and at most one of 5
    assert rates_p((3, 3), (1, 5)) == pytest.approx(2 * as_extreme.max(), rel=1e-3)
    assert rates_p((0, 3), (0, 5)) == rates_p((3, 3), (4, 4)) == 1
    assert exact_interval(3, 3) == (pytest.approx(0.025 ** (1 / 3)), 1)


def test_seeds_that_reach_the_accuracy_of_the_domain_solve_its_task():
    def run(accuracy, step):
        curve = {"valid_accuracy": Series(np.array([step]), np.array([0.7]))}
        return SimpleNamespace(records={"test": SimpleNamespace(accuracy=accuracy)}, curve=curve)

    comparison = SimpleNamespace(solved=0.9, half_way=0.7, diverged={})
    seeds = {2: run(0.89, 20), 0: run(0.9, 10), 1: run(1.0, 15)}
    found = solving(comparison, "test", SimpleNamespace(label="rope", runs=seeds))
    assert (found.accuracies, found.take_off, found.rate) == ((0.9, 1.0, 0.89), (10, 15, 20), (2, 3))
    assert found.interval == exact_interval(2, 3)
    assert solving(comparison, "test", SimpleNamespace(runs=seeds | {3: run(None, 5)})) is None
    assert solving(SimpleNamespace(solved=None, half_way=0.7), "test", SimpleNamespace(runs=seeds)) is None


def test_take_off_is_the_first_step_that_reaches_an_accuracy():
    curve = {"valid_accuracy": Series(np.array([2, 4, 6]), np.array([0.4, 0.6, 0.5]))}
    assert take_off(curve, 0.4) == 2
    assert take_off(curve, 0.5) == 4
    assert take_off(curve, 0.7) is None
    assert take_off({}, 0.7) is None


def test_each_split_is_solved_by_its_own_answers():
    splits = {"test": SimpleNamespace(accuracy=1.0), "dense": SimpleNamespace(accuracy=0.0)}
    model = SimpleNamespace(label="rope", runs={0: SimpleNamespace(records=splits, curve={})})
    comparison = SimpleNamespace(solved=0.9, half_way=0.7, diverged={})
    assert [solving(comparison, split, model).rate for split in ("test", "dense")] == [(1, 1), (0, 1)]
