"""The table of many models on several tasks."""

from dataclasses import replace
from types import SimpleNamespace

from bearings.reporting.scores import Score
from bearings.reporting.solving import Solving
from bearings.studying.solved import solved_table

SOLVED = Solving((1.0, 0.995, 0.5), (2, 3), (0.1, 1.0), (1, 1, None))
FAILED = Solving((0.1, 0.5, 0.75), (0, 3), (0.0, 0.7), (None, None, None))
NAMES = ["rope", "path", "irope", "mine", *(f"e{number}" for number in range(8))]


def scores(names, tasks=(("flip_flop", ("test", "dense")), ("mqrar", ("test",))), published=None):
    for task, splits in tasks:
        comparison = SimpleNamespace(name=task, splits=splits, solved={"flip_flop": 0.999, "mqrar": 0.9}[task])
        for split in splits:
            for name in names:
                solving = SOLVED if (name, task) == ("path", "mqrar") else FAILED
                run = SimpleNamespace(published={"dense": "0.1 %"} if name == published else {})
                model = SimpleNamespace(label=name, encoding=name, any_run=run)
                yield Score(comparison, split, model, None, {}, None, None, solving)


def test_cells_are_solved_seeds_or_the_median_error():
    table = solved_table([*scores(NAMES)])
    first, second, third, fourth, *_ = table.markdown().splitlines()[2:]
    assert table.markdown().splitlines()[0] == "| encoding | mechanism | flip_flop, test | flip_flop, dense | mqrar |"
    assert first == "| path | reflections | 50.00 % | 50.00 % | 2 of 3 |"
    assert second == "| rope | rotation | 50.00 % | 50.00 % | 50.00 % |"
    assert third == "| irope | layers | 50.00 % | 50.00 % | 50.00 % |"
    assert table.notes[1:] == ["Solved: right answers are at least 99.9 % in flip_flop, 90 % in mqrar."]
    assert fourth == "| mine |  | 50.00 % | 50.00 % | 50.00 % |"


def test_a_task_without_records_counts_as_an_error_of_1():
    found = [each for each in scores(NAMES) if (each.contestant.label, each.comparison.name) != ("path", "mqrar")]
    assert [row["model"] for row in solved_table(found).rows] == [*(name for name in NAMES if name != "path"), "path"]


def test_pooled_scores_are_left_out():
    table = solved_table([*scores(NAMES)])
    pooled = [replace(score, pooled=2, solving=SOLVED) for score in scores(["path"])]
    assert solved_table([*scores(NAMES), *pooled]).rows == table.rows


def test_scores_without_right_answers_are_left_out():
    uncounted = [replace(score, solving=None) for score in scores(["path", "e9"])]
    assert solved_table([*scores(NAMES), *uncounted]).rows == solved_table([*scores(NAMES)]).rows


def test_published_errors_stand_beside_ours():
    lines = solved_table([*scores(NAMES, published="rope")]).markdown().splitlines()
    assert lines[3] == "| rope | rotation | 50.00 % | 50.00 % (0.1 %) | 50.00 % |"
    assert lines[-1] == "- In parentheses: the published error."


def test_few_models_or_a_single_task_have_no_such_table():
    assert solved_table([*scores(NAMES[:4])]) is None
    assert solved_table([*scores(NAMES, [("mqrar", ("test",))])]) is None
    assert solved_table([*scores(NAMES, [("mqrar", ("test",)), ("flip_flop", ("test",))])]) is not None
