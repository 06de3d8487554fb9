"""task=export: the exported files rebuild the same model."""

import errno
import os
import re

import pytest
import torch
from conftest import REPOSITORY
from safetensors import SafetensorError
from safetensors.torch import save_file
from training_support import configured, go

from bearings.core.errors import UserError
from bearings.session.configuration import build
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.tasks.export import Export, load_exported, os_errors


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_read(tmp_path, make):
    make(tmp_path / "config.yaml")
    with pytest.raises(UserError, match="it is not a regular file"):
        load_exported(tmp_path)


def test_weights_that_cannot_be_written_are_an_error_of_the_operating_system(tmp_path):
    with pytest.raises(FileNotFoundError, match=str(tmp_path)), os_errors(tmp_path):
        save_file({"weight": torch.zeros(1)}, tmp_path / "missing" / "model.safetensors")
    with pytest.raises(OSError, match=str(tmp_path)), os_errors(tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(SafetensorError, match="damaged"), os_errors(tmp_path):
        raise SafetensorError("damaged")


@pytest.mark.parametrize("encoding", ["pope", "path_fox"])
def test_an_exported_model_gives_the_run_s_logits(tmp_path, capsys, encoding):
    run, _ = go(configured(tmp_path, f"encoding={encoding}", "trainer.steps=8"))
    plain = RunDirectory.open(run.path).config | {"run": str(run.path)}
    plain["task"] = configured(tmp_path, task="export")["task"]
    session = Session.of(plain)
    build(plain["task"], "task")(session)
    folder = run.path / "export"
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "model.safetensors"]
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1  # whoever may read one may read the other
    assert "not finished" not in capsys.readouterr().out
    with pytest.raises(UserError, match="export: this folder holds an exported model"):
        RunDirectory.open(folder)
    run.write_manifest(finished=None)
    build(plain["task"], "task")(Session.of(plain))
    assert "is not finished" in capsys.readouterr().out
    tokens = torch.arange(24).reshape(2, 12) % 12
    model, exported = session.load(run.best, 12).eval(), load_exported(folder).model
    assert torch.equal(model(tokens), exported(tokens))
    assert exported.head.weight is exported.embedding.weight

    page = (REPOSITORY / "docs" / "how-to" / "export.md").read_text()
    block = re.search(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1]
    exec(block.replace("my-model", str(folder)), {})  # noqa: S102 (an example of this documentation)
    assert capsys.readouterr().out.strip()

    weights = (folder / "model.safetensors").read_bytes()
    for damage in (weights[:1000], b""):
        (folder / "model.safetensors").write_bytes(damage)
        with pytest.raises(UserError, match="has changed since it was exported"):
            load_exported(folder)
    with pytest.raises(UserError, match="give a folder of task=export"):
        load_exported(tmp_path / "nowhere")
    with pytest.raises(UserError, match=f"is a run, not an export: load {re.escape(str(folder))}, which"):
        load_exported(run.path)
    mine, given = tmp_path / "mine", tmp_path / "given" / "folder"
    mine.write_text("mine")
    given.mkdir(parents=True)
    (given / ".model.safetensors").symlink_to(mine)
    Export(out=str(given))(Session.of(plain))
    assert mine.read_text() == "mine"
    assert torch.equal(model(tokens), load_exported(given).model(tokens))
    with pytest.raises(UserError, match="is a run, and its"):
        Export(out=str(run.path))(Session.of(plain))
