"""Checkpoints and exports that were changed since they were written are refused before a figure comes of them."""

import json
import re
import shutil
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from training_support import configured, go

from bearings.core.checked_files import digest_of
from bearings.core.errors import UserError
from bearings.domains.records import Records
from bearings.session.configuration import build
from bearings.session.fit import last_good_checkpoint
from bearings.session.models import DamagedCheckpointError, read_checkpoint
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.tasks.export import load_exported


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run and its export."""
    folder = tmp_path_factory.mktemp("made")
    run, _ = go(configured(folder, "encoding=pope", "trainer.steps=8"))
    plain = dict(RunDirectory.open(run.path).config) | {"run": str(run.path)}
    plain["task"] = configured(folder, task="export")["task"]
    build(plain["task"], "task")(Session.of(plain))
    return run


@pytest.fixture
def run(made, tmp_path):
    """A copy of the run to damage."""
    shutil.copytree(made.path, tmp_path / "run")
    return RunDirectory(tmp_path / "run", made.config)


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def member(path, name):
    """Where the bytes of a member of a zip archive begin."""
    with zipfile.ZipFile(path) as archive:
        (info,) = (each for each in archive.infolist() if each.filename.endswith(name))
    lengths = struct.unpack("<HH", path.read_bytes()[info.header_offset + 26 : info.header_offset + 30])
    return info.header_offset + 30 + sum(lengths)


def evaluated(run):
    plain = dict(RunDirectory.open(run.path).config) | {"run": str(run.path)}
    return go(plain | {"task": configured(run.path, task="evaluate")["task"]})


def test_a_finished_run_records_the_digest_of_its_best_checkpoint(made):
    assert made.manifest["files"]["checkpoints/best.ckpt"] == digest_of(made.best)


@pytest.mark.parametrize("name", ["data/0", "data/3", "data.pkl"])
def test_a_flipped_bit_in_a_checkpoint_is_refused(run, name):
    """torch.load reads it without a word."""
    for path in (run.best, run.last):
        flip(path, member(path, name) + 64)
    before = Records.load(run.records("test")).nats
    with pytest.raises(UserError, match=r"best.ckpt has changed since the run wrote it \(sha256 \w{12}, not \w{12}\)"):
        evaluated(run)
    run.write_manifest(files={})  # as of a run that recorded none
    with pytest.raises(UserError, match=rf"best.ckpt is damaged .*Bad CRC-32.* delete {run.path} and train"):
        evaluated(run)
    assert np.array_equal(Records.load(run.records("test")).nats, before)
    session = Session.of(run.config | {"run": str(run.path)})
    run.previous.unlink()
    with pytest.raises(DamagedCheckpointError, match=r"last.ckpt is damaged .* delete it and train"):
        last_good_checkpoint(session, run, 12)


def test_training_goes_on_from_the_checkpoint_before_a_damaged_one(run):
    shutil.copy(run.last, run.previous)
    flip(run.last, member(run.last, "data/0") + 8)
    session = Session.of(run.config | {"run": str(run.path)})
    assert last_good_checkpoint(session, run, 12) == (run.previous, 8, 8)


def test_a_checkpoint_of_another_model_is_not_taken_for_a_damaged_one(run):
    shutil.copy(run.last, run.previous)
    checkpoint = torch.load(run.last, weights_only=True)
    checkpoint["bearings"]["model"]["dropout"] = 0.3
    torch.save(checkpoint, run.last)
    with pytest.raises(UserError, match=r"last.ckpt was trained with model .* use the run's own configuration"):
        last_good_checkpoint(Session.of(run.config | {"run": str(run.path)}), run, 12)


@pytest.mark.parametrize("step", [-1, 8.0])
def test_a_checkpoint_without_a_valid_step_is_refused(run, step):
    torch.save(torch.load(run.last, weights_only=True) | {"global_step": step}, run.last)
    with pytest.raises(DamagedCheckpointError, match=f"global_step={step}"):
        read_checkpoint(run.last, run.config, 12)


def test_a_run_without_a_digest_is_read(run):
    run.write_manifest(files={})
    before = Records.load(run.records("test")).nats
    evaluated(run)
    assert np.array_equal(Records.load(run.records("test")).nats, before)


def test_a_checkpoint_with_compressed_members_is_refused(run):
    with zipfile.ZipFile(run.best) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(run.best, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(UserError, match="compressed members"):
        read_checkpoint(run.best, run.config, 12)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("width", 2**16, "embedding.weight is torch.float32 [12, 32], but torch.float32 [12, 65536] in the model"),
        ("layers", 5, "attention_norm.weight is missing"),
        ("layers", 10**7, "at most 1,024"),
        ("width", 10**9, "at most 262,144"),
    ],
)
def test_sizes_are_compared_before_memory_is_taken(run, key, value, said):
    """3 GB and more would be allocated for an export of 1 MB."""
    folder = run.path / "export"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["model"] |= {key: value}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    tracemalloc.start()
    with pytest.raises(UserError) as caught:
        load_exported(folder)
    checkpoint_config = run.config | {"model": run.config["model"] | {key: value}}
    checkpoint = torch.load(run.best, weights_only=True)
    checkpoint["bearings"]["model"] = checkpoint_config["model"]
    torch.save(checkpoint, run.best)
    if value < 10**5:
        with pytest.raises(UserError, match=re.escape(said)):
            read_checkpoint(run.best, checkpoint_config, 12)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_vocabulary_than_the_checkpoint_s_is_refused(run):
    with pytest.raises(UserError, match=re.escape("embedding.weight is torch.float32 [12, ")):
        read_checkpoint(run.best, run.config, 10**6)


def test_a_flipped_bit_in_an_export_is_refused(run):
    weights = run.path / "export" / "model.safetensors"
    flip(weights, -7)
    with pytest.raises(UserError, match=r"model.safetensors has changed since it was exported \(sha256"):
        load_exported(weights.parent)


@pytest.mark.parametrize("change", ["remove", "add", "shape", "dtype", "header"])
def test_an_export_whose_header_does_not_fit_is_refused(run, change):
    folder = run.path / "export"
    weights = folder / "model.safetensors"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config.pop("files") == {"model.safetensors": digest_of(weights)}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))  # as of an export that recorded none
    load_exported(folder)
    tensors = load_file(weights)
    if change == "header":
        data = weights.read_bytes()
        head = json.dumps({"embedding.weight": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}})
        weights.write_bytes(len(head).to_bytes(8, "little") + head.encode() + data[-4096:])
    else:
        (name, tensor) = tensors.popitem()
        changed = {"shape": tensor[None], "dtype": tensor.double()}.get(change)
        tensors |= {"remove": {}, "add": {name: tensor, "more": tensor.clone()}}.get(change) or {name: changed}
        if change == "remove":
            del tensors[name]
        save_file(tensors, weights)
    with pytest.raises(UserError) as caught:
        load_exported(folder)
    assert "\n" not in str(caught.value)
