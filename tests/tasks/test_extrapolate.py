"""task=extrapolate: the same targets under every context, by position, and where a model fails."""

import io
from functools import partial

import pytest
import yaml
from conftest import composed
from report_support import lengths, make_run
from rich.console import Console
from training_support import configured, go

from bearings.core.checked_files import digest_of
from bearings.core.errors import UserError
from bearings.domains.text import Text
from bearings.encodings.pattern import LayerPattern
from bearings.kernels.stretching import Stretch
from bearings.lightning_modules.lengths import Bucket
from bearings.lightning_modules.transformer import Transformer
from bearings.reporting.lengths import (
    failure_point,
    forms_of,
    lengths_table,
    longest_context,
    nats_by_context,
    nats_by_position,
    read_lengths,
)
from bearings.reporting.tables import write_csv
from bearings.session.configuration import build
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.tasks.extrapolate import Extrapolate, _merge, stretch_to

SIX = ("none", "interpolation", "ntk", "dynamic_ntk", "yarn", "llama3")
MORE = (*SIX, "window", "lm_infinite-4", "power")


@pytest.mark.parametrize(("width", "heads"), [(80, [SIX]), (80, [MORE[:7], MORE[7:]]), (160, [MORE]), (40, None)])
def test_no_figure_or_name_is_cut_on_a_terminal(width, heads):
    contexts, forms = [2**n for n in range(4, 14)], MORE if heads is None else sum(heads, ())
    about = {"trained": 64, "beyond": True, "low": 64, "high": 128, "targets": 1, "nats": 2.1814}
    rows = [{"stretch": form, "context": context, **about} for form in forms for context in contexts]
    console = Console(file=io.StringIO(), width=width)
    table = lengths_table({"rope": [rows]}, "test split")
    for part in table.turned_on_console("stretch", "context", width, hidden=("model", "seeds")):
        console.print(part)
    shown = console.file.getvalue()
    lines = shown.split("\n")
    assert max(map(len, lines)) <= width
    assert "…" not in shown
    assert shown.count("2.1814") == len(forms) * len(contexts)
    assert shown.count("test split") == 1
    named = [line.split() for line in lines if "context" in line]
    assert [form for _, *shown_forms in named for form in shown_forms] == [*forms]
    assert heads is None or named == [["context", *each] for each in heads]
    labels = [line.split()[0] for line in lines if "2.1814" in line]
    assert labels == [f"{context:,}" for context in contexts] * len(named)


def test_a_method_that_the_encoding_does_not_support_is_no_typo():
    task = Extrapolate(stretches=["longrope"])
    message = r"^task\.stretches=longrope: allowed for this run's encoding: none, ntk$"
    with pytest.raises(UserError, match=message):
        task._asked(("none", "ntk"), [64], 64)


def test_results_of_a_method_that_only_another_version_has_stay(tmp_path):
    run = RunDirectory.open(make_run(tmp_path, "rope", 0))
    lengths(run.path, forms=("none", "resonance"))
    file = run.extrapolation("test")
    scored = [
        {**row, "stretch": "yarn"} for row in read_lengths(file) if (row["stretch"], row["context"]) == ("none", 128)
    ]
    _merge(run, file, scored, ("none", "yarn"))
    assert forms_of(read_lengths(file)) == ["none", "yarn", "resonance"]


def test_a_table_tells_how_many_targets_reach_the_contexts_of_its_columns():
    about = {"stretch": "none", "trained": 16, "nats": 1.0}
    rows = [
        {**about, "context": context, "beyond": beyond, "low": low, "high": 2 * low, "targets": targets}
        for context in (16, 64)
        for beyond, low, targets in ((False, 4, 999), (True, 16, 30), (True, 32, 10))
    ]
    notes = lengths_table({"rope": [rows]}, "test split").notes
    assert "Targets with at least half of the context before them: 100 % at 16, 25 % at 64." in notes
    shorter = [row for row in rows if row["context"] == 16]
    of_two_models = lengths_table({"path": [shorter], "rope": [rows]}, "test split").notes
    assert "Targets with at least half of the context before them: 100 % at 16, 25 % at 64." in of_two_models
    of_two_seeds = lengths_table({"rope": [rows, shorter]}, "test split").notes
    assert "Targets with at least half of the context before them: 100 % at 16." in of_two_seeds


