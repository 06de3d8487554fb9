"""The command line: whole runs, and faults of files, folders and the network in one line."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from command_support import run_command  # noqa: F401
from conftest import DATA, REPOSITORY
from hydra._internal.hydra import Hydra
from report_support import make_run

import bearings
from bearings.core.errors import UserError
from bearings.session.explaining import one_line_errors

CANONICAL = DATA / "jsb-chorales" / "Jsb16thSeparated.json"
needs_canonical = pytest.mark.data(CANONICAL)


@needs_canonical
def test_a_truncated_file_is_refused(run, tmp_path):
    wrong = tmp_path / "Jsb16thSeparated.json"
    wrong.write_bytes(CANONICAL.read_bytes()[:70000])
    status, _, err = run("task=prepare", "domain.source=separated16", f"domain.path={wrong}")
    assert status == 2
    assert re.fullmatch(r"error: [^\n]*Jsb16thSeparated.json is not JSON [^\n]*\n", err), err
    assert [p.name for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".lock"] == ["Jsb16thSeparated.json"]


def test_no_network_is_one_line_with_a_way_out(run, tmp_path):
    status, _, err = run("task=prepare", "domain.source=separated16", "domain.urls=[http://127.0.0.1:9/f.json]")
    assert status == 2
    assert re.fullmatch(r"error: [^\n]*domain.path=[^\n]*\n", err), err


def row_of(model, out):
    (row,) = (line.strip("│ ").split() for line in out.splitlines() if line.startswith(f"│ {model}"))
    return row


@needs_canonical
def test_a_whole_run_on_the_canonical_file_then_evaluate_and_generate(run, tmp_path):
    given = ["domain.source=separated16", f"domain.path={CANONICAL}", "experiment=debug", "trainer.accelerator=cpu"]
    status, out, err = run(*given, "task.tokens=128")
    assert status == 0, err
    assert "bits/note" in out
    assert "Markov" in out
    assert "55,228 sixteenths" in out
    assert "\nbar 1" in out
    other, report, samples = (shlex.split(line)[2:] for line in out.partition("next steps")[2].splitlines()[2::2])
    (directory,) = (path.parent for path in tmp_path.glob("runs/jsb/pope/*/config.yaml"))
    assert other == ["encoding=rope", *given]
    assert run(*other, "task=check")[0] == 0
    assert run(*report)[0] == 0
    status, again, err = run(*samples, "task.tokens=16")
    assert (status, err) == (0, "")
    assert "seed1-tokens16" in again
    first = row_of("pope", out)
    status, out, err = run("task=evaluate", f"run={directory}", f"domain.path={CANONICAL}", "trainer.accelerator=cpu")
    assert status == 0, err
    assert row_of("pope", out) == first
    prompt = directory / "samples" / "sample-0.mid"
    arguments = ["task.tokens=16", "task.samples=1", f"task.prompt={prompt}", f"domain.path={CANONICAL}"]
    status, out, err = run("task=generate", f"run={directory}", "trainer.accelerator=cpu", *arguments)
    assert status == 0, err
    assert len([*(directory / "samples").glob("seed0-samples1-tokens16-top_p0.9-sample-0-??????-0.mid")]) == 1
    status, _, err = run("task=evaluate", f"run={directory}", "encoding=rope")
    assert status == 2
    assert err.startswith("error: encoding=rope: ")
    assert "leave out this setting" in err
    status, _, err = run("task=generate", f"run={directory}", f"task.prompt={CANONICAL}")
    assert status == 2
    assert re.fullmatch(r"error: [^\n]*Jsb16thSeparated.json[^\n]*\n", err), err


@needs_canonical
def test_check_and_prepare_train_nothing(run, tmp_path):
    given = ["domain.source=separated16", f"domain.path={CANONICAL}"]
    status, out, err = run("task=check", *given)
    assert status == 0, err
    for word in ("parameters", "MFLOPs", "MiB", "attention", "learning rate", "not started"):
        assert word in out
    status, out, err = run("task=prepare", *given)
    assert status == 0, err
    assert "220,912 tokens" in out
    assert not (tmp_path / "runs").exists()


def test_check_says_that_the_warm_up_does_not_end(run):
    for steps, remark in ((50, "50 warm-up steps (more than the run has), cosine"), (51, "50 warm-up steps, cosine")):
        _, out, _ = run("task=check", "domain=flip_flop", f"trainer.steps={steps}")
        assert remark in " ".join(out.split())


def test_check_says_that_the_warm_up_after_the_drop_of_positions_does_not_end(run):
    given = "task=check", "domain=flip_flop", "encoding=rope", "encoding.drop_after=0.9"
    for steps, remark in ((500, " (more than are left from step 450 on)"), (510, "")):
        _, out, _ = run(*given, f"trainer.steps={steps}")
        assert f"50 warm-up steps{remark}, cosine" in " ".join(out.split())


@pytest.mark.parametrize(("packed", "most"), [("false", "at most "), ("true", "")])
def test_check_says_that_rows_which_are_not_full_take_less_time(run, packed, most):
    Path("mine").mkdir()
    for part in ("train", "valid", "test"):
        Path("mine", f"{part}.txt").write_text(f"{part} text " * 30)
    given = ("domain=text", "domain.path=mine", "domain.tokenizer=bytes", "domain.split=files")
    status, out, err = run("task=check", "experiment=debug", *given, f"data.packed={packed}")
    assert status == 0, err
    assert re.search(rf"training time +{most}\S+ FLOPs, under a minute", out)


def test_a_banner_in_a_file_keeps_each_line_whole(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = run("task=check", "domain=flip_flop", "experiment=debug", "data.length=512")
    assert re.search(r"^run +\S+/small-\w{8}-s0 \(not started\)$", out, re.MULTILINE)
    assert not re.search(r" $", out, re.MULTILINE)


def test_an_unwritable_place_is_one_line(run, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = run("task=prepare", "stores=file/data")
    assert status == 2
    assert re.fullmatch(r"error: file[^\n]*choose another[^\n]*\n", err), err


@pytest.mark.parametrize("place", ["file/out", f"{300 * 'o'}", "/proc/out"])
@pytest.mark.parametrize("task", ["report", "keep", "export"])
def test_a_place_where_no_folder_can_be_made_is_one_line(run, tmp_path, task, place):
    (tmp_path / "file").write_text("")
    path = make_run(tmp_path / "runs", "rope", 0)
    status, _, err = run(f"task={task}", f"task.out={place}", *([] if task == "report" else [f"run={path}"]))
    assert status == 2
    assert place.split("/")[0] in err
    assert re.fullmatch(r"error: [^\n]*choose another folder [^\n]*task.out[^\n]*\n", err), err


def test_help_shows_commands_choices_and_options(run):
    status, out, _ = run("--help")
    assert status in (0, None)
    for text in ("python main.py", "task=generate", "optimizer: ", "encoding:\n    causal mask only: nope\n"):
        assert text in out


def test_the_version_is_that_of_this_project(run):
    assert run("--version") == (0, f"bearings {bearings.__version__}\n", "")


def test_the_interpreter_starts_with_the_repository_on_its_path():
    """A regular package named `encodings` here would shadow Python's own."""
    environment = {**os.environ, "PYTHONPATH": "."}
    done = subprocess.run([sys.executable, "-c", "print('up')"], cwd=REPOSITORY, env=environment, capture_output=True)
    assert done.stdout.strip() == b"up"


