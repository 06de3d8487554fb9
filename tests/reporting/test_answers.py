"""The results of a report in words, for every verdict, and which samples a page shows."""

import io
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from report_support import make_run

from bearings.core.terminal import PlainConsole
from bearings.core.words import signed
from bearings.reporting.answers import answers
from bearings.reporting.reading import read_study
from bearings.reporting.samples import distinct, samples_of
from bearings.reporting.scores import Score, study_scores
from bearings.reporting.solving import Solving
from bearings.reporting.statistics import Estimate, difference
from bearings.reporting.tables import Table, p_value, wrong
from bearings.studying.outcomes import rows_of


def contestant(label, seeds):
    return SimpleNamespace(label=label, encoding=label, runs=dict.fromkeys(range(seeds)))


def score(change, seeds=3, clusters=40, margin=0.01, **given):
    """A model whose nats/token are 2 + `change`, against a reference of 2."""
    random = np.random.default_rng(0)
    noise = 0.01 * random.normal(size=(seeds, 1)) * np.ones(clusters) + 0.01 * random.normal(size=(seeds, clusters))
    reference = np.full((seeds, clusters), 2.0)
    found = difference(reference + change + noise, reference, np.ones(clusters), margin)
    pope, rope = contestant("pope", seeds), contestant("rope", seeds)
    comparison = SimpleNamespace(name="jsb", splits=["test"], chosen=[pope, rope], copies={})
    p, equivalence = found.deciding
    given = {"holm_p": p, "holm_equivalence_p": equivalence, "difference": found} | given
    return Score(comparison, "test", pope, Estimate(2.0 + change, None), {}, rope, **given)


SOLVED = Solving((1.0, 1.0, 1.0), (3, 3), (0.3, 1.0), (1, 1, 1))
FAILED = Solving((0.1, 0.1, 0.1), (0, 3), (0.0, 0.7), (None, None, None))
FEWER = Solving((1.0,) * 4 + (0.1,) * 16, (4, 20), (0.06, 0.44), (1,) * 4 + (None,) * 16)
RATES = {"difference": None, "solving": SOLVED, "theirs": FAILED}
SEEN = r"it solves .* 3 of 3 seeds \(95 % interval 30 to 100 %\), rope with 0 of 3 \(0 to 70 %\)"
UNDECIDED = "pope against rope is undecided: "
REFUSED = "pope and rope cannot be compared "
CASES = [
    (score(-0.25), r"pope is lower than rope by 12\.\d % \(1\d\.\d to 1\d\.\d\), 3 seeds"),
    (score(0.25), r"pope is higher than rope by 12\.\d % \(1\d\.\d to 1\d\.\d\), 3 seeds"),
    (score(-0.25, margin=1.0), r"pope is lower than rope by .* 3 seeds, within the margin of 1 nats/token"),
    (
        score(0, margin=0.5),
        r"pope and rope are equivalent within the margin of 0.5 nats/token: measured difference \S+ % .*, 3 seeds",
    ),
    (score(0, margin=1e-4), UNDECIDED + r"measured difference \S+ % \(-\S+ to \+\S+\), 3 seeds, adjusted p 0\.\d+"),
    (score(-0.25, seeds=2), REFUSED + r"\(a test needs 3 seeds of each\): .* \(.*\), over clusters only, 2 seeds"),
    (score(-0.25, clusters=5), REFUSED + r"\(a test needs 10 clusters of similar size\): .* -\S+ %, 3 seeds"),
    (score(0, holm_p=0.01, **RATES), f"pope solves more often than rope: {SEEN}"),
    (score(0, holm_p=0.01, **RATES | {"theirs": FEWER}), "pope solves more often than rope: .* rope with 4 of 20 .*"),
    (score(0, holm_p=0.1, **RATES), rf"{UNDECIDED}{SEEN}, adjusted p 0\.100"),
    (replace(score(0), against=None, difference=None), "no differences, because there is no run of rope .*"),
]


@pytest.mark.parametrize(("given", "clause"), CASES)
def test_verdicts_in_words(given, clause):
    (answer,) = answers([given], "rope")
    assert re.fullmatch(clause, answer.clauses[0]), answer.clauses[0]
    assert answer.sentence == f"jsb: {answer.clauses[0]}."


