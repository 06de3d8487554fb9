"""The page of all studies: what each line and each cell says, for outcomes made by hand."""

from types import SimpleNamespace

import pytest

from bearings.studying.front_page import MOST, front_page
from bearings.studying.outcomes import Outcome, largest


def row(model, percent=None, verdict="undecided", seeds=3, **more):
    nats = 1 + (percent or 0) / 100
    found = {"model": model, "seeds": seeds, "verdict": verdict, "nats_per_token": nats, "flops_per_token": 2e6, **more}
    return found if percent is None else {**found, "difference_percent": percent}


REFERENCE = row("rope", None, "reference", flops_per_token=1e6, tokens_per_s=100.0)


def outcome(*rows, fails=None, missing=0, diverged=0):
    every = [*rows, row("rope", None, "reference", flops_per_token=1e6)]
    return Outcome(every, fails or {}, 9, 2.4, "rope", missing, diverged)


def test_lines_name_what_is_decided_and_count_the_rest():
    others = [row(f"other{n}", n / 10) for n in range(5)]
    page = front_page(
        {"zoo_jsb": outcome(row("pope", -7.26, "lower"), *others, row("nope", 105.0, "higher, within the margin"))}
    )
    line = next(line for line in page.splitlines() if line.startswith("- Bach chorales, small models"))
    assert line.endswith(
        "([zoo_jsb](zoo_jsb/README.md), 3 seeds): lower than rope: pope -7.3 %; not decided: 5 (other0 0.0 %, other1 "
        "+0.1 %, other2 +0.2 %, …); higher: nope +105.0 %."
    )
    assert "9 runs, about 2 minutes of training." in page


def test_a_line_names_the_last_encoding_instead_of_an_ellipsis():
    verdicts = ("undecided", "one cluster dominates", "not enough clusters", "undecided")
    rows = [row(f"other{n}", n / 10, verdict) for n, verdict in enumerate(verdicts)]
    assert "(other0 0.0 %, other1 +0.1 %, other2 +0.2 %, other3 +0.3 %)" in front_page({"jsb_tuned": outcome(*rows)})


def test_without_a_decided_encoding_the_line_says_so():
    page = front_page({"zoo_genome": outcome(row("pope", -0.1, "not enough seeds", seeds=1), missing=2, diverged=1)})
    assert (
        "1 to 3 seeds, 2 runs missing, 1 run diverged): none is lower than rope; too few seeds for a test: pope -0.1 %."
        in page
    )


def test_the_line_names_encodings_that_are_equivalent_to_the_reference():
    rows = row("path", 0.0, "equivalent", margin=0.015), row("pope", -0.1), row("nope", 2.3, "higher")
    line = next(line for line in front_page({"zoo_genome": outcome(*rows)}).splitlines() if "99 windows" in line)
    assert line.endswith(
        "not decided: pope -0.1 %; equivalent within 0.015 nats/token: path 0.0 %; higher: nope +2.3 %."
    )


def test_the_official_split_is_on_the_line_of_the_random_one():
    random, official = outcome(row("pope", -0.9, "lower")), outcome(row("pope", 0.2))
    short = outcome(row("pope", 0.4))
    page = front_page({"maestro_60k": random, "maestro_official": official, "maestro_official_16k": short})
    line = next(line for line in page.splitlines() if line.startswith("- Piano"))
    assert "lower than rope: pope -0.9 %. With the official split ([maestro_official]" in line
    assert "not decided: pope +0.2 %. With 16,000 of the 60,000 steps ([maestro_official_16k]" in line
    assert "| encoding | piano | piano, official split |" in page
    assert "| pope | **-0.9 %** | +0.4 % |" in page
    alone = front_page({"jsb_tuned": random, "maestro_official": official})
    assert "lower than rope: pope -0.9 %.\n- With the official split ([maestro_official]" in alone


def test_a_model_is_named_and_counted_once():
    sets = ("zoo_jsb", "zoo_maestro", "zoo_genome", "zoo_wikitext2")
    models = [row("pope", -2.0), row("sliding_window", -1.0), row("path", 1.0), row("irope", -3.0, copy=True)]
    page = front_page({name: outcome(*models) for name in sets})
    assert "irope" not in page
    assert "not decided: 3 (pope" in page
    assert "| sliding_window | 2.0 |" in page


def test_settings_of_a_model_are_told_from_the_next_model():
    found = outcome(row("path, match_steps=75, distil_steps=75", 1.1), row("fox", 17.9))
    page = front_page({"conversion": found})
    assert "not decided: 2 (path [match_steps=75, distil_steps=75] +1.1 %, fox +17.9 %)." in page


def test_planned_studies_are_listed_with_their_questions():
    page = front_page({"jsb": outcome(row("pope", -7.0, "lower"))}, ["zoo_maestro"])
    assert "\n## Planned studies\n" in page
    assert "- [zoo_maestro](zoo_maestro/study.yaml): Which of the toolkit's encodings model piano performances" in page
    assert " best? 270 runs.\n" in page
    assert "Planned" not in front_page({})


def test_the_largest_comparison_stands_for_a_study():
    contestants = [["rope"], ["rope", "path"], ["rope", "fox"]]
    comparisons = [SimpleNamespace(contestants=each) for each in contestants]
    assert largest(SimpleNamespace(comparisons=comparisons)) == 1


