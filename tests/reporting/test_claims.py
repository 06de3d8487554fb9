"""Claims in a study's list, and the verdicts on its page."""

import re
from types import SimpleNamespace

import pytest
from report_support import lengths, make_run, undrawn  # noqa: F401 (fixtures)

from bearings.core.errors import UserError
from bearings.reporting.claims import MOST_LISTED, Claim, claim_verdicts, claims_table, verdict
from bearings.reporting.reading import read_study
from bearings.reporting.study_list import read_list
from bearings.reporting.tables import Table
from bearings.studying.summary import write_summary

pytestmark = pytest.mark.usefixtures("undrawn")
LISTED = "runs:\n  - experiment=debug seed=0,1,2 encoding=rope,pope\n"
CLAIMED = """claims:
  - {claim: PoPE is better, model: pope, than: rope, split: test}
  - {claim: RoPE holds, model: rope, context: 128}
"""


@pytest.fixture
def folder(tmp_path):
    """Three seeds of RoPE, whose loss rises by half beyond the trained length, and of PoPE, whose loss stays."""
    (tmp_path / "study.yaml").write_text(LISTED + CLAIMED)
    for seed in range(3):
        for encoding, worse in (("rope", 0.5 + 0.01 * seed), ("pope", 0.001 * seed)):
            lengths(make_run(tmp_path / "runs", encoding, seed), worse=worse, forms=("none",))
    return tmp_path


def rows(folder, *claims):
    table = claims_table(read_study([folder]), claims)
    return [] if table is None else table.rows


def test_a_claim_is_shown_refuted_or_undecided_by_its_interval(folder):
    holds, rises, lower, higher = rows(
        folder,
        Claim("holds", "pope", context=128),
        Claim("rises", "rope", context=64),
        Claim("lower", "pope", than="rope", context=128),
        Claim("higher", "rope", than="pope", context=128),
    )
    assert holds["verdict"] == lower["verdict"] == "shown"
    assert rises["verdict"] == higher["verdict"] == "refuted"
    assert holds["measured"] == "+0.10 %"
    assert rises["measured"] == "+51.00 %"
    assert lower["measured"] == "-1.0180 nats/token"
    low, high = map(float, lower["interval"].split(" to "))
    assert low < -1.018 < high < 0
    assert {row["seeds"] for row in (holds, rises, lower, higher)} == {3}


def test_a_loss_cannot_be_claimed_not_to_rise_up_to_the_trained_length(folder):
    assert [row["verdict"] for row in rows(folder, *(Claim(str(at), "rope", context=at) for at in (16, 32)))] == [
        "no scores",
        "no scores",
    ]


def test_rises_of_the_loss_are_compared(folder):
    less, more = rows(folder, Claim("less", "pope", than="rope", times=2), Claim("more", "rope", than="pope", times=2))
    assert (less["measured"], less["verdict"]) == ("-50.90 points", "shown")
    assert (more["measured"], more["verdict"]) == ("+50.90 points", "refuted")
    assert rows(folder, Claim("none", "pope", than="rope", times=99)) == [{"claim": "none", "verdict": "no scores"}]


def test_the_split_of_a_claim_is_scored(folder):
    (row,) = rows(folder, Claim("better", "pope", than="rope", split="test"))
    study = read_study([folder])
    nats = {
        each.label: [run.records["test"].nats_per_token for run in each.runs.values()]
        for each in study.comparisons[0].contestants
    }
    assert float(row["measured"].split()[0]) == pytest.approx((sum(nats["pope"]) - sum(nats["rope"])) / 3, abs=1e-4)