def test_numbers_that_round_to_zero_have_no_sign():
    found = score(0, margin=0.5)
    found = replace(found, difference=replace(found.difference, value=-1e-6, both=(-2e-6, 0.02)))
    (answer,) = answers([found], "rope")
    assert answer.clauses[0].endswith(": measured difference 0.00 % (0.00 to +1.00), 3 seeds")
    assert [signed(value, 2) for value in (-0.004, 0.004, -0.006, 0.006)] == ["0.00", "0.00", "-0.01", "+0.01"]


def test_settings_that_are_pooled_or_not_chosen_are_left_out():
    chosen = score(-0.25)
    reference = replace(chosen, contestant=chosen.against, difference=None)
    scores = [reference, replace(chosen, part=True), replace(chosen, chosen=False)]
    assert answers(scores, "rope") == []
    assert answers([reference], "rope")[0].clauses == ["only rope, nothing to compare it with"]
    large = replace(reference, contestant=contestant("rope, mlp_hidden=96", 3))
    large = replace(large, against=large.contestant)
    two = "only rope and rope (mlp_hidden=96), nothing to compare them with"
    assert answers([reference, large], "rope")[0].clauses == [two]


def test_models_without_a_reference_are_listed():
    alone = replace(score(0), against=None, difference=None)
    others = [replace(alone, contestant=contestant(name, 3)) for name in ("pope", "path", "nope")]
    assert answers([alone], "rope")[0].clauses[0].endswith("to compare pope with")
    assert answers(others, "rope")[0].clauses[0].endswith("to compare pope, path and nope with")
    others = [replace(alone, contestant=contestant(f"pope, heads=2, base={base}", 3)) for base in (2, 4)]
    named = "to compare pope (heads=2, base=2) and pope (heads=2, base=4) with"
    assert answers(others, "rope")[0].clauses[0].endswith(named)


def test_without_a_reference_models_are_next_to_the_published_errors():
    alone = replace(score(0), against=None, difference=None)
    runs = SimpleNamespace(published={"test": "28.50 %"}), SimpleNamespace(published={})
    given = Solving((0.0895, 0.25, 0.9), (0, 3), (0.0, 0.7076), (None, None, None)), SOLVED
    models = [
        replace(alone, contestant=SimpleNamespace(label=name, encoding=name, any_run=run), solving=solving)
        for name, run, solving in zip(("pope", "path"), runs, given, strict=True)
    ]
    assert answers(models, "rope")[0].clauses == [
        "pope gives 10.00 to 91.05 % wrong answers (published: 28.50 %) and solves the task with 0 of 3 seeds (95 % "
        "interval 0 to 71 %)",
        "path gives 0 % wrong answers and solves the task with 3 of 3 seeds (95 % interval 30 to 100 %)",
    ]


@pytest.mark.parametrize(
    ("accuracy", "text"), [(1.0, "0"), (1 - 1e-5, "<0.01"), (1 - 6e-5, "0.01"), (0.75, "25.00"), (0.0, "100.00")]
)
def test_only_no_error_at_all_is_written_as_zero(accuracy, text):
    assert wrong(accuracy) == text


def test_without_other_models_the_reference_s_errors_are_named():
    run = SimpleNamespace(published={})
    alone = replace(score(0), contestant=SimpleNamespace(label="rope", encoding="rope", any_run=run), solving=SOLVED)
    alone = replace(alone, against=alone.contestant, difference=None)
    clause = "rope gives 0 % wrong answers and solves the task with 3 of 3 seeds (95 % interval 30 to 100 %)"
    assert answers([alone], "rope")[0].clauses == [clause]


def test_a_reference_with_another_rate_than_the_chosen_one_is_not_said_to_be_missing():
    alone = replace(score(0), against=None, difference=None)
    other = replace(alone, contestant=contestant("rope, learning_rate=0.1", 3), chosen=False)
    (clause,) = answers([alone, other], "rope, learning_rate=0.1")[0].clauses
    why = "the rate of rope (learning_rate=0.1) is not the chosen one: pope cannot be compared"
    assert clause == f"no differences, because {why}"


def test_models_with_enough_seeds_of_which_few_are_the_same():
    given = score(-0.25, seeds=2)
    for each in (given.contestant, given.against):
        each.runs = dict.fromkeys(range(4))
    (clause,) = answers([given], "rope")[0].clauses
    assert clause.startswith("pope and rope cannot be compared (a test needs 3 seeds that both have)")


