"""What kernels need by benchmarks/results/shared_memory.csv: the launchers find tiles that fit every GPU."""

import csv
import os
import subprocess
import sys
from collections import defaultdict
from importlib import import_module

import pytest
import torch
from conftest import REPOSITORY

pytest.importorskip("triton")
flash, far = (import_module(f"bearings.kernels.{name}") for name in ("attention.flash", "path.far"))
RECORD = REPOSITORY / "benchmarks" / "results" / "shared_memory.csv"
KERNELS = {name: f"attention.flash.{kernel.__name__}" for name, kernel in (("forward", flash.forward_kernel),)}
KERNELS |= {name: f"attention.flash_gradients.{name}_gradient_kernel" for name in ("query", "key")}
KERNELS |= {"table": "attention.bias.table_gradient_kernel"}
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@pytest.fixture(scope="module")
def recorded():
    """Rows by capability, dtype and kernel."""
    with open(RECORD, newline="") as file:
        rows = list(csv.DictReader(file))
    found = defaultdict(list)
    for row in rows:
        row["constants"] = dict(pair.split("=") for pair in row["tiles"].split())
        found[row["capability"], row["dtype"], row["kernel"]].append(row)
    return found


def allowed(row):
    """Whether `choose` allows PaTH with the dtype and channels of a row on its GPU."""
    wide = row["dtype"] == "float32" and max(int(row["score_dim"]), int(row["value_dim"])) > 64
    return not (row["operator"].startswith("PaTH") and wide and row["capability"] != "9.0")


def test_every_kernel_fits_with_some_tiles(recorded):
    assert {key[0] for key in recorded} >= {"8.0", "8.9", "9.0", "10.0", "12.0"}
    groups = defaultdict(list)
    for rows in recorded.values():
        for row in rows:
            if allowed(row):
                groups[tuple(row[x] for x in ("capability", "dtype", "kernel", "score_dim", "value_dim"))].append(row)
    too_large = [key for key, rows in groups.items() if not any(row["fits"] == "True" for row in rows)]
    assert not too_large


def first_that_fits(rows, choices):
    """The index of the first of `choices` (constants, warps and stages) that fits. Every row before it must exist."""
    for index, wanted in enumerate(choices):
        same = [row for row in rows if wanted.items() <= (row["constants"] | row).items()]
        assert same, f"{wanted} is not in {RECORD.name}: record it again"
        if all(row["fits"] == "True" for row in same):
            return index
    raise AssertionError(f"none of {choices} fits")


@pytest.mark.parametrize("capability", ["8.0", "8.9", "9.0", "10.0", "12.0"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tables_of_attention_have_tiles_that_fit(recorded, capability, dtype):
    for name, kernel in KERNELS.items():
        rows = recorded[capability, dtype, kernel]
        for widths in {(row["constants"]["BW"], row["constants"]["BD"]) for row in rows}:
            own = [row for row in rows if (row["constants"]["BW"], row["constants"]["BD"]) == widths]
            table = flash.blocks_of(name, DTYPES[dtype], *map(int, widths))
            keys = ("BM", "BN", "warps", "stages")
            taken = first_that_fits(own, [dict(zip(keys, map(str, blocks), strict=True)) for blocks in table])
            assert taken == 0 or capability != "9.0", (name, widths)


@pytest.mark.parametrize("capability", ["8.0", "8.9", "9.0", "10.0", "12.0"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiles_of_path_fit(recorded, capability, dtype):
    rows = [row for row in recorded[capability, dtype, "path.far.far_dq_kernel"] if allowed(row)]
    for width in {row["constants"]["DP"] for row in rows}:
        own = [row for row in rows if row["constants"]["DP"] == width]
        tiles = (far.FLOAT32_TILES if dtype == "float32" else far.QUERY_TILES)[int(width)].smaller()
        names = ("BM", "BN", "warps", "STAGES")
        taken = first_that_fits(own, [dict(zip(names, map(str, each[:4]), strict=True)) for each in tiles])
        assert taken == 0 or capability != "9.0", width


@pytest.mark.slow
def test_kernels_compile_without_a_gpu(tmp_path):
    out = tmp_path / "sizes.csv"
    given = ["--only", "RoPE", "--capabilities", "8.9", "9.0", "--jobs", "2", "--out", str(out)]
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "bearings.benchmarks.shared_memory", *given]
    subprocess.run(command, check=True, env=variables | {"CUDA_VISIBLE_DEVICES": ""}, timeout=600)
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["capability"] for row in rows} == {"8.9", "9.0"}
    assert not any(row.get("error") for row in rows)
    assert all(int(row["registers"]) > 0 for row in rows if row["fits"] == "True")
    assert any(row["fits"] == "False" for row in rows)  # of 128 channels with compute capability 8.9