def test_the_failure_point_is_the_first_context_that_is_worse_by_a_hundredth():
    assert failure_point({8: 3.0, 16: 2.0, 32: 2.0199, 64: 2.03, 128: 2.01}, 16) == 64
    assert failure_point({16: 2.0, 17: 2.1, 32: 2.2}, 16) == 17
    assert failure_point({16: 2.0, 32: 1.9}, 16) is None


def test_positions_are_those_of_a_context_that_all_rows_share():
    def rows(*contexts, form="none"):
        bucket = {"beyond": True, "low": 4, "high": 7, "targets": 2}
        return [{"stretch": form, "context": context, "nats": 2.0 * context, **bucket} for context in contexts]

    seeds = [rows(8, 16, 32), rows(8, 16)]
    assert longest_context({"rope": seeds}) == 16
    assert nats_by_position(seeds[0], "none", 16) == {(4, 7): 16.0}
    assert longest_context({"rope": seeds, "path": [rows(8, 16, 32, 64)]}) == 16
    assert longest_context({"rope": [rows(8, 16, 32) + rows(16, form="yarn")]}) == 16
    assert longest_context({"rope": seeds, "path": [rows(4)]}) == 0
    assert nats_by_position(seeds[0], "none", 0) == {}


def extrapolated(run, tmp_path, *overrides):
    plain = RunDirectory.open(run.path).config | {"run": str(run.path)}
    task = configured(tmp_path, task="extrapolate")["task"]
    plain["task"] = task | yaml.safe_load("{" + ", ".join(overrides) + "}")
    session = Session.of(plain)
    session.console = Console(file=io.StringIO(), width=150)
    build(plain["task"], "task")(session)
    return session, session.console.file.getvalue()


def test_a_run_is_scored_plain_and_stretched(tmp_path):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=8"))
    session, printed = extrapolated(run, tmp_path)
    trained = session.data.length
    assert f"Trained at {trained}" in printed
    rows = read_lengths(run.extrapolation("test"))
    assert forms_of(rows) == ["none", "interpolation", "ntk", "dynamic_ntk", "yarn", "llama3"]
    targets = session.store().targets("test")
    for form in forms_of(rows):
        for context in {row["context"] for row in rows if row["stretch"] == form}:
            here = [row for row in rows if (row["stretch"], row["context"]) == (form, context)]
            assert sum(row["targets"] for row in here) == targets
        # Up to the trained length a stretch is the plain model.
        assert nats_by_context(rows, form)[trained] == nats_by_context(rows, "none")[trained]
        assert nats_by_position(rows, form, longest_context({"rope": [rows]}))
    with pytest.raises(
        UserError,
        match=r"task.stretches=yarm: did you mean yarn\? allowed for this run's encoding: none, interpolation, ntk",
    ):
        extrapolated(run, tmp_path, "stretches: [yarm]")
    with pytest.raises(UserError, match=r"task.split=tset: did you mean test"):
        extrapolated(run, tmp_path, "split: tset")


def test_a_later_call_adds_to_the_file_and_scores_nothing_again(tmp_path, monkeypatch):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=8"))

    def scored(level, *overrides):
        bucket = Bucket(False, 1, 8, 10, level)
        monkeypatch.setattr("bearings.tasks.extrapolate.score_by_position", lambda *given: [bucket])
        session, _ = extrapolated(run, tmp_path, *overrides)
        rows = read_lengths(run.extrapolation("test"))
        return session.data.length, {(row["stretch"], row["context"]): row["nats"] for row in rows}

    trained, found = scored(1.0, "contexts: [8]", "stretches: [none]")
    assert found == {("none", 8): 1, ("none", trained): 1}
    _, found = scored(2.0, f"contexts: [8, {2 * trained}]", "stretches: [yarn]")
    assert found == {("none", 8): 1, ("none", trained): 1, ("none", 2 * trained): 2, ("yarn", 2 * trained): 2}
    _, found = scored(3.0, f"contexts: [{4 * trained}]", "stretches: [ntk]")
    assert list(found) == [
        *(("none", context) for context in (8, trained, 2 * trained, 4 * trained)),
        ("ntk", 4 * trained),
        ("yarn", 2 * trained),
    ]
    assert list(found.values()) == [1, 1, 2, 3, 3, 2]
    scored(4.0, f"contexts: [{4 * trained}]", "stretches: [window, lm_infinite, power]", "first_tokens: 3")
    forms = forms_of(read_lengths(run.extrapolation("test")))
    assert forms == ["none", "ntk", "yarn", "lm_infinite-3", "power", "window"]
    with pytest.raises(UserError, match=r"task\.first_tokens=\d+: lm_infinite needs .* fewer than the trained"):
        scored(5.0, f"contexts: [{4 * trained}]", "stretches: [lm_infinite]", f"first_tokens: {trained}")


