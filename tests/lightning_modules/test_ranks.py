"""Several processes: the losses and scores of one, one run directory, and a way on from any number of them."""

import csv
import math
import os
import re
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command_support import run_command  # noqa: F401
from conftest import REPOSITORY, with_encoding
from hydra.core.global_hydra import GlobalHydra
from lightning.pytorch.strategies.launchers import subprocess_script
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from bearings.core import stopping
from bearings.core.errors import DivergedError, UserError
from bearings.domains.records import Records
from bearings.encodings.base import Encoding
from bearings.encodings.seqpe import SeqPE
from bearings.lightning_modules import rank_watch
from bearings.lightning_modules.fitting import FittedModel, build_trainer
from bearings.lightning_modules.ranks import whole
from bearings.lightning_modules.trainer import TrainerSettings
from bearings.lightning_modules.transformer import Transformer
from bearings.session import cli
from bearings.session.configuration import build
from bearings.session.explaining import one_line_errors
from bearings.session.overrides import choices_of

STEPS = 60
GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
MANY = 4 if GPUS >= 4 else 2
TASK = [
    *("domain=flip_flop", "domain.length=32", "domain.train=50", "domain.valid=20", "domain.test=21"),
    *("domain.sparse=23", "domain.dense=20", "experiment=debug", "data.batch_size=4", "seed=1"),
    *("trainer.precision=32-true", f"trainer.steps={STEPS}", "trainer.validate_every=30", "trainer.log_every=1"),
    "evaluation.tokens_per_batch=100",  # of three rows, in turn on each rank
    "task.samples=0",
]


def command(accelerator: str, *arguments: str) -> list[str]:
    return [*TASK, f"trainer.accelerator={accelerator}", f"data.workers={int(accelerator == 'gpu')}", *arguments]


class Fork(get_context("fork").Process):
    """`subprocess.Popen` of a Python script, in a fork of this process, which has imported PyTorch and Lightning."""

    def __init__(self, command, *, stdout=None, stderr=None, start_new_session=False, **place):
        super().__init__(kwargs={"command": [*map(str, command)], "output": stdout, **place})
        before = signal.pthread_sigmask(signal.SIG_BLOCK, stopping.SIGNALS)  # until the handlers are the default ones
        self.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def run(self):
        command, output, cwd, env = map(self._kwargs.get, ("command", "output", "cwd", "env"))
        if output is not None:  # the first rank
            os.setsid()
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        sys.stdout, sys.stderr = map(partial(open, mode="w", buffering=1, closefd=False), (1, 2))
        os.chdir(cwd)
        os.environ.update(env or {})
        for number in stopping.SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stopping.SIGNALS)
        stopping._begun, stopping._since = False, None
        subprocess_script.subprocess = SimpleNamespace(Popen=Fork)
        rank_watch.GRACE = 1.0
        GlobalHydra.instance().clear()
        sys.argv, status = command[1:], 1
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            status = 0
        except SystemExit as end:
            status = end.code
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)  # without waiting for other ranks, as multiprocessing would

    def poll(self):
        return self.exitcode

    returncode = property(poll)

    def wait(self, timeout):
        self.join(timeout)
        return self.exitcode


class Job:
    """`python main.py` in a separate process."""

    def __init__(self, folder: Path, accelerator: str, *arguments: str, start: Callable = Fork):
        self.folder, self.output = folder, folder / "output.txt"
        start = subprocess.Popen if GPUS else start  # where CUDA is, forks cannot compute gradients
        with open(self.output, "w") as output:
            self.process = start(
                [sys.executable, REPOSITORY / "main.py", *command(accelerator, *arguments)],
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self) -> tuple[int, str]:
        return self.process.wait(timeout=120), self.output.read_text()

    def after(self, step: int) -> "Job":
        """Wait until metrics.csv has that step."""
        limit = time.monotonic() + 90
        while not losses(self.folder).get(step) and self.process.poll() is None and time.monotonic() < limit:
            time.sleep(0.02)
        return self