@pytest.mark.parametrize(
    ("seeds", "solved", "measured", "verdicts"),
    [
        (2, 2, "solved by 2 of 2 and 0 of 2, p 0.125", ("not enough seeds", "not enough seeds")),
        (4, 2, "solved by 2 of 4 and 0 of 4, p 0.179", ("undecided", "undecided")),
        (4, 4, "solved by 4 of 4 and 0 of 4, p 0.008", ("shown", "refuted")),
    ],
)
def test_of_tasks_with_right_answers_solve_rates_are_compared(tmp_path, seeds, solved, measured, verdicts):
    (tmp_path / "study.yaml").write_text(LISTED)
    for seed in range(seeds):
        for encoding, accuracy in (("rope", 0.5), ("pope", 1.0 if seed < solved else 0.5)):
            make_run(tmp_path / "runs", encoding, seed, domain="indirect_indexing", correct=accuracy)
    claims = [Claim("more", a, than=b, split="test", published=-1.8) for a, b in (("pope", "rope"), ("rope", "pope"))]
    found = rows(tmp_path, *claims)
    assert found[0]["measured"] == measured
    assert tuple(row["verdict"] for row in found) == verdicts
    assert all("interval" not in row for row in found)


def task(**solved):
    """A task that the models solve with the first so many of all their seeds."""

    def run(accuracy):
        return SimpleNamespace(records={"test": SimpleNamespace(accuracy=accuracy)}, curve={})

    models = [
        SimpleNamespace(label=label, runs={seed: run(float(seed < first)) for seed in range(seeds)})
        for label, (first, seeds) in solved.items()
    ]
    return SimpleNamespace(name="task", solved=0.9, half_way=0.5, splits=["test"], contestants=models, diverged={})


@pytest.mark.parametrize(
    ("pope", "rope", "seeds", "verdicts"),
    [
        ((3, 3), (4, 20), "3 and 20", ("shown", "refuted")),
        ((3, 4), (0, 4), 4, ("undecided", "undecided")),  # p 0.07
        ((3, 3), (0, 2), "3 and 2", ("not enough seeds", "not enough seeds")),
    ],
)
def test_solve_rates_of_unequal_numbers_of_seeds_are_compared(pope, rope, seeds, verdicts):
    claims = [Claim("a", "pope", than="rope", split="test"), Claim("b", "rope", than="pope", split="test")]
    found = claims_table(SimpleNamespace(comparisons=[task(pope=pope, rope=rope)]), claims).rows
    assert tuple(row["verdict"] for row in found) == verdicts
    assert found[0]["seeds"] == seeds


def test_of_a_task_that_a_model_was_not_scored_on_there_are_no_scores():
    comparison = task(pope=(3, 3), rope=(0, 3))
    comparison.contestants[1].runs[2].records.clear()
    (row,) = claims_table(
        SimpleNamespace(comparisons=[comparison]), [Claim("a", "pope", than="rope", split="test")]
    ).rows
    assert row["verdict"] == "no scores"


def test_claims_with_a_context_are_about_the_first_split(tmp_path):
    for encoding in ("rope", "pope"):
        path = make_run(tmp_path / "runs", encoding, 0, domain="flip_flop", splits=("test", "sparse"), correct=1.0)
        lengths(path, worse=0.5 if encoding == "rope" else 0.0)
    (row,) = rows(tmp_path, Claim("less", "pope", than="rope", context=128))
    assert row["measured"] == "-1.0000 nats/token"


def test_claims_about_several_comparisons_name_them(folder):
    claim = Claim("better", "pope", than="rope", split="test")
    (one,) = rows(folder, claim)
    for encoding in ("rope", "pope"):
        make_run(folder / "runs", encoding, 0, "trainer.steps=40")
    assert one["domain"] == "jsb"
    assert [row["domain"] for row in rows(folder, claim)] == ["jsb (steps=20)", "jsb (steps=40)"]
    write_summary(folder)
    page = (folder / "README.md").read_text()
    assert "| PoPE is better | jsb (steps=20) | -0.0" in page
    assert "| PoPE is better | jsb (steps=40) | -0.0" in page
    assert re.search(r"\n- PoPE is better:\n    - jsb \(steps=20\): \w.*\n    - jsb \(steps=40\): \w", page)


def test_verdicts():
    assert verdict(-2, -1) == "shown"
    assert verdict(1, 2) == "refuted"
    assert verdict(-1, 1) == "undecided"
    assert verdict(-1, 1, published=-3.0) == "smaller than published"
    assert verdict(-4, 1, published=-3.0) == "undecided"
    assert verdict(0, 0) == "undecided"
    assert verdict(-1, 0.5, limit=1) == "shown"