def test_the_table_has_the_encodings_that_most_studies_have():
    many = [row(f"other{n}", float(n)) for n in range(20)]
    fails = {"pope": "256", "other0": "never"}
    page = front_page(
        {
            "zoo_jsb": outcome(*many, row("pope", 30.0, "higher", tokens_per_s=50.0)),
            "jsb": Outcome([row("pope", -7.0, "lower", tokens_per_s=80.0), REFERENCE], {}, 9, 2.4, "rope"),
            "zoo_jsb_length": outcome(row("pope", 1.0), fails=fails),
        }
    )
    assert "1 of 2 keep their loss without an extension: other0." in page
    table = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(table) == 1 + MOST
    assert table[0] == "| encoding | chorales, small | chorales | loss rises at | FLOPs | tokens/s |"
    assert table[1] == "| pope | **+30.0 %** | **-7.0 %** | 256 | 2.00 | 0.80 |"
    assert table[2] == "| rope | reference | reference |  | 1.00 | 1.00 |"
    assert table[3] == "| other0 | 0.0 % |  | never | 2.00 |  |"
    assert "Loss rises at: the shortest context" in page


def test_mean_ranks_are_over_finished_studies_and_order_the_table():
    names = ("fox", "path", "pope", "nope", "rope", *(f"other{n}" for n in range(MOST)))  # best first

    def ranked(order, missing=0):
        rows = [row(name, float(place)) for place, name in enumerate(order)][::-1]
        return Outcome(rows, {}, 9, 2.4, "rope", missing)

    finished = {"zoo_jsb": ranked(names), "zoo_maestro": ranked(names), "zoo_wikitext2": ranked(names)}
    page = front_page({**finished, "zoo_genome": ranked(names[::-1], missing=3), "jsb": outcome(row("nope", 1.0))})
    table = [line.split(" | ")[:2] for line in page.splitlines() if line.startswith("| ")]
    assert table[0] == ["| encoding", "mean rank"]
    assert table[1:] == [[f"| {name}", f"{place}.0"] for place, name in enumerate(names[:MOST], 1)]
    assert "Mean rank: among 17 models in zoo_jsb, zoo_maestro, zoo_wikitext2; 1 is the lowest loss." in page
    page = front_page({"zoo_jsb": ranked(names), "zoo_genome": ranked(names, missing=3)})
    assert "mean rank" not in page


def test_encodings_are_ordered_by_the_test_sets_that_every_seed_solves():
    sets = [("3 of 3", "3 of 3", "0 of 3"), ("2 of 3", "3 of 3", "1 of 3")]
    names = ("fox", "path", "rope")
    rows = [row(name, solved=solved) for place in sets for name, solved in zip(names, place, strict=True)]
    rows += [row("nope", solved="0 of 3"), row("irope", solved="3 of 3", copy=True)]
    page = front_page({"zoo_diagnostics": Outcome(rows, {}, 9, 2.4, "rope")})
    assert "3 seeds): of 2 test sets, every seed solves: path 2, fox 1; rope 0." in page
    page = front_page({"zoo_diagnostics": Outcome([row("rope", solved="3 of 3")], {}, 9, 0.2, "rope")})
    assert "3 seeds): of 1 test set, every seed solves: none; rope 1." in page
    assert "9 runs, about 1 minute of training." in page


def test_a_task_has_the_encodings_that_solve_it_for_each_value_of_its_setting():
    rates = {"layers=1": ("0 of 3", "1 of 3"), "layers=2": ("3 of 3", "2 of 3"), "layers=3": ("3 of 3", "2 of 2")}
    rows = [
        row(name, solved=rate) | {"comparison": layers}
        for layers, given in rates.items()
        for name, rate in zip(("path", "rope"), given, strict=True)
    ]
    page = front_page({"state_tracking_a5": Outcome(rows, {}, 9, 2.4, "rope", 4)})
    assert (
        "- Word problem of A5 ([state_tracking_a5](state_tracking_a5/README.md), 3 seeds, 4 runs missing): encodings "
        "that solve it with every seed: none (layers=1); path (layers=2); path, rope (layers=3).\n"
    ) in page
    task = Outcome([row("rope", solved="0 of 3"), row("irope", solved="3 of 3", copy=True)], {}, 9, 2.4, "rope")
    back = Outcome([row("path", solved="3 of 3") | {"comparison": "back=1"}], {}, 9, 2.4, "rope")
    (line,) = front_page({"indirect_indexing_long": task, "state_tracking_mqrar": back}).splitlines()[4:5]
    assert line.startswith("- Indirect indexing (")
    assert "3 seeds): seeds that solve it: rope 0 of 3. MQRAR" in line
    assert line.endswith(
        "(state_tracking_mqrar/README.md), 3 seeds): encodings that solve it with every seed: path (back=1)."
    )


@pytest.mark.parametrize("found", [{}, *({name: Outcome([], {}, 0, 0.0, "rope")} for name in ("jsb", "zoo_genome"))])
def test_studies_without_records_are_left_out(found):
    assert "Bach" not in front_page(found)