def test_settings_of_models_with_one_encoding_are_in_parentheses():
    given = score(0.25)
    models = [contestant(f"pope, {settings}", 3) for settings in ("base=2, heads=3", "base=4")]
    for each in models:
        each.encoding = "pope"
    given.comparison.chosen = models
    (clause,) = answers([replace(given, contestant=models[0])], "rope")[0].clauses
    assert clause.startswith("pope (base=2, heads=3) is higher than rope by 12.")


def test_of_many_encodings_undecided_ones_are_counted():
    lower, undecided = score(-0.25), score(0, margin=1e-4)
    (answer,) = answers([undecided] * 11 + [lower], "rope")
    first, second = answer.clauses
    assert first.startswith("pope is lower than rope by")
    assert second.startswith("11 are not decided; the lowest is pope: measured difference")
    (answer,) = answers([lower] * 2 + [undecided] * 7, "rope")
    assert len(answer.clauses) == 3


def test_of_many_encodings_those_with_the_same_verdict_share_a_clause():
    shifts = [-0.3, -0.2, -0.1, *[0.001] * 4, 0.2, 0.3]
    (answer,) = answers([score(shift) for shift in shifts], "rope")
    lower, equal, higher, highest = answer.clauses
    amount = r"\d+\.\d % \(\S+ to \S+\), 3 seeds"
    assert re.fullmatch(rf"3 are lower than rope: from pope, by {amount}, to pope, by {amount}", lower)
    assert equal.startswith(
        "4 are equivalent to rope within the margin of 0.01 nats/token: from pope, measured difference "
    )
    assert higher.startswith("pope is higher than rope by ")
    assert highest.startswith("pope is higher than rope by ")
    (answer,) = answers([score(-0.3, margin=1.0)] * 9, "rope")
    (lower,) = answer.clauses
    assert lower.startswith("9 are lower than rope, within the margin of 1 nats/token: from pope, by ")


def test_of_many_encodings_those_that_solve_a_task_are_listed():
    named = [contestant(f"e{number}", 3) for number in range(11)]
    rates = [SOLVED, replace(FAILED, rate=(1, 3)), *[FAILED] * 9]
    place = SimpleNamespace(name="mqrar", splits=["test"], chosen=named, copies={})
    scores = [
        replace(
            score(0), contestant=each, comparison=place, against=named[-1], **(RATES | {"solving": rate}), holm_p=0.5
        )
        for each, rate in zip(named, rates, strict=True)
    ]
    scores[-1] = replace(scores[-1], theirs=None, holm_p=None)
    (answer,) = answers(scores, "rope")
    assert answer.sentence == (
        "mqrar: solved with every seed by e0 (95 % interval 30 to 100 %); with some seeds by e1 (1 of 3, 0 to 70 %); "
        "with no seed by 9 encodings (each: 95 % interval 0 to 70 %); "
        "10 differences from e10 are undecided (adjusted p at least 0.500)."
    )


def test_of_several_comparisons_each_has_one_clause_about_what_is_solved():
    places = []
    for name in ("a5 (layers=1)", "a5 (layers=2)"):
        named = [contestant(f"e{number}", 3) for number in range(4)]
        place = SimpleNamespace(name=name, splits=["test"], chosen=named, copies={})
        for each, p in zip(named, (0.5, 0.25, None, None), strict=True):
            given = {**RATES, "theirs": None if each is named[-1] else FAILED, "solving": FAILED, "holm_p": p}
            places.append(replace(score(0), contestant=each, comparison=place, against=named[-1], **given))
    first, second = answers(places, "e3")
    said = (
        "solved with no seed by e3, e0, e1 and e2 (each: 95 % interval 0 to 70 %); "
        "2 differences from e3 are undecided (adjusted p at least 0.250); "
        "1 cannot be compared with e3 (too few seeds)"
    )
    assert (first.name, first.clauses) == ("a5 (layers=1)", [said])
    assert second.clauses == [said]
    (alone,) = answers(places[:4], "e3")
    assert len(alone.clauses) == 3