def losses(folder: Path) -> dict[int, float]:
    found = {}
    for path in folder.glob("runs/*/*/*/metrics.csv"):
        with open(path, newline="") as file:
            found |= {int(row["step"]): float(row["train_nll"]) for row in csv.DictReader(file) if row["train_nll"]}
    return found


def scores(folder: Path) -> dict[str, Records]:
    return {path.stem: Records.load(path) for path in folder.glob("runs/*/*/*/nll/*.npz")}


def same_figures(folder: Path, single: Path, steps: int = STEPS) -> None:
    one, many = losses(single), losses(folder)
    assert sorted(one) == sorted(many) == list(range(1, steps + 1))
    assert [many[step] for step in one] == pytest.approx(list(one.values()), abs=2e-5)
    for split, records in scores(single).items():
        again = scores(folder)[split]
        assert np.array_equal(again.tokens, records.tokens)
        assert again.nats == pytest.approx(records.nats, abs=1e-3)


@pytest.fixture(scope="module", params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu(2))])
def place(request):
    """An accelerator; on GPUs the ranks speak through NCCL."""
    return request.param


@pytest.fixture(scope="module")
def many(place):
    return f"trainer.devices={2 if place == 'cpu' else MANY}"


@pytest.fixture(scope="module")
def single(place, tmp_path_factory):
    folder = tmp_path_factory.mktemp("single")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["main.py"])
        GlobalHydra.instance().clear()
        cli.main(command(place))
    return folder


def test_ranks_have_the_losses_and_scores_of_one(tmp_path, place, many, single):
    """Started as a person starts it; other tests save the time of the imports."""
    status, text = Job(tmp_path, place, many, "trainer.micro_batch=1", start=subprocess.Popen).end()
    assert status == 0, text
    assert text.count("test split, scored once") == 1
    assert len(list(tmp_path.glob("runs/*/*/*"))) == 1
    same_figures(tmp_path, single)


def test_ranks_that_share_rows_have_the_losses_and_scores_of_one(tmp_path, place, run):
    """PaTH-FoX exchanges the most kinds of tensors."""
    (tmp_path / "many").mkdir()
    devices = 4 if place == "cpu" else MANY
    row = ("data.length=33", "encoding=path_fox", "trainer.steps=20", "trainer.validate_every=10")
    job = Job(tmp_path / "many", place, *row, f"trainer.devices={devices}", "trainer.context_parallel=2")
    assert run(*command(place), *row)[0] == 0
    status, text = job.end()
    assert status == 0, text
    same_figures(tmp_path / "many", tmp_path, steps=20)
    # Each rank counts the targets of its part of the rows, all of which are answers.
    loss, bits = map(float, re.search(r"step 20/20  loss ([\d.]+)  ([\d.]+) bits/answer", text).groups())
    assert bits == pytest.approx(loss / math.log(2), abs=2e-3)
    (made,) = (tmp_path / "many" / "runs").glob("*/*/*")
    status, _, error = run("task=evaluate", f"run={made}", "stores=many/data")
    assert status == 0, error


def test_rows_that_ranks_cannot_share_are_one_line(run):
    shared = ("trainer.accelerator=cpu", "trainer.devices=2", "trainer.context_parallel=2")
    several = "a row can hold several documents: use data.packed=false, or a data.length shorter than two examples"
    for wrong, said in (
        (["data.length=64"], several),
        (["data.length=33", "encoding=seqpe"], "DigitEncoder draws positions in training, which needs whole rows"),
        (["data.length=33", "trainer.devices=3"], "the number of devices must be a multiple of it, and this run has 3"),
        (["data.length=33", "encoding.implementation=cudnn"], "encoding.implementation=cudnn needs whole sequences"),
        (["data.length=33", "encoding.implementation=cudnn", "encoding=path"], "cudnn needs whole sequences"),
        (["data.length=33", "encoding.implementation=triton", "encoding=cope"], "only torch computes these scores"),
        (["data.length=33", "encoding.clock=medium"], "clock=medium"),
        (["data.length=33", "encoding=absolute_learned", "encoding.length=33"], "for a context of 36 tokens"),
        (
            ["data.length=33", "trainer.strategy=fsdp"],
            "it needs trainer.strategy=ddp and trainer.activation_checkpointing=false",
        ),
    ):
        status, _, error = run(*TASK, *shared, *wrong)
        assert status == 2
        assert said in error
        assert error.count("\n") == 1


