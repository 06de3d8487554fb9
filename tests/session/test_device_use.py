"""Runs that are trained on the same device at the same time notice each other."""

import subprocess
import tempfile
from types import SimpleNamespace

import pytest
import torch
from training_support import configured, go, interrupt_after

from bearings.core.errors import InterruptedRunError
from bearings.lightning_modules.trainer import TrainerSettings
from bearings.session.device_use import DeviceUse, devices_of


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


class Use(DeviceUse):
    """A run on `devices`, and what it has noted."""

    def __init__(self, *devices):
        self.noted = []
        super().__init__(devices, self.noted.append)
        self.on_train_start(None, None)

    def step(self, number):
        self.on_train_batch_end(SimpleNamespace(global_step=number, log_every_n_steps=50), None, None, None, 0)


def test_the_largest_number_of_other_runs_on_a_device_is_noted():
    first = Use("a", "b")
    second, third, elsewhere = Use("b"), Use("b", "c"), Use("c")
    assert (first.noted, second.noted, third.noted, elsewhere.noted) == ([], [1], [2], [1])
    first.step(49)
    assert first.noted == []  # only steps that are logged look
    first.step(50)
    second.teardown(None, None, "fit")
    first.step(100)
    assert first.noted == [2]
    third.on_exception(None, None, KeyboardInterrupt())
    assert Use("b").noted == [1]
    assert Use("c").noted == [1]


def test_the_files_of_killed_processes_do_not_count_and_are_deleted(folder):
    Use("a").teardown(None, None, "fit")
    (place,) = folder.glob("bearings*")
    (place / "a.killed").touch()
    assert Use("a").noted == []
    assert not (place / "a.killed").exists()


def test_a_folder_that_cannot_be_written_costs_the_count_only(folder, monkeypatch):
    (folder / "file").touch()  # FileLock would create a missing folder
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "file"))
    assert Use("a").noted == []


def test_a_run_records_how_many_others_have_trained_beside_it_since_it_began_or_resumed(tmp_path, monkeypatch):
    plain = configured(tmp_path)
    other = Use("cpu")
    with monkeypatch.context() as patch:
        interrupt_after(patch, 6)
        with pytest.raises(InterruptedRunError):
            go(plain)
    other.teardown(None, None, "fit")
    run, _ = go(plain)
    assert [session.get("beside") for session in run.manifest["sessions"]] == [1, None]
    assert Use("cpu").noted == []


@pytest.mark.parametrize(
    ("device", "ranks", "expected"), [("cpu", 2, ["cpu"]), ("cuda:1", 1, ["GPU-1"]), ("cuda:1", 2, ["GPU-0", "GPU-1"])]
)
def test_the_devices_of_a_run_are_those_of_all_its_ranks(monkeypatch, device, ranks, expected):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"GPU-{index}"))
    settings = SimpleNamespace(device=torch.device(device), ranks=ranks, devices=ranks)
    assert devices_of(settings) == expected


@pytest.mark.gpu
def test_gpus_are_named_as_in_all_other_processes():
    (name,) = devices_of(TrainerSettings(steps=1))
    assert name in subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
