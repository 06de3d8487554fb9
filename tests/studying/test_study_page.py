"""Lines of a study's page: baselines, and the command that trains its missing runs."""

import re
from dataclasses import replace

import pytest
from report_support import make_run, undrawn  # noqa: F401

from bearings.domains.records import Records
from bearings.session.trust import trusting
from bearings.studying import summary

pytestmark = pytest.mark.usefixtures("undrawn")


def test_a_study_s_page_has_the_baselines_that_a_run_has_kept_lowest_first(tmp_path):
    (tmp_path / "study.yaml").write_text("runs: ['experiment=debug seed=0,1 encoding=rope']")
    for seed in (0, 1):
        path = make_run(tmp_path / "runs", "rope", seed)
    scored = Records.load(path / "nll" / "test.npz")
    (path / "baselines" / "test").mkdir(parents=True)
    for name, factor in (("Markov, order 4", 2), ("unigram", 3), ("xz -9e", 1)):
        replace(scored, nats=factor * scored.nats).save(path / "baselines" / "test" / f"{name}.npz")
    summary.write_summary(tmp_path)
    one, two, three = (f"{factor * scored.nats_per_token:.4f}" for factor in (1, 2, 3))
    line = f"\n\nBaselines in nats/token (test): xz -9e: {one}; Markov, order 4: {two}; unigram: {three}.\n\n"
    assert line in (tmp_path / "README.md").read_text()


def test_a_study_s_page_names_the_models_that_are_not_better_than_the_unigram(tmp_path):
    (tmp_path / "study.yaml").write_text("runs: ['experiment=debug seed=0,1 encoding=rope,nope,alibi']")
    for encoding, factor in (("rope", 1), ("nope", 2), ("alibi", 3)):
        for seed in (0, 1):
            path = make_run(tmp_path / "runs", encoding, seed)
            scored = Records.load(path / "nll" / "test.npz")
            replace(scored, nats=factor * scored.nats).save(path / "nll" / "test.npz")
    (path / "baselines" / "test").mkdir(parents=True)
    replace(scored, nats=1.5 * scored.nats).save(path / "baselines" / "test" / "unigram.npz")
    summary.write_summary(tmp_path)
    line = f"(test): unigram: {1.5 * scored.nats_per_token:.4f}. Not better than the unigram: nope, alibi.\n"
    assert line in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(("factor", "places"), [(1, ["test"]), (2, ["mlp=gelu, test", "mlp=swiglu, test"])])
def test_equal_baselines_of_several_comparisons_are_on_one_line(tmp_path, factor, places):
    listed = "\n  - experiment=debug seed=0,1 encoding=rope model.mlp="
    (tmp_path / "study.yaml").write_text(f"runs:{listed}gelu{listed}swiglu\n")
    for mlp, store, times in (("gelu", "5", 1), ("swiglu", "6", factor)):
        path, _ = [make_run(tmp_path / "runs", "rope", seed, f"model.mlp={mlp}", store=64 * store) for seed in (0, 1)]
        (path / "baselines" / "test").mkdir(parents=True)
        scored = Records.load(path / "nll" / "test.npz")
        replace(scored, nats=times * scored.nats).save(path / "baselines" / "test" / "unigram.npz")
    summary.write_summary(tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert re.findall(r"^\| jsb-\w+, (mlp=\w+) \| rope", page, re.MULTILINE) == ["mlp=gelu", "mlp=swiglu"]
    assert re.findall(r"^Baselines in nats/token \((?:jsb.*: )?(.*)\): ", page, re.MULTILINE) == places


def test_a_study_s_page_names_its_own_packages_and_files(tmp_path):
    (tmp_path / "study.yaml").write_text("runs: ['experiment=debug seed=0 encoding=rope,own']")
    make_run(tmp_path / "runs", "rope", 0)
    summary.write_summary(tmp_path)
    command = "python main.py --config-dir=YOUR_FILES task=study study=FOLDER"
    assert f"\n- `{command}`: train the missing runs\n" in (tmp_path / "README.md").read_text()
    path = make_run(tmp_path / "runs", "nope", 0)
    for name in ("config.yaml", "manifest.json"):
        (path / name).write_text((path / name).read_text().replace("bearings.encodings.nope.NoPE", "mine.Own"))
    (tmp_path / "study.yaml").write_text("runs: ['experiment=own seed=0 encoding=rope,nope']")
    with trusting("mine"):
        summary.write_summary(tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert f"\n- `{command} trust=mine`: train the missing runs\n" in page
    assert "\n- `python main.py task=report task.directories=[FOLDER] trust=mine`: all tables" in page