def test_sharded_gradients_are_exchanged_once_per_step_with_any_micro_batch(monkeypatch):
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        transformer = Transformer(11, Encoding, width=16, layers=2, heads=2)
        model = FittedModel(transformer, seed=0, steps=1, micro_batch=1)
        model._device_mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("data_parallel",))
        model.configure_model()
        model.manual_backward = Tensor.backward
        exchanged, reduce = [], FSDPParamGroup.post_backward
        monkeypatch.setattr(
            FSDPParamGroup, "post_backward", lambda g, *_: exchanged.append(g.reduce_grads) or reduce(g, *_)
        )
        tokens = torch.randint(11, (3, 8))
        model._accumulate({"inputs": tokens, "targets": tokens})
    finally:
        distributed.destroy_process_group()
    groups = 3  # two blocks, and what is outside of them
    assert len(exchanged) == 3 * groups
    assert sum(exchanged) == groups


def test_every_encoding_can_be_sharded():
    """PyTorch cannot shard parameters without a dimension."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        for name in choices_of("encoding"):
            encoding = partial(build, with_encoding({"data": {"length": 8}}, name)["encoding"], "encoding")
            model = FittedModel(Transformer(11, encoding, width=16, layers=1, heads=2), seed=0, steps=1)
            model._device_mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("data_parallel",))
            model.configure_model()
            assert all(hasattr(parameter, "full_tensor") for parameter in model.parameters()), name
    finally:
        distributed.destroy_process_group()


def test_sharded_auxiliary_losses_have_the_same_gradients():
    """Of a module that layers share, which has losses outside the pass of the model."""
    tokens, found = torch.arange(24).view(3, 8) % 11, []
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        for mesh in (None, init_device_mesh("cpu", (1,), mesh_dim_names=("data_parallel",))):
            transformer = Transformer(11, partial(SeqPE, length=99, dropout=0.0), width=16, layers=1, heads=2).train()
            model = FittedModel(transformer, seed=0, steps=1)
            model._device_mesh, model.manual_backward = mesh, Tensor.backward
            model.configure_model()
            torch.manual_seed(0)
            _, losses = model._accumulate({"inputs": tokens, "targets": tokens})
            found.append([*losses, *(whole(parameter.grad) for parameter in transformer.parameters())])
    finally:
        distributed.destroy_process_group()
    for single, sharded in zip(*found, strict=True):
        torch.testing.assert_close(sharded, single, rtol=1e-4, atol=1e-7)


def test_a_run_that_loses_a_rank_resumes_sharded_and_stopped_again_on_one_device(tmp_path, place, many, single, run):
    job = Job(tmp_path, place, many, "trainer.checkpoint_every=5").after(12)
    os.kill(ranks_of(job)[0], signal.SIGKILL)
    began = time.monotonic()
    status, text = job.end()
    assert time.monotonic() - began < 60
    assert status == 2, text
    assert "Traceback" not in text
    (line,) = (line for line in text.splitlines() if line.startswith("error: "))
    assert "lost its connection to another" in line or line.startswith("error: rank 1 was killed by signal 9")
    assert line.endswith("rerun the same command to resume from the last checkpoint")

    job = Job(tmp_path, place, many, "trainer.strategy=fsdp", "trainer.micro_batch=1", "data.workers=2").after(35)
    os.killpg(job.process.pid, signal.SIGTERM)  # loader workers included, as SLURM does
    status, text = job.end()
    assert status == 130, text
    assert text.count("stopped") == 1
    assert "rerun the same command to resume" in text
    assert "Traceback" not in text

    status, text, error = run(*command(place))
    assert status == 0, error
    assert "resuming after step" in text
    same_figures(tmp_path, single)


def test_a_stop_before_the_ranks_have_met_is_one_line(tmp_path, place, many):
    """The first waits for the second where no signal handler of Python's runs."""
    job = Job(tmp_path, place, many, start=subprocess.Popen)  # a fork would meet the first at once
    limit = time.monotonic() + 90
    while not ranks_of(job) and job.process.poll() is None and time.monotonic() < limit:
        time.sleep(0.02)
    os.killpg(job.process.pid, signal.SIGTERM)
    status, text = job.end()
    assert status == 130, text
    assert text.splitlines()[-1] == "stopped: rerun the same command to resume"
    assert text.count("stopped") == 1


