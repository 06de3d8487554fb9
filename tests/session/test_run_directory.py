"""A run's directory: one configuration, source and process; lost, damaged or changed files are reported."""

import io
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console
from tokenizers import Tokenizer
from training_support import LETTERS, configured, go

from bearings.core.checked_files import read_csv
from bearings.core.errors import UserError, explain_os_error
from bearings.domains.records import Records
from bearings.domains.tokenization import BPE
from bearings.lightning_modules.callbacks import ProgressLine
from bearings.session.configuration import build, resolve
from bearings.session.models import read_checkpoint
from bearings.session.run_choices import configuration_for
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.session.settings import CONFIGS


def test_printing_a_finished_run_does_not_change_its_manifest(tmp_path):
    run, _ = go(configured(tmp_path))
    before = run.manifest
    assert len(before["sessions"]) == 1
    go(configured(tmp_path))
    assert run.manifest == before


def test_a_damaged_configuration_is_written_again_by_the_command_that_trained_the_run(tmp_path):
    run, _ = go(configured(tmp_path))
    whole = run.config_file.read_bytes()
    run.config_file.write_bytes(whole[: len(whole) // 2] + b"\n{")
    with pytest.raises(UserError, match=r"config\.yaml cannot be read .*: copy the run again, or delete this file and"):
        go(configured(tmp_path))
    run.config_file.unlink()
    go(configured(tmp_path))
    assert run.config_file.read_bytes() == whole


def test_a_directory_of_another_configuration_is_refused(tmp_path):
    run, _ = go(configured(tmp_path))
    other = configured(tmp_path, "optimizer.learning_rate=0.5") | {"run": str(run.path)}
    with pytest.raises(UserError, match=r"another configuration \(optimizer.learning_rate=0.004, not 0.5\)"):
        go(other)
    assert go(configured(tmp_path, "trainer.checkpoint_every=3") | {"run": str(run.path)})


def test_a_directory_of_other_data_is_refused_without_their_digest(tmp_path):
    run, _ = go(configured(tmp_path))
    with pytest.raises(UserError, match=r"-s0 was made from other data: leave out run="):
        RunDirectory.of(run.config | {"run": str(run.path), "content": {"files": "0" * 64}})
    other = configured(tmp_path, "optimizer.learning_rate=0.5") | {"run": str(run.path), "content": {"files": "0" * 64}}
    with pytest.raises(UserError, match=r"another configuration \(optimizer.learning_rate=0.004, not 0.5\)"):
        RunDirectory.of(other)


def test_seeds_and_configurations_have_directories_of_their_own(tmp_path):
    paths = {
        str(RunDirectory.of(configured(tmp_path, *overrides)).path)
        for overrides in (
            *([], ["seed=1"], ["model.width=64"], ["encoding.base=500.0"], ["data.packed=true"]),
            ["encoding.implementation=torch"],  # auto depends on the machine
        )
    }
    assert len(paths) == 6
    same = configured(tmp_path, "data.workers=3", "trainer.log_every=2")
    assert str(RunDirectory.of(same).path) in paths


def test_a_checkpoint_of_another_encoding_is_refused(tmp_path):
    rope, _ = go(configured(tmp_path, "encoding=rope"))
    pope, _ = go(configured(tmp_path, "encoding=pope"))
    pope.best.write_bytes(rope.best.read_bytes())
    pope.write_manifest(files={})  # as of a run that recorded none
    plain = RunDirectory.open(pope.path).config
    evaluate = {**plain, "task": configured(tmp_path, task="evaluate")["task"], "run": str(pope.path)}
    with pytest.raises(UserError, match=r"was trained with encoding .*RoPE.* has .*PoPE"):
        go(evaluate)
    pope.best.write_bytes(rope.best.read_bytes()[:5000])
    with pytest.raises(UserError, match=r"best.ckpt is damaged .* delete .* and train the run again"):
        go(evaluate)
    pope.best.unlink()
    with pytest.raises(UserError, match=r"best.ckpt does not exist: .* was lost: delete .* and train the run again"):
        go(evaluate)
    pope.write_manifest(finished=False)
    with pytest.raises(UserError, match=r"best.ckpt was lost: delete .* and train the run again"):
        go(configured(tmp_path, "encoding=pope"))


@pytest.mark.parametrize(("task", "file"), [("evaluate", "nll/test.npz"), ("mechanisms", "mechanisms/attention.csv")])
def test_results_that_are_replaced_by_an_interrupted_task_have_no_digest(tmp_path, monkeypatch, task, file):
    run, _ = go(configured(tmp_path))
    assert file in run.manifest["files"]

    def interrupted(self, *files):
        raise KeyboardInterrupt

    monkeypatch.setattr(RunDirectory, "seal", interrupted)
    with pytest.raises(KeyboardInterrupt):
        go({**run.config, "task": configured(tmp_path, task=task)["task"], "run": str(run.path)})
    assert file not in run.manifest["files"]


def test_a_run_is_scored_and_continued_by_its_store_though_its_source_is_gone(tmp_path):
    text = tmp_path / "mine.txt"
    whole = "".join(f"this is line {i} of {i * i % 7}\n" for i in range(200))
    text.write_text(whole)
    line = tmp_path / "line.txt"
    line.write_text("this is line 7 of 0\n")
    small = ["domain.tokenizer=train", "domain.vocabulary_size=270", "domain.documents=line", f"domain.path={text}"]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        plain = resolve(compose("config", overrides=["domain=text", *LETTERS, *small]))
        tasks = {task: compose("config", overrides=[f"task={task}"])["task"] for task in ("evaluate", "export")}
        tasks["score"] = compose("config", overrides=["task=score", f"task.files=[{line}]"])["task"]
    tasks = {name: OmegaConf.to_container(task) for name, task in tasks.items()}
    names = {"domain": "text", "encoding": "pope", "model": "small"}
    plain |= {"names": names, "runs": str(tmp_path / "runs"), "stores": str(tmp_path / "data")}
    session = Session.of(plain)
    build(plain["task"], "task")(session)
    run = RunDirectory.of(session.config)
    before = Records.load(run.records("test"))
    config = RunDirectory.open(run.path).config
    for change in (lambda: text.write_text("other\n"), text.unlink):
        change()
        for task in tasks.values():
            session = Session.of({**config, "task": task, "run": str(run.path)})
            session.console = Console(file=io.StringIO(), width=200)
            build(task, "task")(session)
        assert np.array_equal(Records.load(run.records("test")).nats, before.nats)
        assert session.domain.decode(session.store().document(0)[1:])
        shared = run.path / "export" / "tokenizer.json"
        assert BPE.read(shared).digest == session.domain.codec.digest
        peer = Tokenizer.from_file(str(shared))
        assert peer.decode(peer.encode("this is line 7").ids) == "this is line 7"
    (learnt,) = (tmp_path / "data" / "text" / "tokenizers").glob("*.json")
    text.write_text(whole)
    before = learnt.read_bytes()
    learnt.unlink()
    build(dict(tasks["score"]), "task")(Session.of({**config, "run": str(run.path)}))
    assert learnt.read_bytes() == before  # of the same text, the same is learned
    other = BPE.train(["quite other words"] * 9, 260)
    for spoil, message in (
        (lambda: other.write(learnt), "this is not the tokenizer that the data"),
        (learnt.unlink, "the tokenizer that the data were encoded with, is missing: restore it"),
    ):
        spoil()
        for source in (None, "".join(f"other {i} lines\n" for i in range(300))):
            text.unlink(missing_ok=True) if source is None else text.write_text(source)
            session = Session.of({**config, "task": dict(tasks["score"]), "run": str(run.path)})
            with pytest.raises(UserError, match=message):
                build(dict(tasks["score"]), "task")(session)
    assert not learnt.exists()
    shutil.rmtree(run.path / "export")
    with pytest.raises(UserError, match="restore it"):
        build(dict(tasks["export"]), "task")(session)
    assert not (run.path / "export").exists()
    text.unlink()
    session = Session.of({**config, "stores": str(tmp_path / "elsewhere"), "run": str(run.path)})
    with pytest.raises(UserError, match=r"are not in stores=.*elsewhere, name the folder that holds them with stores="):
        session.store()
    (tokens,) = (tmp_path / "data").rglob("tokens.bin")
    tokens.write_bytes(b"cut")
    with pytest.raises(UserError, match=r"tokens.bin has .* to rebuild it$"):
        Session.of({**config, "run": str(run.path)}).store()
    with pytest.raises(UserError, match=r"best.ckpt is a file: give the directory of a run of task=train"):
        RunDirectory.open(run.best)
    assert run.manifest["scored"]["test"]["code"].keys() == {"commit", "dirty"}


def test_a_run_that_was_not_tested_is_when_it_is_shown(tmp_path):
    run, _ = go(configured(tmp_path))
    tested = Records.load(run.records("test"))
    run.records("test").unlink()
    _, text = go(configured(tmp_path))
    assert "already finished" in text
    assert np.array_equal(Records.load(run.records("test")).nats, tested.nats)


def test_splits_that_two_processes_score_at_once_are_both_noted(tmp_path, monkeypatch):
    run, _ = go(configured(tmp_path, "trainer.steps=2"))
    inner = RunDirectory._manifest_locked

    def locked(self):
        monkeypatch.setattr(RunDirectory, "_manifest_locked", inner)
        run.note_score("valid")  # by the other process, which has the lock first
        return inner(self)

    monkeypatch.setattr(RunDirectory, "_manifest_locked", locked)
    run.note_score("test")
    assert run.manifest["scored"].keys() == {"valid", "test"}


def test_a_changed_source_is_reported(tmp_path, monkeypatch):
    states = [{"commit": "a" * 40, "dirty": None}, {"commit": "a" * 40, "dirty": "b" * 12}]
    monkeypatch.setattr("bearings.session.provenance.git_state", lambda: states[0])
    _, text = go(configured(tmp_path))
    assert "source has changed" not in text
    assert "source has changed" not in go(configured(tmp_path))[1]
    states.pop(0)
    version = r"aaaaaaaaaa with changes (\w{12})"  # the domain is of another package
    line = re.search(f"since this run was last trained: from {version} to {version}", go(configured(tmp_path))[1])
    assert line[1] != line[2]


def test_a_damaged_manifest_is_reported(tmp_path):
    run, _ = go(configured(tmp_path))
    manifest = run.path / "manifest.json"
    manifest.write_text(manifest.read_text()[:100])
    with pytest.raises(UserError, match=r"manifest.json is damaged .* train the run again"):
        go(configured(tmp_path))


def test_a_task_of_a_run_takes_no_other_configuration(tmp_path):
    plain = configured(tmp_path)
    run, _ = go(plain)
    for given in ("experiment=debug", "match=params"):
        with pytest.raises(UserError, match=f"{given.split('=')[0]}: this task uses the configuration of"):
            configuration_for(RunDirectory.open(run.path), plain, [given, f"run={run.path}"])


@pytest.mark.parametrize("given", ["trainer.devices=2", "trainer.devices=0", "trainer.nodes=2"])
def test_a_task_of_a_run_uses_one_device(tmp_path, given):
    plain = configured(tmp_path)
    run, _ = go(plain)
    asked = configured(tmp_path, given)
    with pytest.raises(UserError, match=f"^{given}: tasks of an existing run use one device: leave out this setting"):
        configuration_for(run, asked, [given, f"run={run.path}"])


def test_a_task_of_a_run_takes_another_implementation(tmp_path):
    plain = configured(tmp_path, "encoding.implementation=torch")
    run, _ = go(plain)
    other = {**plain, "encoding": {**plain["encoding"], "implementation": "auto"}}
    given = ["encoding.implementation=auto", f"run={run.path}"]
    assert configuration_for(run, other, given)["encoding"]["implementation"] == "auto"
    assert configuration_for(run, other, given[1:])["encoding"]["implementation"] == "torch"


def test_changed_data_are_refused(tmp_path):
    run, _ = go(configured(tmp_path))
    run.write_manifest(store={**run.manifest["store"], "sha256": "f" * 64})
    with pytest.raises(UserError, match="started with other data"):
        go(configured(tmp_path))


def test_too_little_room_is_said_before_training(tmp_path, monkeypatch, losses):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="0 MiB are free, but the checkpoints need"):
        go(configured(tmp_path))
    assert not losses


def test_two_processes_do_not_share_a_run(tmp_path, losses):
    plain = configured(tmp_path)
    with RunDirectory.of(plain).claimed(0), pytest.raises(UserError, match="another process is training this run"):
        go(plain)


@pytest.mark.parametrize("log_every", [1, 100])
def test_a_run_that_is_deleted_while_it_trains_ends_with_a_line(tmp_path, monkeypatch, log_every):
    plain = configured(tmp_path, f"trainer.log_every={log_every}")
    run = RunDirectory.of(Session.of(plain).config)

    def delete(self, trainer, *rest):
        shutil.rmtree(run.path, ignore_errors=True)

    monkeypatch.setattr(ProgressLine, "on_train_batch_start", delete)
    with pytest.raises(UserError, match=f"^{run.path} was deleted or moved during training: rerun"):
        go(plain)
    assert not run.path.exists()


def deleted_while_training(monkeypatch, run, name, step=20):
    inner = ProgressLine.on_train_batch_start

    def start(self, trainer, *rest):
        if trainer.global_step == step:
            (run.path / name).unlink(missing_ok=True)
        inner(self, trainer, *rest)

    monkeypatch.setattr(ProgressLine, "on_train_batch_start", start)


def test_a_manifest_that_is_deleted_while_the_run_trains_is_written_again(tmp_path, monkeypatch):
    plain = configured(tmp_path)
    run = RunDirectory.of(Session.of(plain).config)
    with monkeypatch.context() as patch:
        deleted_while_training(patch, run, "manifest.json")
        with pytest.raises(UserError, match=r"manifest\.json was deleted: rerun the command that trained the run"):
            go(plain)
    assert not (run.path / "manifest.json").exists()
    go(plain)
    assert run.manifest["finished"]


def test_a_deleted_manifest_is_reported_when_another_process_uses_the_device(tmp_path):
    with pytest.raises(UserError, match=r"manifest\.json was deleted: rerun the command that trained the run"):
        RunDirectory(tmp_path, {}).note_beside(1)


def test_metrics_that_are_deleted_while_the_run_trains_begin_anew(tmp_path, monkeypatch):
    plain = configured(tmp_path)
    run = RunDirectory.of(Session.of(plain).config)
    deleted_while_training(monkeypatch, run, "metrics.csv")
    go(plain, drawn=True)
    rows = read_csv(run.path / "metrics.csv", ["step", "train_nll"])
    assert [int(row["step"]) for row in rows][-1] == 24
    assert run.manifest["finished"]


def test_a_read_only_file_system_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    run = RunDirectory(tmp_path / "runs", {})
    for flags, message in ((os.ST_RDONLY, "the file system is read-only"), (0, "permission denied")):
        monkeypatch.setattr("os.statvfs", lambda _, flags=flags: SimpleNamespace(f_flag=flags))
        with pytest.raises(OSError, match=str(tmp_path)) as raised:
            run.refuse_impossible_place()
        assert explain_os_error(raised.value).startswith(f"{tmp_path}: {message}")


def test_a_run_without_permission_to_write_is_refused(tmp_path, monkeypatch):
    run, closed = RunDirectory(tmp_path, {}), set()
    (tmp_path / "samples").mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) not in closed and mode & os.W_OK)
    assert run.writable() is run
    for folder in (tmp_path, tmp_path / "samples"):
        closed = {folder}
        with pytest.raises(UserError, match=f"^run={tmp_path}: results cannot be written to this folder: change"):
            run.writable()