def test_undecided_differences_name_the_reference_of_each_model():
    """As with model.mlp_hidden=64,128, where each size has its own."""
    named = [contestant(f"{name}, mlp_hidden={size}", 3) for name in ("rope", "nope") for size in (64, 128)]
    for each in named:
        each.encoding = each.label.partition(",")[0]
    place = SimpleNamespace(name="a5", splits=["test"], chosen=named, copies={})
    given = {**RATES, "solving": FAILED, "holm_p": 0.5, "comparison": place}
    scores = [replace(score(0), **given, contestant=named[2 + i], against=named[i]) for i in (0, 1)] * 2
    (answer, _) = answers([*scores, replace(scores[0], split="valid")], "rope")
    assert "4 differences from rope (mlp_hidden=64) and rope (mlp_hidden=128) are undecided" in answer.sentence


def test_terminal_table_fits_80_columns():
    columns = {
        "domain": ("comparison", str),
        "model": ("model", str),
        "nats": ("nats/token", "{:.4f}".format),
        "difference": ("difference from rope", "{:+.4f}".format),
        "solved": ("solved", str),
        "p": ("Holm p", p_value),
        "verdict": ("verdict", str),
    }
    row = {"domain": "indirect_indexing-2", "model": "path, learning_rate=0.001", "nats": 0.7562, "difference": -0.04}
    row |= {"solved": "1 of 3", "p": 0.1, "verdict": "one cluster dominates"}
    console = PlainConsole(width=80, file=io.StringIO())
    console.print(Table("all", "All comparisons", columns, [row], []).on_console(groups=("domain",)))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert [lines[4].strip(), lines[6].strip()] == ["indirect_indexing-2", "dominates"]
    assert lines[5].split()[-8:] == ["0.7562", "-0.0400", "1", "of", "3", "0.100", "one", "cluster"]


def samples(tmp_path, files):
    path = make_run(tmp_path / "runs", "rope", 0)
    for name, text in files.items():
        (path / "samples" / name).write_text(text)
    (comparison,) = read_study([tmp_path / "runs"]).comparisons
    return distinct(samples_of(*comparison.contestants))


def test_identical_samples_are_shown_once_and_wrong_answers_are_marked(tmp_path):
    files = {"answered-0.txt": "abXd", "example-0.txt": "abcd", "answered-1.txt": "efg", "example-1.txt": "efg"}
    wrong, right, example = samples(tmp_path, files)
    assert wrong.pieces == [("", "ab"), ("wrong", "X"), ("", "d")]
    assert wrong.marked == "Underlined: wrong answers."
    assert (right.name, right.same, right.marked) == ("answered-1.txt", ["example-1.txt (rope, seed 0)"], "")
    assert example.text == "abcd"


def test_prompts_are_marked(tmp_path):
    files = {
        "seed0-my-0.txt": "Once upon",
        "seed0-my-prompt.txt": "Once\n",
        "seed0-dna-0.fa": ">a\nACGT",
        "other.txt": "x",
    }
    files["seed0-dna-prompt.fa"] = ">a\nAC"
    plain, bases, text = samples(tmp_path, files)
    assert text.pieces == [("prompt", "Once"), ("", " upon")]
    assert (bases.prompted, plain.marked) == (2, "")
    assert bases.marked == text.marked == "Shaded: the prompt. The model wrote the rest."


def test_models_with_too_few_seeds_share_a_clause_next_to_others():
    tested, few = score(-0.25), [score(change, seeds=1) for change in (-0.2, 0.3)]
    comparison = tested.comparison
    named = [
        replace(each, comparison=comparison, contestant=contestant(name, 1))
        for each, name in zip(few, "ab", strict=True)
    ]
    comparison.chosen += [each.contestant for each in named]
    reference = replace(tested, contestant=tested.against, against=tested.against, difference=None)
    (answer,) = answers([reference, tested, *named], "rope")
    assert answer.clauses[0].startswith("pope is lower than rope")
    assert re.fullmatch(
        r"a \(-\d+\.\d %\) and b \(\+1\d\.\d %\) cannot be compared with rope \(a test needs 3 seeds .*\)",
        answer.clauses[1],
    )