def test_no_rank_outlives_the_first(tmp_path, place, many):
    job = Job(tmp_path, place, many, "trainer.steps=100000").after(5)
    others = ranks_of(job)
    job.process.kill()
    job.end()
    limit = time.monotonic() + 30
    while any(map(command_line, others)) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not any(map(command_line, others))


def ranks_of(job: Job) -> list[int]:
    """Process ids of ranks 1, 2, ..."""
    children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"python" in command_line(pid)]


def command_line(pid: int | str) -> bytes:
    """Empty once the process has ended."""
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_bytes() if path.exists() else b""


BATCH = {"SLURM_JOB_NAME": "train", "SLURM_NTASKS": "2", "SLURM_NNODES": "1"}
FIRST = {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
STEP = {**BATCH, **FIRST, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("environment", "devices", "nodes", "started"),
    [
        ({}, 8, 2, None),
        (STEP, 2, 1, None),
        (STEP, 1, 1, "2 ranks on 1 node, not 1 rank on 1 node"),
        (STEP, 1, 2, "2 ranks on 1 node, not 2 ranks on 2 nodes"),
        (BATCH, 2, 1, "1 rank on 1 node, not 2 ranks on 1 node"),
        (BATCH, 1, 1, None),  # one of several commands of the batch job
        ({**STEP, "SLURM_JOB_NAME": "interactive"}, 4, 1, None),
        (TORCHRUN, 2, 2, None),
        (TORCHRUN, 4, 1, "4 ranks on 2 nodes, not 4 ranks on 1 node"),
    ],
)
def test_other_ranks_than_a_launcher_started_are_refused(tmp_path, monkeypatch, environment, devices, nodes, started):
    others = {name: value for name, value in os.environ.items() if name not in {*STEP, *TORCHRUN}}
    monkeypatch.setattr(os, "environ", others | environment)
    settings = TrainerSettings(accelerator="cpu", devices=devices, nodes=nodes)
    if started is None:
        settings.refuse_other_ranks()
        build_trainer(settings, tmp_path, [], [])  # Lightning accepts them too
        return
    message = (
        f"^trainer.devices={devices}, trainer.nodes={nodes}: the launcher started {started}: change these settings"
    )
    with pytest.raises(UserError, match=message):
        settings.refuse_other_ranks()


def test_batch_that_cannot_be_split_raises(run):
    status, _, err = run(*TASK, "trainer.accelerator=cpu", "trainer.devices=3")
    split = "the batch is split across 3 processes, so it must be a multiple of 3"
    assert (status, err) == (2, f"error: data.batch_size=4: {split}\n")


@pytest.mark.parametrize(
    ("error", "printing"), [(DivergedError("not finite"), ["0"]), (UserError("rank 1 lost it"), ["0", "1"])]
)
def test_only_the_first_rank_prints_that_training_diverged(monkeypatch, capsys, error, printing):
    """All ranks find it, but other errors may be those of one rank."""
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        with pytest.raises(SystemExit) as end, one_line_errors():
            raise error
        assert end.value.code == 2
        assert capsys.readouterr().err == f"error: {error}\n" * (rank in printing)
