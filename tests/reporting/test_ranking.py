"""Mean ranks over data sets and their critical difference."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from report_support import make_run, report_task, rows_of, undrawn  # noqa: F401
from scipy import stats

from bearings.reporting import ranking as module
from bearings.reporting.ranking import Ranking, ranked, ranking_of, ranking_plot, ranking_table


def ranking(ranks):
    ranks = np.array(ranks, float)
    return Ranking(tuple("abcdefghij"[: len(ranks)]), tuple(map(str, range(ranks.shape[1]))), ranks)


@pytest.mark.parametrize(("models", "sets"), [(3, 2), (3, 3), (3, 4), (4, 3)])
def test_critical_difference_is_that_of_all_orders(models, sets):
    places = range(1, models + 1)
    orders = list(itertools.permutations(places))
    totals = np.array([np.sum(each, 0) for each in itertools.product(orders, repeat=sets)])
    widths = np.ptp(totals, axis=1) / sets
    expected = [width for width in np.unique(widths) if (widths >= width).mean() <= 0.05]
    found = ranking([[place] * sets for place in places]).critical
    assert found == (pytest.approx(expected[0]) if expected else None)


def test_critical_difference_is_that_of_nemenyi_with_many_data_sets():
    models, sets = 6, 60
    expected = stats.studentized_range.ppf(0.95, models, np.inf) / np.sqrt(2) * np.sqrt(models * 7 / (6 * sets))
    assert ranking([[place] * sets for place in range(1, 7)]).critical == pytest.approx(expected, rel=0.03)


def test_one_data_set_has_no_significant_difference():
    """Whatever the number of models: all orders of 54 could not be tried."""
    assert ranking([[place] for place in range(1, 11)]).critical is None
    assert Ranking(tuple(map(str, range(54))), ("x",), np.arange(1.0, 55.0)[:, None]).critical is None


def test_tied_scores_share_a_rank():
    """Two of three models that are always equal leave three orders, of which chance repeats one more often."""
    assert ranking([[1.5] * 3, [1.5] * 3, [3] * 3]).critical is None
    assert ranking([[1] * 3, [2] * 3, [3] * 3]).critical == 2
    assert ranking([[1.5, 1, 1, 1], [1.5, 2, 2, 2], [3] * 4]).critical == 15 / 8  # as all 3 x 6^3 orders give


def test_groups_are_the_largest_without_a_significant_difference():
    found = ranking([[1] * 12, [2] * 12, [3] * 12, [4] * 12])
    assert 1 < found.critical < 2
    assert found.groups == [(0, 1), (1, 2), (2, 3)]
    assert found.finding == "Lowest mean rank: a, 1.00. Not significantly higher: b."
    assert ranking([[1] * 3, [2, 2, 3], [3, 3, 2]]).groups == [(0, 2)]
    apart = ranking([[1] * 40, [2] * 40, [3] * 40])
    assert apart.groups == []
    lowest = ranking([[1] * 40, [2, 3] * 20, [3, 2] * 20])
    assert lowest.groups == [(1, 2)]
    assert lowest.finding.endswith("higher: none.")


def test_a_difference_that_is_exactly_the_critical_one_is_significant():
    """1.5 here, but the mean of the first and 1.5 add up to more than the mean of the last by rounding."""
    found = ranking([[1, 1, 1, 1, 1, 2], [2, 2, 2, 3, 3, 1], [3, 3, 3, 2, 2, 3]])
    assert found.critical == 1.5
    assert found.groups == [(0, 1), (1, 2)]


def scores(domain, splits=("test",), split="test", slug=None, nats=(1, 2, 3), **given):
    """Scores of three models on a data set, the first with the lowest nats."""
    models = [SimpleNamespace(label=label, encoding=label, model={}) for label in "abc"]
    place = {"name": slug or domain, "slug": slug or domain, "domain": domain, "splits": splits, "chosen": models}
    comparison = SimpleNamespace(**place, solved=None, copies={})
    score = {"comparison": comparison, "split": split, "chosen": True, "pooled": 0} | given
    return [
        SimpleNamespace(contestant=model, nats=SimpleNamespace(value=value), **score)
        for model, value in zip(models, nats, strict=True)
    ]


def test_scores_that_are_ranked():
    """On the first test split, of domains with one comparison, with the chosen rate and without pooling."""
    places = [scores(domain, ("test", "late")) for domain in ("jsb", "maestro", "text")]
    last_first = {"nats": (3, 2, 1)}
    left_out = [
        scores("jsb", ("test", "late"), "late", **last_first),
        scores("maestro", pooled=2, **last_first),
        scores("text", chosen=False, **last_first),
        *(scores("genome", slug=slug, **last_first) for slug in ("genome", "genome-2")),
    ]
    found = ranking_of([score for each in [*places, *left_out] for score in each])
    assert (found.models, found.sets, found.means.tolist()) == (("a", "b", "c"), ("jsb", "maestro", "text"), [1, 2, 3])
    assert ranking_of(places[0]) is None


def test_the_only_model_of_an_encoding_is_named_by_the_encoding():
    places = [scores(domain) for domain in ("jsb", "maestro", "text")]
    places[0][0].contestant.label, places[0][0].contestant.model = "a, option=1", {"options": {"option": 1}}
    assert ranking_of([score for each in places for score in each]).models == ("a", "b", "c")


def test_report_ranks_models_that_all_domains_have(tmp_path, report):
    domains = {"jsb": (), "maestro": (), "genome": (), "text": ()}
    for domain in domains:
        for encoding in ("rope", "pope", "path"):
            make_run(tmp_path / "runs", encoding, 0, domain=domain)
    make_run(tmp_path / "runs", "nope", 0)
    folder, _ = report()
    rows = rows_of(folder / "tables" / "across-ranking.csv")
    assert {*rows} == {"rope", "pope", "path"}
    assert (folder / "plots" / "across-ranking.svg").exists()
    drawn = rows_of(folder / "plots" / "across-ranking.csv")
    assert {model: float(row["critical_difference"]) for model, row in drawn.items()} == dict.fromkeys(rows, 1.75)
    assert "lacks them: nope." in (folder / "report.md").read_text()


@pytest.fixture(name="tied")
def tied_ranking():
    """`b` is the lowest of three models on five data sets, and the other two differ on the last only."""
    return ranked({name: {"a": 2 + (name == "z"), "b": 1, "c": 2} for name in "vwxyz"})


def test_models_with_equal_scores_have_the_mean_of_their_ranks(tied):
    assert dict(zip(tied.models, tied.ranks.tolist(), strict=True)) == {
        "b": [1, 1, 1, 1, 1],
        "c": [2.5, 2.5, 2.5, 2.5, 2],
        "a": [2.5, 2.5, 2.5, 2.5, 3],
    }


def test_the_table_has_mean_ranks_ranks_and_the_critical_difference(tied):
    table = ranking_table(tied)
    assert [row["model"] for row in table.rows] == ["b", "c", "a"]
    assert [row["mean_rank"] for row in table.rows] == pytest.approx([1, 2.4, 2.6])
    assert [table.rows[1][name] for name in tied.sets] == [2.5, 2.5, 2.5, 2.5, 2]
    assert f"significant from {tied.critical:.2f} on" in table.notes[0]


def test_the_plot_has_a_row_per_model_and_shades_ranks_that_are_not_significantly_higher(tmp_path, monkeypatch):
    """The second mean differs from the lowest by exactly the critical difference."""
    found, figures, write = ranking([[1, 1, 1, 1, 1, 2], [2, 2, 2, 3, 3, 1], [3, 3, 3, 2, 2, 3]]), [], module.write_plot
    monkeypatch.setattr(module, "write_plot", lambda figure, *rest: figures.append(figure) or write(figure, *rest))
    ranking_plot(found, tmp_path)
    (axes,) = figures[0].axes
    names = {tick: label.get_text() for tick, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)}
    dots = next(line for line in axes.lines if line.get_marker() == "o")
    drawn = {names[height]: mean for mean, height in zip(*dots.get_data(), strict=True)}
    assert drawn == pytest.approx(dict(zip(found.models, found.means, strict=True)))
    first, last = axes.patches[0].get_extents().transformed(axes.transData.inverted()).intervalx
    assert first == pytest.approx(found.means[0])
    assert first < last < found.means[0] + found.critical
    rows = rows_of(tmp_path / "across-ranking.csv")
    assert [float(rows[model]["mean"]) for model in found.models] == pytest.approx(found.means)


@pytest.mark.usefixtures("undrawn")
def test_tasks_with_right_answers_are_left_out_even_if_answers_were_not_counted(tmp_path, report):
    for domain in ("jsb", "maestro", "genome", "text"):
        for encoding in ("rope", "pope", "path"):
            make_run(tmp_path / "runs", encoding, 0, domain=domain)
    for encoding in ("rope", "pope", "path"):
        make_run(tmp_path / "runs", encoding, 0, domain="flip_flop", units=("answer",))
    folder, _ = report()
    rows = rows_of(folder / "tables" / "across-ranking.csv")
    assert {*rows["rope"]} == {"model", "mean_rank", "jsb", "maestro", "genome", "text"}


@pytest.mark.usefixtures("undrawn")
def test_a_model_has_the_same_name_where_other_settings_of_its_encoding_are_compared(tmp_path, report):
    """Learning rates of which the best is chosen, and an encoding in two settings."""
    for domain in ("jsb", "maestro", "genome", "text"):
        for encoding in ("rope", "pope", "path"):
            make_run(tmp_path / "runs", encoding, 0, domain=domain)
    make_run(tmp_path / "runs", "pope", 0, "optimizer.learning_rate=2e-3", domain="jsb")
    make_run(tmp_path / "runs", "rope", 0, "encoding.randomise=512", domain="text")
    folder, _ = report()
    assert {*rows_of(folder / "tables" / "across-ranking.csv")} == {"rope", "pope", "path"}
    assert "lacks them: rope (randomise=512)." in (folder / "report.md").read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_model_with_several_names_is_ranked_once(tmp_path, report):
    for domain in ("jsb", "maestro", "genome", "text"):
        for encoding in ("rope", "pope", "sliding_window", "local_global"):
            make_run(tmp_path / "runs", encoding, 0, domain=domain)
    folder, _ = report()
    assert {*rows_of(folder / "tables" / "across-ranking.csv")} == {"rope", "pope", "sliding_window"}


@pytest.mark.usefixtures("undrawn")
def test_a_domain_with_few_models_does_not_prevent_the_ranking(tmp_path, report):
    for domain in ("jsb", "maestro", "genome", "text"):
        for encoding in ("rope", "pope") if domain == "text" else ("rope", "pope", "path"):
            make_run(tmp_path / "runs", encoding, 0, domain=domain)
    folder, _ = report()
    row = rows_of(folder / "tables" / "across-ranking.csv")["rope"]
    assert {"jsb", "maestro", "genome"} <= row.keys()
    assert "text" not in row


def test_what_is_found_names_few_models_with_settings_in_parentheses():
    names = ("rope, randomise=512", *"bcdefghijklmnop")
    found = Ranking(names, ("x",), np.arange(1.0, 17.0)[:, None])
    assert found.finding.startswith("Lowest mean rank: rope (randomise=512), 1.00. Not significantly higher: b, c, ")
    assert found.finding.endswith("i and 7 more.")
    assert Ranking(names[:10], ("x",), np.arange(1.0, 11.0)[:, None]).finding.endswith(": b, c, d, e, f, g, h, i, j.")