def test_patterns_that_differ_in_unused_layers_are_one_model(tmp_path):
    """A pattern with a full layer after five or three others is none in two layers, but is in six."""
    for layers, folder in ((2, "few"), (6, "many")):
        for encoding in ("rope", "sliding_window", "local_global", "rnope_swa"):
            for seed in range(3):
                make_run(tmp_path / folder, encoding, seed, f"model.layers={layers}")
    study = read_study([tmp_path / "few"])
    assert study.comparisons[0].copies == {"local_global": "sliding_window", "rnope_swa": "sliding_window"}
    (answer,) = answers(study_scores(study, "rope"), "rope")
    assert answer.clauses[-1].startswith("local_global and rnope_swa are the same model as sliding_window with this ")
    marked = {row["model"] for row in rows_of(study_scores(study, "rope")) if row.get("copy")}
    assert marked == {"local_global", "rnope_swa"}
    assert read_study([tmp_path / "many"]).comparisons[0].copies == {}


def test_patterns_that_repeat_the_same_layers_are_one_model(tmp_path):
    for layers in ("[rope]", "[{rope: {}},rope]", "[nope,rope]"):
        make_run(tmp_path, "pattern", 0, f"encoding.layers={layers}")
    (comparison,) = read_study([tmp_path]).comparisons
    assert comparison.copies == {'pattern, layers=[{"rope": {}}, "rope"]': 'pattern, layers=["rope"]'}


def test_the_interval_of_several_solve_rates_is_that_of_the_fewest_seeds():
    wide, narrow = replace(FAILED, interval=(0.0, 0.7)), Solving((0.1,) * 20, (0, 20), (0.0, 0.17), (None,) * 20)
    named = [contestant(f"e{number}", 3) for number in range(10)]
    place = SimpleNamespace(name="mqrar", splits=["test"], chosen=named, copies={})
    given = RATES | {"comparison": place, "against": named[0], "holm_p": 0.5}
    scores = [
        replace(score(0), contestant=each, **given | {"solving": rate})
        for each, rate in zip(named, [narrow, wide, *[narrow] * 8], strict=True)
    ]
    scores[0] = replace(scores[0], theirs=None, holm_p=None)
    (clause,) = answers(scores, "e0")[0].clauses
    assert "with no seed by 10 encodings (each: 95 % interval 0 to 70 %)" in clause


def test_a_test_needs_more_seeds_if_one_of_the_two_models_has_too_few():
    given = score(-0.25, seeds=2)
    for mine, theirs, needed in ((2, 3, "of each"), (3, 2, "of each"), (3, 3, "that both have")):
        given.contestant.runs, given.against.runs = dict.fromkeys(range(mine)), dict.fromkeys(range(3 - theirs, 3))
        (clause,) = answers([given], "rope")[0].clauses
        assert f"(a test needs 3 seeds {needed})" in clause


def test_splits_have_results_of_their_own():
    given = score(-0.25)
    given.comparison.splits = ["test", "dense"]
    found = answers([given, replace(given, split="dense")], "rope")
    assert [(each.name, len(each.clauses)) for each in found] == [("jsb, test", 1), ("jsb, dense", 1)]


def test_published_errors_are_those_of_the_split():
    run = SimpleNamespace(published={"test": "28.50 %", "dense": "0.1 %"})
    alone = replace(score(0), contestant=SimpleNamespace(label="rope", encoding="rope", any_run=run), solving=FAILED)
    alone = replace(alone, against=alone.contestant, difference=None, split="dense")
    assert "90.00 % wrong answers (published: 0.1 %) and" in answers([alone], "rope")[0].clauses[0]


def test_a_dominating_cluster_is_named_as_the_cause():
    (answer,) = answers([score(0, margin=1e-4, hinges=True)], "rope")
    assert answer.clauses[0].startswith("pope against rope is undecided, because one test cluster dominates: measured ")


def test_a_shared_clause_runs_from_the_largest_difference_to_the_smallest():
    levels = [-0.1, -0.3, *[-0.2] * 7]
    scores = []
    for number, level in enumerate(levels):
        each = score(level)
        each.comparison.chosen = [model := contestant(f"e{number}", 3)]
        scores.append(replace(each, contestant=model))
    (answer,) = answers(scores, "rope")
    assert re.fullmatch(r"9 are lower than \S+: from e1, by 1\d\.\d % .*, to e0, by [45]\.\d % .*", answer.clauses[0])