def test_errors_reach_the_shell_as_one_line_with_a_status(tmp_path):
    command = [sys.executable, str(REPOSITORY / "main.py"), "domain=jbs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(r"error: [^\n]+\n", done.stderr)
    assert done.stdout == ""


def test_output_that_nobody_reads_any_more_ends_the_program_silently():
    script = "from bearings.session.explaining import one_line_errors as of\nwith of():\n    while True: print(1)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert (process.wait(), process.stderr.read()) == (1, b"")


def test_a_traceback_is_shown_on_request(monkeypatch):
    monkeypatch.setenv("BEARINGS_TRACEBACK", "1")
    with pytest.raises(UserError), one_line_errors():
        raise UserError


def test_help_does_not_read_every_file_of_choices(run, monkeypatch):
    monkeypatch.setattr(Hydra, "list_all_config_groups", lambda *_: pytest.fail("Hydra lists all files"))
    assert run("--help")[0] in (0, None)


def test_settings_may_be_on_both_sides_of_a_flag(run):
    status, out, err = run("experiment=debug", "--cfg", "job", "seed=5")
    assert (status, err) == (0, "")
    assert "\nseed: 5\n" in f"\n{out}"
    assert "\n  steps: 20\n" in out


def test_a_task_with_answers_reports_accuracy_on_every_test_split(run):
    small = "domain=flip_flop domain.length=32 domain.train=20 domain.valid=5 domain.test=5 domain.sparse=5"
    given = [*small.split(), "domain.dense=5", "experiment=debug", "trainer.accelerator=cpu"]
    for seed, seeds in ((0, 1), (1, 2)):
        status, out, err = run(*given, f"seed={seed}")
        assert (status, err) == (0, "")
        for split in ("test", "sparse", "dense"):
            assert f"{split} split, scored once" in out
        assert out.count(f"of {seeds} seed") == 3
        assert "accuracy" in out
    (folder,) = Path("runs/flip_flop/pope").glob("*-s0")
    assert sorted(path.stem for path in (folder / "nll").iterdir()) == ["dense", "sparse", "test", "valid"]
    example, answered = ((folder / "samples" / f"{name}-0.txt").read_text() for name in ("example", "answered"))
    assert len(example) == len(answered)
    assert all(a == b for a, b, before in zip(example[1:], answered[1:], example, strict=False) if before != "r")
    status, out, _ = run("task=evaluate", f"run={folder}", "task.split=sparse", "trainer.accelerator=cpu")
    assert status == 0
    assert "sparse split of" in out
    for before, after in ((("--cfg", "job"), ()), ((), ("--cfg", "job")), ((), ("--help",))):
        status, out, _ = run(*before, "task=evaluate", f"run={folder}", *after)
        assert (status, "flip_flop" in out) == (0, True)
    # The keys are those of the run's domain, whether it is given or not.
    for own in ((), ("domain=flip_flop",)):
        status, _, err = run("task=evaluate", f"run={folder}", *own, "domain.sparse=7")
        assert (status, err.startswith(f"error: domain.sparse=7: {folder} was made with domain.sparse=5")) == (2, True)
        assert run("task=evaluate", f"run={folder}", *own, "domain.sparse=5", "trainer.accelerator=cpu")[0] == 0
    status, _, err = run("task=evaluate", f"run={folder}", "encoding.clock=medium")  # the run has the default
    assert (status, f"{folder} was made with encoding.clock=index, and" in err) == (2, True)
    status, _, err = run("task=evaluate", f"run={folder}", "domain=mqrar")
    assert (status, err.startswith(f"error: domain=mqrar: {folder} was made with domain=flip_flop")) == (2, True)
    status, _, err = run("task=evaluate", f"run={folder}", "task.split=spares")
    assert (status, err) == (2, "error: task.split=spares: did you mean sparse? allowed: valid, test, sparse, dense\n")
    Path("question.txt").write_text("w1i0r")
    status, out, _ = run(
        "task=generate", f"run={folder}", "task.prompt=question.txt", "task.tokens=1", "task.samples=1"
    )
    assert status == 0
    (written,) = (folder / "samples").glob("*question*-0.txt")
    assert written.read_text().startswith("w1i0r")


def test_a_run_is_scored_only_on_its_own_data(run):
    for name in ("mine", "moved", "other"):
        Path(name).mkdir()
        for part in ("train", "valid", "test"):
            Path(name, f"{part}.txt").write_text(f"{part} {'other' if name == 'other' else 'text'} " * 30)
    data = ("domain=text", "domain.path=mine", "domain.tokenizer=bytes", "domain.split=files")
    status, _, err = run("experiment=debug", "trainer.steps=2", "model.width=16", "trainer.accelerator=cpu", *data)
    assert (status, err) == (0, "")
    (folder,) = Path("runs/text/pope").glob("*-s0")
    again = ("task=evaluate", f"run={folder}", "trainer.accelerator=cpu")
    assert run(*again, "domain.path=moved")[0] == 0
    before = (folder / "nll" / "test.npz").read_bytes()
    status, _, err = run(*again, "domain.path=other")
    assert status == 2
    assert err.startswith(f"error: domain.path=other: not the data of {folder} (different files)")
    assert run(*again, "domain.path=nowhere")[0] == 2
    assert "++domain.path=other: not the data of" in run(*again, "++domain.path=other")[2]
    assert (folder / "nll" / "test.npz").read_bytes() == before


def test_a_run_is_scored_only_with_its_own_tokenizer(run):
    Path("mine").mkdir()
    for part in ("train", "valid", "test"):
        Path("mine", f"{part}.txt").write_text(f"{part} text " * 30)
    for size in (260, 270):
        tokenizer = tokenizers.ByteLevelBPETokenizer()
        tokenizer.train_from_iterator(["train valid test text " * 9], size, special_tokens=["<|endoftext|>"])
        tokenizer.save(f"{size}.json")
    data = ("domain=text", "domain.path=mine", "domain.tokenizer=pretrained", "domain.split=files")
    small = ("experiment=debug", "trainer.steps=2", "model.width=16", "trainer.accelerator=cpu")
    status, _, err = run(*small, *data, "domain.tokenizer_path=260.json")
    assert (status, err) == (0, "")
    (folder,) = Path("runs/text/pope").glob("*-s0")
    again = ("task=evaluate", f"run={folder}", "trainer.accelerator=cpu")
    assert run(*again, "domain.tokenizer_path=260.json")[0] == 0
    status, _, err = run(*again, "domain.tokenizer_path=270.json")
    assert status == 2
    assert err.startswith(
        f"error: domain.tokenizer_path=270.json: not the data of {folder} (different tokenizer_sha256)"
    )


def test_runs_inside_the_data_folder_are_refused(run, monkeypatch):
    Path("mine").mkdir()
    for part in ("train", "valid", "test"):
        Path("mine", f"{part}.txt").write_text(f"{part} text " * 30)
    given = ("experiment=debug", "domain=text", "domain.tokenizer=bytes", "domain.split=files", "task=check")
    assert run(*given, "domain.path=mine")[0] == 0
    Path("mine", "begun").mkdir()
    for path, place in (
        *(("mine", f"runs={place}") for place in ("mine/runs", "mine")),
        *(("mine", f"run={place}") for place in ("mine/r1", "mine/begun")),
        (".", "runs=runs"),
    ):
        status, _, err = run(*given, f"domain.path={path}", place)
        assert status == 2
        assert err.startswith(f"error: domain.path={path}: {place} is inside this folder")
    monkeypatch.setenv("HOME", str(Path.cwd()))
    status, _, err = run(*given, "domain.path='~/mine'", "runs=mine/runs")
    assert (status, err.startswith("error: domain.path=~/mine: runs=mine/runs is inside this folder")) == (2, True)
    Path("mine", "g.fa").write_text(">a\nACGT\n")
    for path in ("mine", "[other.fa,mine]"):
        status, _, err = run("experiment=debug", "domain=genome", f"domain.path={path}", "runs=mine/runs", "task=check")
        assert (status, "runs=mine/runs is inside this folder" in err) == (2, True)


def test_a_tilde_is_expanded_in_every_path(run, monkeypatch):
    Path("home").mkdir()
    monkeypatch.setenv("HOME", str(Path("home").absolute()))
    given = ("experiment=debug", "domain=flip_flop", "domain.length=60", "trainer.steps=2", "trainer.accelerator=cpu")
    assert run(*given, "runs='~/runs'", "stores='~/data'")[0] == 0
    (made,) = Path("home", "runs").glob("*/*/*")
    at = f"run='~/{made.relative_to('home')}'"
    assert run("task=evaluate", at, "stores='~/data'", "domain.length=60", "trainer.accelerator=cpu")[0] == 0
    assert run("task=keep", at, "stores='~/data'", "task.out='~/kept/copy'")[0] == 0
    assert run("task=report", "task.directories=['~/kept']", "task.out='~/report'")[0] == 0
    assert sorted(path.name for path in Path("home").iterdir()) == ["data", "kept", "report", "runs"]
    assert not Path("~").exists()


def test_a_place_that_cannot_be_made_is_reported_before_the_data_are_prepared(run):
    Path("file").write_text("")
    status, _, err = run("experiment=debug", "domain=flip_flop", "data.length=512", "runs=file/runs")
    assert status == 2
    assert re.fullmatch(r"error: [^\n]*file: a part of the path is a file[^\n]*\n", err), err
    assert not Path("data").exists()


def test_a_broken_link_in_place_of_a_folder_is_one_line(run):
    Path("runs").symlink_to("/nowhere/at/all")
    status, _, err = run("experiment=debug", "trainer.steps=2", "trainer.accelerator=cpu")
    assert status == 2
    assert re.fullmatch(r"error: [^\n]*runs: a file or a broken link is where a folder should be[^\n]*\n", err)