def test_each_result_is_scored_with_its_own_stretch(tmp_path, monkeypatch):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=2"))
    trained, seen = run.config["data"]["length"], []
    context = 3 * trained // 2

    def scored(transformer, store, split, context, *given):
        seen.append((context, *{layer.stretching for layer in transformer.encodings}, given[-1]))
        return [Bucket(False, 1, 4, 10, 1.0)]

    monkeypatch.setattr("bearings.tasks.extrapolate.score_by_position", scored)
    stretches = "stretches: [lm_infinite, dynamic_ntk]"
    extrapolated(run, tmp_path, f"contexts: [{context}]", stretches, "first_tokens: 3")
    given = {"factor": 1.5, "length": trained, "first": 3}
    assert seen == [
        (trained, None, False),
        (context, None, False),
        (context, Stretch("lm_infinite", **given), False),
        (context, Stretch("dynamic_ntk", **given), True),
    ]


def test_a_claim_may_have_the_contexts_that_are_scored_on_its_split():
    """The trained length always is, and the contexts of files are not."""
    assert Extrapolate(contexts=[8]).possible_contexts("test", 32) == {8, 32}
    assert Extrapolate(contexts=[8], split="valid").possible_contexts("test", 32) == set()
    assert Extrapolate(contexts=[8], files=[__file__]).possible_contexts("test", 32) == set()


def test_files_are_scored_as_one_document_each(tmp_path):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=2"))
    for name, text in (("a", "abc" * 30), ("b", "bca" * 10)):
        (tmp_path / f"{name}.txt").write_text(text)
    files = f"files: [{tmp_path / 'a.txt'}, {tmp_path / 'b.txt'}]"
    for _ in range(2):
        session, printed = extrapolated(run, tmp_path, files, "contexts: [16]", "stretches: [none]")
    assert "2 of 2 results exist already" in printed  # the same documents have the same name
    (file,) = (run.path / "extrapolation").glob("a-??????.csv")
    rows = read_lengths(file)
    assert {row["context"] for row in rows} == {16, session.data.length}
    assert sum(row["targets"] for row in rows if row["context"] == 16) == 90 + 30
    (tmp_path / "b.txt").write_text("cab" * 10)
    extrapolated(run, tmp_path, files, "contexts: [16]", "stretches: [none]")
    assert len([*(run.path / "extrapolation").glob("a-??????.csv")]) == 2


def test_texts_in_a_table_are_in_the_field_of_the_run(tmp_path):
    table = tmp_path / "my.csv"
    table.write_text("sequence\n" + "".join(f"{number:08b}\n" for number in range(200)))
    plain = configured(tmp_path, "encoding=rope", "trainer.steps=2", "task.samples=0")
    given = {"path": str(table), "field": "sequence", "tokenizer": "alphabet", "alphabet": "01"}
    plain["domain"] = composed("domain=text")["domain"] | given
    run, _ = go(plain | {"content": Text(**given).content(), "names": plain["names"] | {"domain": "text"}})
    extrapolated(run, tmp_path, f"files: {table}", "contexts: [16]", "stretches: [none]")
    (file,) = (run.path / "extrapolation").glob("my-??????.csv")
    assert sum(row["targets"] for row in read_lengths(file) if row["context"] == 16) == 200 * 8


