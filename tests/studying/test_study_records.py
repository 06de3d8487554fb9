"""studies/STUDY: what is kept is what is listed, small and whole, and reports and README are made of it."""

import csv
import json
import re
import shutil
import textwrap
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import REPOSITORY
from pretrained_support import folder_with_tokenizer
from report_support import DELTA, lengths, make_run, mechanisms, report_task, undrawn  # noqa: F401
from study_support import study_command  # noqa: F401

from bearings.core.errors import UserError
from bearings.domains.records import Records
from bearings.reporting.answers import LEGEND
from bearings.reporting.packed import RUNS, packed_names, read_packed
from bearings.reporting.reading import read_study
from bearings.reporting.study_list import read_list
from bearings.studying import jobs, planning, summary
from bearings.studying.catalogue import recorded
from bearings.studying.front_page import MARKS
from bearings.studying.keeping import keep_run
from bearings.studying.outcomes import read_outcome
from bearings.studying.packing import pack
from bearings.studying.page import rows_as_markdown, table_of
from bearings.studying.readme import README, with_table
from bearings.tasks import study

pytestmark = pytest.mark.usefixtures("undrawn")

LISTED = sorted(file.parent.name for file in (REPOSITORY / "studies").glob("*/study.yaml"))
# Their kept runs read files that the command line named.
GIVEN_FILES = (
    "conversion",
    "genome",
    "length_maestro",
    "maestro",
    "maestro_60k",
    "maestro_official",
    "maestro_official_16k",
    "patterns",
    "text_124m",
    "zoo_genome",
    "zoo_maestro",
)
GIVEN_MODEL = ("conversion",)
KEPT = sorted(file.parent.name for file in (REPOSITORY / "studies").glob("*/runs.parquet"))  # others are plans


def test_results_list_the_runs_with_uncommitted_changes():
    changed = {}
    for name in KEPT:
        table = pq.read_table(REPOSITORY / "studies" / name / RUNS, columns=["manifest"])
        manifests = [json.loads(text) for text in table["manifest"].to_pylist()]
        dirty = [any(each["code"]["dirty"] for each in manifest["sessions"]) for manifest in manifests]
        if any(dirty):
            changed[name] = ("", "") if all(dirty) else (str(sum(dirty)), str(len(dirty)))
    page = " ".join((REPOSITORY / "docs" / "results" / "index.md").read_text().split())
    sentence = page.partition("Some runs had uncommitted changes: all of ")[2].partition(". ")[0]
    found = {name: (some, of) for some, of, name in re.findall(r"(?:(\d+) of (\d+) of )?\[(\w+)\]", sentence)}
    assert found == changed


