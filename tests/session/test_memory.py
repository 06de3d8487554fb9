"""Models and rows that memory cannot hold are reported in one line, before anything is trained."""

import re
from pathlib import Path

import pytest
import torch
from command_support import run_command  # noqa: F401

from bearings.session.explaining import explain


@pytest.mark.parametrize(("task", "what"), {"check": "weights", "train": "weights, gradients and moments"}.items())
def test_a_model_that_does_not_fit_is_reported_before_it_is_built(run, task, what):
    settings = ("experiment=debug", "domain=flip_flop", "data.length=512", "trainer.accelerator=cpu")
    status, _, err = run(f"task={task}", *settings, "model.width=131072")
    assert status == 2
    assert re.fullmatch(
        rf"error: model: [\d,]+ parameters need [\d,]+ GiB for {what}, but cpu has [\d,]+ GiB: .*\n", err
    )
    assert not Path("runs").exists()


@pytest.mark.parametrize("encoding", ["rope", "path"])
def test_rows_that_do_not_fit_are_reported_before_the_first_step(run, encoding):
    settings = ("experiment=debug", "domain=flip_flop", f"encoding={encoding}", "trainer.accelerator=cpu")
    status, out, err = run(*settings, "data.length=100000000", "task=check")
    assert status == 0, err
    assert re.search(r"about [\d,]{9,}\s+MiB\s+per\s+training\s+step", out)
    status, _, err = run(*settings, "data.length=100000000", "trainer.micro_batch=1")
    assert status == 2
    assert err.startswith("error: data.length=100000000: a training step of 1 x 100000000 tokens needs about ")
    assert err.endswith(" GiB: choose a smaller data.length\n")
    assert not Path("runs").exists()


def test_memory_that_ran_out_is_a_line():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**59, dtype=torch.uint8)
    line = explain(raised.value)
    assert line.startswith("out of memory (")
    assert line.endswith(": use a smaller model, batch or length")
    assert explain(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")).startswith("out of memory (")
    with pytest.raises(RuntimeError) as overflow:
        torch.empty(2, 2**62, device="meta")
    assert str(explain(overflow.value)).startswith("out of memory (")
    assert str(explain(MemoryError())).startswith("out of memory (MemoryError)")
    assert explain(RuntimeError("something else")) is None
    assert explain(ValueError("out of memory")) is None
