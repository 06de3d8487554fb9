"""The estimated time of a training run, in units that a reader can use."""

import pytest
import torch

from bearings.lightning_modules.cost import PEAK_BF16, REACHED, REFERENCE, training_time_text

RATE = PEAK_BF16[REFERENCE] * REACHED[0]  # FLOP/s of the slower estimate


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "under a minute on one NVIDIA H200"),
        (120, "0.5 to 2 minutes on one NVIDIA H200 at 40 % to 10 % of its peak"),
        (240, "1 to 4 minutes on one NVIDIA H200 at 40 % to 10 % of its peak"),
        (40 * 3600, "10 to 40 hours on one NVIDIA H200 at 40 % to 10 % of its peak"),
    ],
)
def test_time_is_a_range_in_readable_units(seconds, text):
    flops = seconds * RATE
    assert training_time_text(flops, torch.device("cpu")) == f"{flops:.2g} FLOPs, {text}"


def test_a_known_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L4")
    flops = 3600 * PEAK_BF16["NVIDIA L4"] * REACHED[0]
    assert "0.25 to 1 hours on one NVIDIA L4" in training_time_text(flops, torch.device("cuda"))