@pytest.mark.parametrize("name", LISTED)
def test_every_study_lists_runs_that_can_be_made_and_those_kept_are_among_them(name, tmp_path, monkeypatch):
    monkeypatch.setattr("bearings.domains.genome.Genome.options", lambda self: {})  # files given at the command line
    monkeypatch.setattr("bearings.session.session.Session.plans", lambda self, transformer: [])  # may need a GPU
    monkeypatch.chdir(tmp_path)
    folder_with_tokenizer(tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf", "Once upon a time, a fox met seven owls. ")
    (tmp_path / "books").mkdir()  # of the conversions
    folder = REPOSITORY / "studies" / name
    assert {"question", "would_change"} <= read_list(folder).keys()
    planned = planning.plan(folder, tmp_path / "runs")
    assert len({each.path for each in planned}) == len(planned) > 1
    kept = {folder / "runs" / run for run in packed_names(folder)}
    runs = [each for each in planned if isinstance(each, jobs.Planned)]  # others are searches before their runs
    if name not in GIVEN_MODEL:
        of_other_data = [each for each in runs if each.other_data]
        same = {each.kept for each in runs if each.finished} - {each.kept for each in of_other_data}
        assert same <= kept
        assert len(same) + len(of_other_data) == len(kept)
        assert bool(of_other_data) == (name in GIVEN_FILES)


@pytest.mark.parametrize("name", KEPT)
def test_a_page_has_a_question_an_answer_with_its_interval_and_one_figure(name):
    page = (REPOSITORY / "studies" / name / "README.md").read_text()
    shown = re.sub("<details.*?</details>", "", page, flags=re.DOTALL)
    assert sum(len(textwrap.wrap(line, 120)) for line in shown.splitlines()) <= 55
    assert len(re.findall(r"^!\[", shown, re.MULTILINE)) == 1
    answer = re.search(r"^ *- .*\(.*[\d.]+ to [+-]?[\d.]+", shown, re.MULTILINE)
    assert answer is not None, "no answer with an interval"
    assert shown.index("?") < answer.start()
    assert "**What would change the answer.**" in shown
    assert re.search(r"\d runs, about [\d,]+ minutes? of training on ", shown)


def test_results_of_one_comparison_are_a_list_below_its_name(tmp_path):
    (tmp_path / "study.yaml").write_text("runs: [experiment=debug]\n")
    for steps, encodings in ((20, ("rope", "pope", "fox")), (40, ("rope", "path"))):
        for encoding in encodings:
            make_run(tmp_path / "runs", encoding, 0, f"trainer.steps={steps}")
    summary.write_summary(tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "\n- jsb (steps=20):\n    - pope " in page
    assert "\n    - fox " in page
    assert "\n- jsb (steps=40): path " in page


def test_a_page_has_a_short_table_and_the_lowest_differences(tmp_path, monkeypatch):
    question = f"Why? {'x' * 100} is half-way between both."  # a line break after the hyphen would show as a space
    (tmp_path / "study.yaml").write_text(f"question: {question}\nruns: [experiment=debug]\n")
    for encoding in ("rope", "pope", "path"):
        for seed in (0, 1, 2):
            make_run(tmp_path / "runs", encoding, seed)

    def page():
        summary.write_summary(tmp_path)
        return (tmp_path / "README.md").read_text().partition("<details")

    shown, _, details = page()
    assert "half-way" in shown
    assert LEGEND in shown
    assert "\n| rope |" in shown  # without a column that says the same in every row
    assert "| rope |" not in details
    assert "Shown: the" not in shown
    monkeypatch.setattr("bearings.studying.page.MOST_ROWS", 2)
    monkeypatch.setattr(summary, "MOST_DRAWN", 1)
    shown, _, details = page()
    assert "| rope |" not in shown
    assert "| rope |" in details
    assert "Shown: the 1 lowest of 2 differences." in shown


@pytest.mark.parametrize(("outcome", "figure"), summary.FIGURES.items())
def test_a_page_begins_with_the_outcome_of_the_study(tmp_path, monkeypatch, outcome, figure):
    (tmp_path / "study.yaml").write_text(f"question: Why?\noutcome: {outcome}\nruns: [experiment=debug]\n")
    for encoding, right in (("rope", 0.5), ("pope", 1.0)):
        of_task = {"domain": "flip_flop", "units": ("answer",), "correct": right} if outcome != "scores" else {}
        for seed in (0, 1, 2):
            path = make_run(tmp_path / "runs", encoding, seed, **of_task)
            lengths(path)
            if of_task:
                (path / "metrics.csv").write_text(f"step,train_nll,valid_nll,valid_accuracy\n10,1,1,{right}\n")
    monkeypatch.setattr(summary, "KEPT", 1)
    summary.write_summary(tmp_path)
    page = (tmp_path / "README.md").read_text()
    first = page[page.index("\n- ") :].splitlines()[1]
    begins = {"scores": "- pope ", "lengths": "- Models whose loss never rises", "take-off": "- Take-off: pope "}
    assert first.startswith(begins[outcome])
    assert (LEGEND in page) == (not of_task)
    assert [path.name for path in tmp_path.glob("*.svg")] == [figure]


def test_the_report_of_kept_runs_is_that_of_the_runs(tmp_path, report):
    for encoding in ("rope", "pope"):
        for seed in (0, 1, 2):
            path = make_run(tmp_path / "runs", encoding, seed)
            (path / "samples" / "sample.txt").write_text("a sample")
            mechanisms(path, "delta", ("layer", "head", "element", "delta"), [(0, 0, 0, -1.0)], DELTA)
            for split in ("valid", "test"):  # as they come back from being kept
                with np.load(path / "nll" / f"{split}.npz") as file:
                    fields = dict(file)
                fields["nats"] = fields["nats"].astype(np.float32)
                np.savez_compressed(path / "nll" / f"{split}.npz", **fields)
            keep_run(path, tmp_path / "kept" / path.relative_to(tmp_path / "runs"))
    first = report()[0]
    before = {path.name: path.read_bytes() for path in first.rglob("*.csv")}
    second = report("task.directories=[kept]")[0]
    assert {path.name: path.read_bytes() for path in second.rglob("*.csv")} == before
    assert len(list((tmp_path / "kept").rglob("sample.txt"))) == 2  # of one seed each
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "study.yaml").write_text("runs: []\n")
    (tmp_path / "kept").rename(tmp_path / "packed" / "runs")
    unpacked = pages(report("task.directories=[packed]")[0])
    assert pack(tmp_path / "packed") == 6
    assert not (tmp_path / "packed" / "runs").exists()
    assert pages(report("task.directories=[packed]")[0]) == unpacked


def pages(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_listed_and_has_no_record_is_missing(tmp_path, report):
    (tmp_path / "study").mkdir()
    lines = "runs:\n  - experiment=debug seed=0,1 encoding=rope,pope\n  - model.mlp=gelu seed=0 encoding=rope\n"
    (tmp_path / "study" / "study.yaml").write_text(lines)
    for encoding, seed in (("rope", 0), ("rope", 1), ("pope", 0)):
        make_run(tmp_path / "study" / "runs", encoding, seed)
    _, printed = report("task.directories=[study]")
    reason = "listed in study.yaml, but there is no usable record"
    assert f"missing: experiment=debug seed=1 encoding=pope, {reason}" in printed
    assert "missing: model.mlp=gelu seed=0 encoding=rope, listed in study.yaml" in printed
    assert printed.count("listed in study.yaml") == 2
    line = "optimizer.learning_rate=5e-05 seed=0 encoding=nope"
    (tmp_path / "study" / "study.yaml").write_text(f"runs:\n  - seed=0 encoding=nope\n  - {line}\n")
    make_run(tmp_path / "study" / "runs", "nope", 0, "optimizer.learning_rate=5e-05")
    _, printed = report("task.directories=[study]")  # the variant's record is not the plain run's too
    assert f"missing: {line}" not in printed
    assert "missing: seed=0 encoding=nope, listed in study.yaml" in printed
    for text, why in (
        ("runs: 3\n", "runs is not a list: "),
        ("runs: [seed=0]\nclaims: [PoPE wins]\n", r"claims: \['PoPE wins'\] must be a list of entries such as {claim:"),
        ("runs: [seed=0]\npublished: {rope: 1}\n", r"published must have .* for each split: {test: {rope: 1\.501"),
        (
            "runs: [seed=0]\nthan: [task=mechanisms]\n",
            "unknown key than; allowed: question, would_change, search, runs, then, published, claims, reference, "
            "outcome, margin, variants",
        ),
        ("runs: [seed=0]\nthen: task=mechanisms\n", "then: .task=mechanisms. must be a list of lines, such as"),
        ("runs: [seed=0]\nvariants: model.mlp\n", "variants: .model.mlp. must be a list of keys, such as"),
        ("runs: [seed=0]\ncompare: [precision]\n", "compare: precision must be GROUP.KEY, such as trainer.precision"),
        ("runs: [seed=0]\nquestion: [why]\n", "question must be text"),
        ("runs: [seed=0]\nreference: [rope]\n", "reference must be text"),
        ("runs: [seed=0]\noutcome: length\n", "outcome: length must be one of scores, lengths, take-off"),
        ("runs: [seed=0]\nmargin: 0\n", "margin: 0 must be a number of nats/token above 0"),
        ("runs: [seed=0]\nmargin: .inf\n", "margin: inf must be a number of nats/token above 0"),
        ("runs: [seed=0]\nmargin: true\n", "margin: True must be a number of nats/token above 0"),
        ("run: [seed=0]\n", "runs is missing: "),
        ("", "runs is missing: "),
    ):
        (tmp_path / "study" / "study.yaml").write_text(text)
        _, printed = report("task.directories=[study]")
        assert re.search(f"unreadable: .*study.yaml, {why}.*; the study.s runs are left out", printed)


def test_a_study_whose_records_cannot_be_read_has_no_rows_and_no_new_page(tmp_path):
    (tmp_path / "study.yaml").write_text("runs: [experiment=debug seed=0 encoding=rope]")
    path = make_run(tmp_path / "runs", "rope", 0)
    (path / "nll" / "test.npz").write_bytes(b"cut")
    assert read_outcome(tmp_path).rows == []
    with pytest.raises(
        UserError, match=r"^the page in .* is not written, as it would lack records: .*test\.npz is damaged"
    ):
        summary.write_summary(tmp_path)
    assert not (tmp_path / "README.md").exists()


def test_a_page_names_encodings_and_values_of_which_no_run_has_a_record(tmp_path):
    lines = "experiment=debug seed=0,1 encoding=rope,pope", "model.mlp=gelu seed=0 encoding=rope,nope"
    (tmp_path / "study.yaml").write_text("runs:" + "".join(f"\n  - {line}" for line in lines))
    for encoding, seed in (("rope", 0), ("rope", 1), ("pope", 0)):
        make_run(tmp_path / "runs", encoding, seed)
    summary.write_summary(tmp_path)
    missing = "Listed runs without a record: 3, among them all with encoding=nope, all with model.mlp=gelu.\n"
    assert missing in (tmp_path / "README.md").read_text()


def test_a_page_does_not_name_values_that_a_search_has_chosen(tmp_path):
    (tmp_path / "study.yaml").write_text("search: task=tune\nruns: ['experiment=debug encoding=rope,pope seed=0']")
    rows = "".join(f"experiment=debug encoding={row},True\n" for row in ("rope,task=tune,1e-3", "pope,task=tune,2e-3"))
    (tmp_path / "tuning.csv").write_text(f"run,search,optimizer.learning_rate,chosen\n{rows}")
    make_run(tmp_path / "runs", "rope", 0, "optimizer.learning_rate=1e-3")
    summary.write_summary(tmp_path)
    missing = "Listed runs without a record: 1, among them all with encoding=pope.\n"
    assert missing in (tmp_path / "README.md").read_text()


def test_the_results_of_a_study_have_the_scores_of_each_run_and_split(tmp_path):
    (tmp_path / "study.yaml").write_text("runs: [experiment=debug]\n")
    asked = {"domain": "flip_flop", "splits": ("test", "sparse"), "units": ("answer",), "correct": 0.5}
    paths = [*(make_run(tmp_path / "runs", "rope", seed) for seed in (10, 2)), make_run(tmp_path / "runs", "pope", 0)]
    paths.append(make_run(tmp_path / "runs", "pope", 1, **asked))
    for path in paths:
        kept = Records.load(path / "nll" / "valid.npz")
        replace(kept, nats=2 * kept.nats).save(path / "nll" / "valid.npz")
    summary.write_summary(tmp_path)
    with open(tmp_path / "results.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    found = {(tmp_path / "runs" / row["run"], row["split"]): row for row in rows}
    assert len(found) == len(rows)
    assert found.keys() == {(path, file.stem) for path in paths for file in path.glob("nll/*.npz")}
    for (path, split), row in found.items():
        scored = Records.load(path / "nll" / f"{split}.npz")
        domain, encoding, run = path.parts[-3:]
        assert (row["comparison"], row["model"], row["seed"]) == (domain, encoding, run.rpartition("-s")[2])
        assert (int(row["documents"]), int(row["tokens"])) == (len(scored.documents), scored.tokens.sum())
        assert float(row["nats_per_token"]) == scored.nats_per_token
        units = {name: float(row[name]) for name in row if name.startswith("bits_per_") and row[name]}
        assert units == {f"bits_per_{unit}": bits for unit, bits in scored.bits_per_unit.items()}
        assert row["accuracy"] == (str(scored.accuracy) if domain == "flip_flop" else "")


def test_readme_and_the_page_of_all_studies_match_the_records(tmp_path, monkeypatch, command):
    outcomes = {name: read_outcome(REPOSITORY / "studies" / name) for name in recorded()}
    monkeypatch.setattr(study, "of_all", lambda make: outcomes)
    assert command("study=all", "task.check=true") == ""
    readme = README.read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text(with_table(readme, *MARKS, "another table"), encoding="utf-8")
    monkeypatch.setattr(study, "README", tmp_path / "README.md")
    with pytest.raises(UserError, match=r"README.md does not match the records: run python main.py task=study"):
        command("study=all", "task.check=true")
    with pytest.raises(UserError, match="are missing"):
        with_table("no marks", *MARKS, "a table")
    for name, found in outcomes.items():
        page = (REPOSITORY / "studies" / name / "README.md").read_text()
        assert table_of(found) in page, name


def test_a_row_of_too_few_seeds_says_what_its_interval_is_of(tmp_path):
    listed = "runs:\n  - experiment=debug seed=0,1,2 encoding=rope\n  - experiment=debug seed=0,1 encoding=pope\n"
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "study.yaml").write_text(listed)
    for encoding, seeds in (("rope", 3), ("pope", 2)):
        for seed in range(seeds):
            make_run(tmp_path / "few" / "runs", encoding, seed)
    rows = {row["model"]: row for row in read_outcome(tmp_path / "few").rows}
    assert re.fullmatch(r"-\d\.\d{4} to -\d\.\d{4}, clusters only", rows["pope"]["difference_interval"])
    assert "difference_interval" not in rows["rope"]
    assert "interval" in rows["rope"].keys() - rows["pope"].keys()  # over seeds
    table = rows_as_markdown(read_outcome(tmp_path / "few").rows)
    assert ", clusters only |" in table
    assert "\n- clusters only: with fewer than 3 seeds, the interval covers other test clusters" in table


def test_a_source_that_is_listed_by_its_path_is_found_where_it_is_kept_by_its_name(tmp_path):
    (tmp_path / "study.yaml").write_text(f"runs:\n  - domain.path={tmp_path}/music.json encoding=rope seed=0,1\n")
    for seed in (0, 1):
        path = make_run(tmp_path / "runs", "rope", seed, f"domain.path={tmp_path}/music.json")
        if seed == 0:
            keep_run(path, tmp_path / "kept" / path.relative_to(tmp_path / "runs"))
            shutil.rmtree(path)
    assert not read_study([tmp_path]).troubles
    (tmp_path / "study.yaml").write_text(f"runs:\n  - domain.path={tmp_path}/other.json encoding=rope seed=0,1\n")
    assert [trouble.state for trouble in read_study([tmp_path]).troubles] == ["missing"] * 2


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_of_a_study_is_small_and_names_no_machine(name):
    folder = REPOSITORY / "studies" / name
    size = {path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    for optional in (".lock", "tuning.csv", "speed.csv"):
        size.pop(optional, None)
    svg = [name for name in size if name.endswith(".svg")]
    assert size.keys() - svg == {"study.yaml", "README.md", "results.csv", "runs.parquet", "records.parquet"}
    assert 1 <= len(svg) <= 2
    packed = read_packed(folder)
    models = {run.rpartition("-s")[0] for run in packed}
    # Nats of 20,000 answers a run, in float32 and by group; samples and what was learned of one seed a model; results
    # of each of the benchmarks' 87,776 items; and a row of a curve for each measured step.
    assert size["records.parquet"] < len(packed) * 250 << 10
    scored = sum("benchmarks/blimp.npz" in path.files for path in packed.values())
    rows = sum(path.files["metrics.csv"].count(b"\n") for path in packed.values())
    assert size["runs.parquet"] < (len(models) * 110 + scored * 600 << 10) + 40 * rows
    assert sum(map(size.get, svg)) < 400 << 10
    texts = [(folder / name).read_bytes() for name in ("study.yaml", "README.md", "results.csv")]
    for path in packed.values():
        texts += [content for name, content in path.files.items() if not name.endswith((".npz", ".mid", ".png"))]
    for text in texts:
        assert not re.search(rb"(?<![\w.])/(home|root|tmp|work|dev)/", text), text


def test_rows_of_comparisons_with_other_data_name_the_comparison(tmp_path):
    """The digest of the data is left out of their titles, so that the titles begin with file names."""
    (tmp_path / "study.yaml").write_text("runs: [experiment=debug]\n")
    for steps, store in ((20, "5" * 64), (40, "6" * 64)):
        make_run(tmp_path / "runs", "rope", 0, f"trainer.steps={steps}", store=store)
    places = (row["comparison"] for row in read_outcome(tmp_path).rows)
    named = sorted(re.sub("-[0-9a-f]{6}", "-HASH", place) for place in places)
    assert named == ["jsb-HASH, steps=20", "jsb-HASH, steps=40"]
