"""AUROC of variants: its value and error by hand, groups, and differences of models."""

from dataclasses import replace

import numpy as np
import pytest
from report_support import make_run, report_task, undrawn  # noqa: F401

from bearings.domains.items import Items
from bearings.domains.records import Records
from bearings.reporting.variants import BRCA1, auroc, spread, variants_table
from bearings.session.item_files import save_items
from bearings.session.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("undrawn")
RANDOM = np.random.default_rng(0)
LABELS = np.arange(60) % 3 == 0
NAMES = np.array([f"chr1:{i // 2}:A>{'CG'[i % 2]}" for i in range(60)])


def items(shift, seed=0, groups="all variants", source="a" * 64):
    nats = np.random.default_rng([seed, 7]).integers(0, 20, 60) + shift * LABELS
    groups = np.broadcast_to(groups, 60).astype(str)
    return Items(NAMES, groups, {"nats": nats.astype(float), "label": LABELS.astype(int)}, source)


def test_auroc_counts_pairs_and_its_error_is_that_of_the_jackknife():
    scores = RANDOM.integers(0, 9, 60).astype(float)
    value, influence = auroc(scores, LABELS)
    pairs = np.sign(scores[LABELS][:, None] - scores[~LABELS]) / 2 + 0.5
    assert value == pytest.approx(pairs.mean())
    assert influence.sum() == pytest.approx(0)
    clusters = np.arange(60) // 3  # one positive and two negatives each
    left = np.array([auroc(scores[clusters != c], LABELS[clusters != c])[0] for c in range(20)])
    jackknife = np.sqrt(19 / 20 * ((left - left.mean()) ** 2).sum())
    assert spread(influence, clusters) == pytest.approx(jackknife, rel=0.06)
    assert auroc(LABELS.astype(float), LABELS)[0] == 1


def test_groups_are_separate_and_small_ones_are_named():
    groups = np.where(np.arange(60) < 48, "missense", "rest")
    table = variants_table({"rope": {0: items(5, groups=groups)}}, "rope", "title")
    (row,) = table.rows
    value, influence = auroc(items(5).columns["nats"][:48], LABELS[:48])
    assert (row["group"], row["variants"], row["damaging"], row["auroc"]) == ("missense", 48, 16, value)
    reach = 1.959964 * spread(influence, np.arange(48) // 2)  # two variants at each position
    assert row["over_variants"] == pytest.approx((value - reach, min(1, value + reach)))
    assert any("rest (4 of 12)" in note for note in table.notes)


def test_without_a_group_large_enough_nothing_is_explained_but_that():
    table = variants_table({"rope": {0: items(5, groups=NAMES)}}, "rope", "title")
    assert table.rows == []
    assert table.notes[0] == "No group has 10 variants of each kind, so there is no AUROC."
    assert not any(note.startswith(("AUROC", "Intervals")) for note in table.notes)


def test_seeds_are_averaged_and_paired():
    found = {name: {seed: items(shift, seed) for seed in range(3)} for name, shift in (("pope", 5), ("rope", 2))}
    pope, rope = variants_table(found, "rope", "title").rows
    values, others = (
        np.array([auroc(each.columns["nats"], LABELS)[0] for each in found[name].values()]) for name in found
    )
    assert (pope["seeds"], pope["auroc"], rope["auroc"]) == (3, values.mean(), others.mean())
    assert pope["difference_auroc"] == pytest.approx((values - others).mean())
    reach = 4.302653 * (values - others).std(ddof=1) / 3**0.5
    assert np.diff(pope["difference_over_seeds"])[0] == pytest.approx(2 * reach)
    assert "difference_auroc" not in rope


def test_report_compares_models_on_the_same_variants(tmp_path, report):
    for encoding, source in (("pope", "a"), ("rope", "b")):
        run = RunDirectory.open(make_run(tmp_path / "runs", encoding, 0))
        save_items(run, "brca1-w96", items(2, source=BRCA1))
        save_items(run, "other-w96", items(2, source=64 * source))
    folder, _ = report()
    text = (folder / "tables" / "jsb-brca1-w96.md").read_text()
    assert "| all variants | Evo 2 1B (published) | 60 | 20 |  | 0.729 |" in text
    assert "difference from rope" in text
    text = (folder / "tables" / "jsb-other-w96.md").read_text()
    assert "Left out because they scored other variants: rope." in text


def test_variants_have_the_reference_of_the_scores(tmp_path, report):
    """Not the model of its encoding that is best on validation."""
    for setting, factor in (("randomise=0", 1.0), ("randomise=512", 0.9)):
        run = RunDirectory.open(make_run(tmp_path / "runs", "rope", 0, f"encoding.{setting}"))
        here = Records.load(run.records("valid"))
        replace(here, nats=factor * here.nats).save(run.records("valid"))
        save_items(run, "brca1-w96", items(5, source=BRCA1))
    folder, _ = report()
    assert "difference from rope, randomise=0" in (folder / "tables" / "jsb-brca1-w96.md").read_text()