@pytest.mark.parametrize("name", ["evaluate", "extrapolate", "generate", "mechanisms"])
def test_tasks_that_write_to_a_run_ask_first(tmp_path, monkeypatch, name):
    run = RunDirectory(tmp_path, {})
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr(RunDirectory, "open", lambda *_: run)
    task = build({"_target_": f"bearings.tasks.{name}.{name.capitalize()}"}, "task")
    with pytest.raises(UserError, match="results cannot be written"):
        task(SimpleNamespace(config={"run": str(tmp_path)}))


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    plain = configured(tmp_path)
    run = RunDirectory.of(Session.of(plain).config)
    run.path.mkdir(parents=True)
    (run.path / "mine").write_text("mine")
    for target in ("mine", tmp_path / "outside"):
        (run.path / ".lock").unlink(missing_ok=True)
        (run.path / ".lock").symlink_to(target)
        with pytest.raises((UserError, OSError)) as raised, run.claimed(0):
            pass
        assert "link" in (str(raised.value) if target != "mine" else explain_os_error(raised.value))
    assert (run.path / "mine").read_text() == "mine"
    assert not (tmp_path / "outside").exists()


def test_other_seeds_are_those_of_the_same_configuration(tmp_path):
    others = ("tiny-0123abcd-s0.bak", "tiny-0123abcd-s1-copy", "tiny-0123abce-s0", "flip-small", "flip-sparse")
    for name in ("tiny-0123abcd-s0", "tiny-0123abcd-s12", *others):
        file = tmp_path / name / "nll" / "test.npz"
        file.parent.mkdir(parents=True)
        file.touch()
    seeds = RunDirectory(tmp_path / "tiny-0123abcd-s0", {}).other_seeds("test")
    assert [path.parts[-3] for path in seeds] == ["tiny-0123abcd-s0", "tiny-0123abcd-s12"]
    assert [path.parts[-3] for path in RunDirectory(tmp_path / "flip-small", {}).other_seeds("test")] == ["flip-small"]


def test_a_loaded_model_is_ready_to_score(tmp_path):
    plain = configured(tmp_path, "model.dropout=0.5")
    run, _ = go(plain)
    assert not Session.of(plain).load(run.best, 12).training


def test_a_checkpoint_of_a_version_with_other_weights_is_refused_in_one_line(tmp_path):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=4"))
    checkpoint = torch.load(run.best, weights_only=True)
    weights = checkpoint["state_dict"]
    weights["transformer.blocks.0.attention.query.weight"] = weights.pop("transformer.blocks.0.attention.qkv.weight")
    torch.save(checkpoint, run.best)
    with pytest.raises(UserError, match=r"best\.ckpt was written by another version of this project"):
        read_checkpoint(run.best, run.config, 12)