def test_too_few_seeds_and_unknown_models_give_no_verdict(folder):
    for path in (folder / "runs").glob("jsb/pope/*-s2"):
        (path / "extrapolation" / "test.csv").unlink()
    row, unknown = rows(folder, Claim("lower", "pope", than="rope", context=128), Claim("none", "path", context=128))
    assert row["verdict"] == "not enough seeds"
    assert "interval" not in row
    assert unknown == {"claim": "none", "verdict": "no scores"}
    assert rows(folder, Claim("none", "rope", context=999)) == [unknown]
    assert rows(folder, Claim("none", "pope", than="rope", split="tset")) == [unknown]
    assert rows(folder, Claim("none", "pope", than="path", split="test")) == [unknown]
    assert rows(folder) == []


def test_the_page_of_a_study_lists_its_claims(folder):
    write_summary(folder)
    page = (folder / "README.md").read_text()
    assert "## Claims" in page
    assert "| RoPE holds | +51.00 % | " in page
    assert "\n- RoPE holds: refuted (+51.00 %, +48.52 to +53.48)\n" in page


def test_a_model_that_no_table_names_is_named_in_the_notes(tmp_path):
    for seed in range(3):
        for base in (500, 1000):
            make_run(tmp_path / "runs", "rope", seed, f"encoding.base={base}")
    claims = [Claim("a", "rope", than="rope, base=500.0", split="test"), Claim("b", "pope", than="path", split="test")]
    table = claims_table(read_study([tmp_path]), claims)
    assert table is not None
    assert [note for note in table.notes if note.startswith("No run")] == [
        "No run is of a model named 'rope': in claims, write 'rope, base=1000.0' or 'rope, base=500.0'.",
        "No run is of a model named 'pope'.",
        "No run is of a model named 'path'.",
    ]


def test_many_claims_are_counted():
    table = Table("claims", "Claims", {}, [{"verdict": "shown"}, *[{"verdict": "refuted"}] * MOST_LISTED], [])
    few = [{"claim": str(number), "verdict": "shown"} for number in range(MOST_LISTED)]
    assert claim_verdicts(Table("claims", "Claims", {}, few, [])) == {row["claim"]: ["shown"] for row in few}
    many = {f"Of {MOST_LISTED + 1} claims, listed under Details": [f"{MOST_LISTED} refuted, 1 shown"]}
    assert claim_verdicts(table) == many


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ("claims: yes", "claims: .* must be a list of entries"),
        ("claims: [{claim: a, model: rope, contxt: 3}]", "unknown key contxt"),
        ("claims: [{claim: a, model: rope}]", "claims, rope: give context, or than with one of"),
        ("claims: [{claim: a, model: rope, than: pope}]", "claims, rope: give context, or than with one of"),
        ("claims: [{claim: a, model: rope, split: test}]", "claims, rope: give context, or than with one of"),
        (
            "claims: [{claim: a, model: rope, than: pope, split: test, context: 3}]",
            "claims, rope: give context, or than with one of",
        ),
        ("claims: [{claim: a, model: rope, times: 3}]", "claims, rope: give context, or than with one of"),
        ("claims: [{claim: a, model: rope, than: pope, times: 1}]", "claims, rope: times=1 is the trained length"),
        (
            "claims: [{claim: a, model: rope, than: pope, split: test, published: 0.02}]",
            "claims, rope: published=0.02: give the loss of rope minus that of pope",
        ),
        ("claims: [{claim: a, model: rope, context: 0}]", "context=0: it must be at least 1"),
        ("claims: [{claim: 3, model: rope, context: 8}]", "claim=3"),
        ("claims: [{claim: a, context: 8}]", "model"),
    ],
)
def test_a_malformed_claim_gives_one_line(tmp_path, claims, message):
    (tmp_path / "study.yaml").write_text(LISTED + claims)
    with pytest.raises(UserError, match=message) as error:
        read_list(tmp_path)
    assert "\n" not in str(error.value)