@pytest.mark.parametrize(
    ("encoding", "limit", "longest"),
    [("absolute_learned", "encoding.length=200", 200), ("xpos", "encoding.scale_base=1.5", 193)],
)
def test_contexts_beyond_a_learned_table_or_the_range_of_floats_are_left_out(tmp_path, encoding, limit, longest):
    given = [f"encoding={encoding}", limit, "trainer.steps=2"]
    run, _ = go(configured(tmp_path, *given, "task.tokens=250"))
    _, printed = extrapolated(run, tmp_path, f"contexts: [8, {longest}, 201]", "stretches: [none]")
    assert f"left out contexts beyond the encoding's longest, {longest} tokens: 201" in printed
    trained = run.config["data"]["length"]
    assert {row["context"] for row in read_lengths(run.extrapolation("test"))} == {8, trained, longest}
    with pytest.raises(UserError, match=rf"^{limit}: .*(201|context of 201 tokens)"):
        Session.of(configured(tmp_path, *given, "data.length=201"))


def test_each_layer_of_a_pattern_is_stretched_as_it_supports():
    model = Transformer(7, partial(LayerPattern, layers=["nope", "rope"]), width=8, heads=2, layers=2)
    stretch_to(model, Stretch("yarn", 2.0, 16))
    assert [layer.stretching is None for layer in model.encodings] == [True, False]
    stretch_to(model, None)
    assert all(layer.stretching is None for layer in model.encodings)


def test_longrope_is_scored_with_factors_that_are_given_and_named_by_them(tmp_path):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=2"))
    trained, count = run.config["data"]["length"], 8  # frequencies of heads of 16
    for given in (["stretches: [longrope]"], ["stretches: [ntk]", f"long_factors: {[2.0] * count}"]):
        with pytest.raises(UserError, match=r"task\.stretches=longrope needs task\.long_factors"):
            extrapolated(run, tmp_path, *given)
    with pytest.raises(UserError, match=r"task\.long_factors: got 3 numbers; the encoding has 8 frequencies"):
        extrapolated(run, tmp_path, "long_factors: [1.0, 2.0, 3.0]")
    with pytest.raises(UserError, match=r"task\.long_factors=\[\]: longrope needs one number"):
        extrapolated(run, tmp_path, "short_factors: [1.0]")
    contexts = f"contexts: [{2 * trained}]"
    for factor in (2.0, 3.0):
        extrapolated(run, tmp_path, contexts, "stretches: [longrope]", f"long_factors: {[factor] * count}")
    plain, *others = forms_of(read_lengths(run.extrapolation("test")))
    assert (plain, len(others)) == ("none", 2)
    assert all(each.startswith("longrope-") for each in others)
    nats = [nats_by_context(read_lengths(run.extrapolation("test")), form)[2 * trained] for form in others]
    assert nats[0] != nats[1]


def test_a_call_that_is_interrupted_is_gone_on_with(tmp_path, monkeypatch):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=8"))
    trained, contexts, seen = run.config["data"]["length"], "contexts: [4, 8]", []

    def scored(transformer, store, split, context, *given):
        if context == 8 and 8 not in seen:
            seen.append(8)
            raise KeyboardInterrupt
        seen.append(context)
        return [Bucket(False, 1, 4, 10, 1.0)]

    monkeypatch.setattr("bearings.tasks.extrapolate.score_by_position", scored)
    with pytest.raises(KeyboardInterrupt):
        extrapolated(run, tmp_path, contexts, "stretches: [none]")
    rows = read_lengths(run.extrapolation("test"))
    assert [row["context"] for row in rows] == [4, trained]  # what a report compares with is there first
    assert lengths_table({"rope": [rows]}, "test").rows
    _, printed = extrapolated(run, tmp_path, contexts, "stretches: [none]")
    assert "2 of 3 results exist already; delete " in printed
    assert seen == [trained, 4, 8, 8]
    assert [row["context"] for row in read_lengths(run.extrapolation("test"))] == [4, 8, trained]
    extrapolated(run, tmp_path, contexts, "stretches: [none]", "split: valid")  # another split has a separate file
    assert len(seen) == 7


