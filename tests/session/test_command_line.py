"""The command line: each mistake is reported in one line, and leaves no partial files."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_support import run_command  # noqa: F401
from conftest import DATA, REPOSITORY
from report_support import make_run

import bearings

CANONICAL = DATA / "jsb-chorales" / "Jsb16thSeparated.json"
needs_canonical = pytest.mark.data(CANONICAL)


MISTAKES = {
    "domain=jbs": "domain=jbs: did you mean jsb?",
    "encoding=pop": "encoding=pop: did you mean pope?",
    "encoding=PaTH": "encoding=PaTH: did you mean path?",
    "encoding=zzzzz": "encoding=zzzzz: allowed: ",
    "task=trian": "task=trian: did you mean train?",
    "experiment=pope_jbs": "experiment=pope_jbs: did you mean pope_jsb?",
    "domian=jsb": "domian: unknown key; did you mean domain?",
    "domain.sorce=music21": "domain.sorce: unknown key; did you mean domain.source?",
    "+encodings.pop.base=1.0": "encodings.pop: unknown encoding; did you mean pope?",
    "encoding.delta_int=zero": "encoding.delta_int: unknown key; did you mean encoding.delta_init?",
    "model.widht=64": "model.widht: unknown key; did you mean model.width?",
    "trainer.max_steps=3": "trainer.max_steps: unknown key; did you mean trainer.match_steps?",
    "trainer.batch_size=3": "trainer.batch_size: unknown key; did you mean data.batch_size?",
    "task=check task.tokens=3": "task.tokens: unknown key; this task has no options: leave it out",
    "encoding._target_=nonesuch.Spin trust=nonesuch": "encoding._target_=nonesuch.Spin: it cannot be imported "
    "(ModuleNotFoundError: No module named 'nonesuch'): install its package, or add the folder of the package to",
    "encoding=path encoding.window=8": "encoding.window: encoding=path attends to all tokens: use another encoding",
    "encoding=pattern encoding.window=8": "encoding.window: encoding=pattern sets windows in encoding.layers: set them",
    "runs=": "runs='': it should not be empty",
    "task=generate run=": "run='': it should not be empty",
    "+sed=3": "sed: unknown key; did you mean seed? allowed: domain, ",
    "+samples=3": "samples: unknown key; ",
    "+foo={a:3}": "foo: unknown key; ",
    "experiment=null": "experiment=null: leave it out, or name a file; allowed: debug, ",
    "encoding=": "encoding=: leave it out, or name a file; allowed: absolute_learned, ",
    "~encoding": "~encoding: settings cannot be removed: leave it out to use the default, or write encoding=VALUE\n",
    "~encoding.delta_init": "~encoding.delta_init: settings cannot be removed: ",
    "~seed task=check": "~seed: settings cannot be removed: ",
    "seed=0,1": "seed=0,1: for a sweep over these values, add -m; for a list, write seed=[0,1]",
    "encoding=rope,pope": "encoding=rope,pope: for a sweep over these values, add -m\n",
    "encoding=[rope,pope]": "encoding=[rope,pope]: name one file, or add -m and leave out the brackets for a sweep",
    "--experiment=debug": "--experiment=debug: unknown flag: write settings as key=value",
    "--experimental-rerun=nofile": "--experimental-rerun=nofile: there is no such file",
    "--resolve": "--resolve: it needs --cfg job",
    "steps=3": "steps: unknown key; did you mean trainer.steps?",
    "encoding=path encoding.base=3": "encoding.base: unknown key of encoding=path; allowed: encoding.beta_max, ",
    "data.batchsize=3": "data.batchsize: unknown key; did you mean data.batch_size?",
    "optimizer.lr=3": "optimizer.lr: unknown key; ",
    "task.sampels=3": "task.sampels: unknown key; did you mean task.samples?",
    "evaluation.overlaps=3": "evaluation.overlaps: unknown key; did you mean evaluation.overlap?",
    "+model.dropuot=0.1": "model.dropuot: unknown key; did you mean dropout?",
    "+evaluation.length=64": "evaluation.length: unknown key; ",
    "+model.seed=3": "model.seed: unknown key; ",
    "model.width=abc": "model.width='abc': it should be a valid integer",
    "model.width=1.5": "model.width=1.5: it should be a valid integer",
    "model.mlp=relu": "model.mlp='relu': it should be 'swiglu' or 'gelu'",
    "domain.source=midi": "domain.source='midi': it should be 'music21' or 'separated16'",
    "data.packed=3": "data.packed=3: it should be a valid boolean",
    "seed=-1": "seed=-1: it must be at least 0",
    "seed=99999999999999999999": "seed=99999999999999999999: it must be below 9,223,372,036,854,775,808",
    "task=generate task.sampling_seed=-1": "task.sampling_seed=-1: it must be at least 0",
    "model.mlp_hidden=0": "model.mlp_hidden=0: it must be at least 1, or null",
    "optimizer.learning_rate=nan": "optimizer.learning_rate=nan: it must be a finite number above 0",
    "domain.path=a(b": "domain.path=a(b: cannot be parsed; put a value with special characters in quotes",
    "task=report task.directories=[runs,a(b]": "task.directories=[runs,a(b]: cannot be parsed; check its brackets, and "
    "put each text with special characters in quotes, such as \"task.directories=['my folder',other]\"\n",
    "task=study task.settings={domain.path:a(b}": "task.settings={domain.path:a(b}: cannot be parsed; check its "
    "brackets, and put each text with special characters in quotes, such as \"task.settings={KEY:'my folder'}\"\n",
    "domain._target_=bearings.domains.nonesuch.Dice": "domain._target_=bearings.domains.nonesuch.Dice: it cannot be "
    "imported (ModuleNotFoundError: No module named 'bearings.domains.nonesuch')",
    "--epochs 3": "--epochs: unknown flag: write settings as key=value, such as trainer.steps=100",
    "--cfg": "argument --cfg/-c: expected one argument: write settings as key=value",
    "rope": "rope: write settings as key=value, such as encoding=rope",
    "experiment=debug model=base": "model=base: experiment=debug sets model.width, model.layers, model.heads itself",
    "seed=x": "seed='x': it should be a valid integer",
    "trainer.precision=8": "trainer.precision=8: it should be 'auto', '32-true' or 'bf16-mixed'",
    "model.width=130": "model.width=130 is not a multiple of heads=3",
    "model.head_dim=31 encoding=rope": "model.head_dim=31",
    "model.kv_heads=2": "model.kv_heads=2 does not divide heads=3",
    "data.length=510": "data.length=510: domain jsb needs a multiple of 4",
    "evaluation.overlap=1.0": "evaluation.overlap=1.0: it must be in [0, 1)",
    "trainer.steps=0": "trainer.steps=0: nothing would be trained: use 1 or more, or set model.pretrained",
    "task.temperature=-1.0": "task.temperature=-1.0",
    "task=generate task.temperature=nan": "task.temperature=nan: it must be a finite number",
    "optimizer.learning_rate=-1": "optimizer.learning_rate=-1",
    "trainer.accelerator=gpu": "trainer.accelerator=gpu: no CUDA GPU is visible",
    "model.width=": "model.width=''",
    "model.width": "",
    "task=tune task.rates=1e-3": "task.rates=0.001: it should be a list, as task.rates=[0.001]",
    "domain=genome domain.valid=C": "domain.valid='C': it should be a list, as domain.valid=[C]",
    "task=tune task.seeds=3": "task.seeds=3: it should be a list, as task.seeds=[3]",
    "domain=genome domain.valid=21": "domain.valid=21: it should be a list, as \"domain.valid=['21']\"",
    "task=tune task.grid=3": "task.grid=3: it should be a mapping, as task.grid={KEY:VALUE}",
    "task=tune task.grid={model.dropout:0.1}": "task.grid: model.dropout=0.1 should be a list, as task.grid={model.",
    "task=tune task.rates='[1e-3,1e-2]'": "task.rates='[1e-3,1e-2]': it should be a list, without quotes around it\n",
    "task=tune task.rates=fast": "task.rates='fast': it should be a list\n",
    "optimizer.betas=null": "optimizer.betas=null: it should be a list\n",
    "domain=genome domain.valid=true": "domain.valid=true: it should be a list\n",
    f"task=tune task.seeds=[{2**63}]": f"task.seeds=[{2**63}]: each must be 0 or more and below 2**63",
    "task=evaluate": "run=null: this task needs run=DIRECTORY",
    "task=generate run=nowhere": "run=nowhere: nowhere/config.yaml does not exist",
    "domain.source=separated16 domain.path=nowhere.json": "nowhere.json",
    "domain=flip_flop data.length=256": "data.length=256: domain flip_flop needs at least 512, its longest example",
    "domain=mqrar domain.queries=2.0": "domain.queries=2.0: it must be in (0, 1]",
    "task=report seed=3": "seed=3: task=report does not read this setting; it reads task.*, trust, runs, stores",
    "task=study study=jsb encoding=rope": "encoding=rope: task=study does not read this setting; it reads task.*, ",
    "task=report": "runs: no such folder; set runs=",
    "task=report task.directories=[elsewhere]": "elsewhere: no such folder; set runs=",
    "task=report task.directories=[]": "task.directories=[]: name at least one folder of runs",
    "task=report task.margin=0": "task.margin=0.0: it must be above 0, or null for that of the study or the domain",
    "domain=text task=prepare": "domain.path is not set: give a file or folder of",
    "match=parms": "match='parms': it should be 'params' or 'flops'",
    "match=flops model.mlp_hidden=8 encoding=path": "match=flops: the encoding costs more than the whole MLP of model",
    "task=tune task.rates=[1e-3]": "task.rates=[0.001]: give at least two learning rates",
    "task=tune task.rates=[nan,1e-3]": "task.rates=[nan, 0.001]: give at least two learning rates, finite and",
    "task=extrapolate": "run=null: this task needs run=DIRECTORY",
    "task=extrapolate task.contexts=[]": "task.contexts=[]: give at least one length",
    "task=mechanisms": "run=null: this task needs run=DIRECTORY",
    "task=keep run=nowhere": "run=nowhere: nowhere/config.yaml does not exist",
    "evaluation.validation_tokens=0": "evaluation.validation_tokens=0: it must be at least 1",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(run, tmp_path, arguments):
    status, out, err = run(*arguments.split())
    assert status == 2
    assert re.fullmatch(r"error: [^\n]+\n", err), err
    assert err.startswith("error: " + MISTAKES[arguments])
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("encoding=rope,path encoding.window=8", "encoding.window: encoding=path attends to all tokens"),
        (
            "encoding=pope,rope seed=0,1 encoding.delta_init=zero",
            "encoding.delta_init: unknown key of encoding=rope; allowed: encoding.base, ",
        ),
        (
            "encoding=rope,pope encoding.delta_int=zero",
            "encoding.delta_int: unknown key of encoding=pope; did you mean encoding.delta_init? allowed: ",
        ),
    ],
)
def test_a_mistake_in_a_sweep_names_the_choice_without_the_key(run, tmp_path, arguments, message):
    status, _, err = run("-m", *arguments.split())
    assert status == 2
    assert re.fullmatch(r"error: [^\n]+\n", err), err
    assert err.startswith("error: " + message)
    assert not (tmp_path / "runs" / "jsb").exists()


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


def test_an_unwritable_place_is_one_line(run, tmp_path):
    (tmp_path / "file").write_text("")
    status, _, err = run("task=prepare", "stores=file/data")
    assert status == 2
    assert re.fullmatch(r"error: file[^\n]*choose other[^\n]*\n", err), err


@pytest.mark.parametrize("place", ["file/out", f"{300 * 'o'}", "/proc/out"])
@pytest.mark.parametrize("task", ["report", "keep", "export"])
def test_a_place_where_no_folder_can_be_made_is_one_line(run, tmp_path, task, place):
    (tmp_path / "file").write_text("")
    path = make_run(tmp_path / "runs", "rope", 0)
    status, _, err = run(f"task={task}", f"task.out={place}", *([] if task == "report" else [f"run={path}"]))
    assert status == 2
    assert err.startswith(f"error: {place.split('/')[0]}")
    assert re.fullmatch(r"error: [^\n]*choose other folders [^\n]*task.out[^\n]*\n", err), err


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
    assert err.startswith(f"error: domain.path=other: not the data of {folder} (files differ)")
    assert run(*again, "domain.path=nowhere")[0] == 2
    assert "++domain.path=other: not the data of" in run(*again, "++domain.path=other")[2]
    assert (folder / "nll" / "test.npz").read_bytes() == before


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
    # Subfolders of a genome's folder are not searched.
    Path("mine", "g.fa").write_text("".join(f">{name}\n{'ACGGT' * 200}\n" for name in "abc"))
    named = [f"domain.{split}=[{name}]" for split, name in zip(("train", "valid", "test"), "abc", strict=True)]
    for path in Path("mine").glob("*.txt"):
        path.unlink()
    assert run("experiment=debug", "domain=genome", "domain.path=mine", "runs=mine/runs", "task=check", *named)[0] == 0


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
