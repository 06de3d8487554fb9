"""Benchmark records: rows name their source commit, and a killed benchmark keeps its earlier rows."""

import csv
import sys

import pytest
import torch

from bearings.benchmarks import (
    attention,
    bias,
    counters,
    encodings,
    kernels,
    launching,
    layers,
    path,
    record,
    training,
)


@pytest.mark.parametrize(
    ("state", "given", "expected"),
    [
        ({"commit": "abc", "dirty": None}, None, "abc"),
        ({"commit": "abc", "dirty": "f00"}, "def", "abc+"),
        ({"commit": None, "dirty": None}, "def", "def"),
        ({"commit": None, "dirty": None}, None, "unknown"),
    ],
)
def test_source_marks_uncommitted_changes(state, given, expected, monkeypatch):
    monkeypatch.setattr(record, "git_state", lambda: state)
    assert record.source(given) == expected


def test_rows_have_every_column_and_replace_file_atomically(tmp_path):
    path = tmp_path / "results" / "rows.csv"
    record.write_rows(path, [{"a": 1}, {"a": 2, "b": 3}])
    before = path.read_bytes()
    with open(path, newline="") as file:
        assert list(csv.DictReader(file)) == [{"a": "1", "b": ""}, {"a": "2", "b": "3"}]

    class Killed:
        def __str__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record.write_rows(path, [{"a": 4}, {"a": Killed()}])
    assert path.read_bytes() == before


def test_counters_are_parsed_from_nsight_compute_output():
    names = ["ID", "Kernel Name", *counters.METRICS.values()]
    values = [
        "0",
        "forward_kernel",
        "390,592",
        "43.09",
        "24.83",
        "55.03",
        "7501386039652.63",
        "1610212682287.40",
        "128",
    ]
    lines = ["==PROF== Connected", *(",".join(f'"{x}"' for x in row) for row in (names, ["", *names[1:]], values))]
    (row,) = counters.launches(lines)
    assert row == {
        "kernel": "forward_kernel",
        "us": 390.592,
        "tensor_percent": 43.09,
        "warps_percent": 24.83,
        "issue_percent": 55.03,
        "l2_tb_per_s": pytest.approx(7.501, abs=1e-3),
        "dram_tb_per_s": pytest.approx(1.61, abs=1e-3),
        "registers": 128.0,
    }


@pytest.mark.parametrize("module", [attention, bias, counters, encodings, kernels, launching, layers, path, training])
def test_without_a_gpu_a_benchmark_ends_with_a_message(module, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(counters.shutil, "which", lambda program: program)
    needed = ["--out", "rows.csv"] if module in (layers, training) else []
    monkeypatch.setattr(sys, "argv", ["benchmark", *needed])
    with pytest.raises(SystemExit):
        module.main()
    assert capsys.readouterr().err.endswith("error: no CUDA GPU is visible; this benchmark needs one\n")