@pytest.mark.parametrize("when", [1, 2])
def test_a_call_that_is_interrupted_before_a_digest_is_recorded_is_gone_on_with(tmp_path, monkeypatch, when):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=8"))
    file, sealed = run.extrapolation("test"), []

    def interrupted(self, *files):
        sealed.append(files)
        if len(sealed) == when:
            raise KeyboardInterrupt
        seal(self, *files)

    seal = RunDirectory.seal
    monkeypatch.setattr(RunDirectory, "seal", interrupted)
    monkeypatch.setattr("bearings.tasks.extrapolate.score_by_position", lambda *given: [Bucket(False, 1, 4, 10, 1.0)])
    with pytest.raises(KeyboardInterrupt):
        extrapolated(run, tmp_path, "contexts: [4]", "stretches: [none]")
    assert len(read_lengths(file)) == when
    _, printed = extrapolated(run, tmp_path, "contexts: [4]", "stretches: [none]")
    assert f"{when} of 2 results exist already; delete " in printed
    assert run.manifest["files"]["extrapolation/test.csv"] == digest_of(file)


def test_a_table_that_was_changed_is_not_added_to(tmp_path, monkeypatch):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=2"))
    monkeypatch.setattr("bearings.tasks.extrapolate.score_by_position", lambda *_: [Bucket(False, 1, 4, 10, 1.0)])
    extrapolated(run, tmp_path, "contexts: [4]", "stretches: [none]")
    file = run.extrapolation("test")
    changed = file.read_text().replace("1.0", "0.5")
    file.write_text(changed)
    with pytest.raises(UserError, match=r"test\.csv has changed since the run wrote it"):
        extrapolated(run, tmp_path, "contexts: [8]", "stretches: [none]")
    assert file.read_text() == changed


def test_calls_at_the_same_time_keep_each_other_s_rows(tmp_path, monkeypatch):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=8"))
    file, bucket = run.extrapolation("test"), Bucket(False, 1, 4, 10, 1.0)

    def scored(transformer, store, split, context, trained, *given):
        """Another call ends while this one scores."""
        file.parent.mkdir(exist_ok=True)
        if context == trained:
            about = {"stretch": "none", "trained": trained, **bucket._asdict()}
            write_csv(file, [{**about, "context": context} for context in (8, trained)])
        return [bucket]

    monkeypatch.setattr("bearings.tasks.extrapolate.score_by_position", scored)
    session, _ = extrapolated(run, tmp_path, "contexts: [4]", "stretches: [none]")
    assert [row["context"] for row in read_lengths(file)] == [4, 8, session.data.length]


def test_a_table_that_cannot_be_written_leaves_the_one_before(tmp_path):
    file = tmp_path / "test.csv"
    write_csv(file, [{"context": 8}])

    class Unwritable:
        def __str__(self):
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        write_csv(file, [{"context": 4}, {"context": Unwritable()}])
    assert file.read_text().split() == ["context", "8"]


def test_a_run_that_is_not_finished_is_not_scored(tmp_path, monkeypatch):
    """Its best checkpoint may change: rows of two models would lie in one curve."""
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=8"))
    run.write_manifest(finished=None)
    monkeypatch.setattr("bearings.tasks.extrapolate.score_by_position", None)
    with pytest.raises(UserError, match=r"is not finished, .*: finish its training first"):
        extrapolated(run, tmp_path)
    assert not run.extrapolation("test").exists()


def test_a_kernel_without_support_for_a_stretch_is_reported_before_scoring(tmp_path, monkeypatch):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=8"))
    plain = yaml.safe_load(run.config_file.read_text())
    plain["encoding"]["implementation"] = "triton"
    run.config_file.write_text(yaml.safe_dump(plain))
    monkeypatch.setattr("bearings.tasks.extrapolate.score_by_position", None)
    with pytest.raises(UserError, match=r"encoding\.implementation=triton: .* encoding\.implementation=auto"):
        extrapolated(run, tmp_path, "stretches: [lm_infinite]")


def test_contexts_are_compared_on_the_targets_beyond_the_trained_length():
    about = {"stretch": "none", "trained": 16, "low": 8, "high": 16}
    levels = {(16, False): 1.0, (16, True): 2.0, (32, False): 5.0, (32, True): 2.5}
    rows = [
        {**about, "context": context, "beyond": beyond, "targets": 10, "nats": 10 * level}
        for (context, beyond), level in levels.items()
    ]
    assert nats_by_context(rows, "none") == {16: 2.0, 32: 2.5}
    assert nats_by_context([row for row in rows if not row["beyond"]], "none") == {16: 1.0, 32: 5.0}
