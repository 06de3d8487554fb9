"""Reads hardware counters of the kernels of benchmarks/kernels.py with Nsight Compute. Writes a CSV.

    python -m bearings.benchmarks.counters --lengths 4096 --head-dims 64 --only "PoPE, auto" --out counters.csv

Percentages: cycles in which tensor cores were active; resident warps out of the maximum per multiprocessor; active
cycles in which a warp issued an instruction. TB/s: traffic of the L2 cache and of device memory.
"""

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .kernels import CONTENDERS
from .sweep import sweep, sweep_arguments

METRICS = {
    "us": "gpu__time_duration.sum",
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "warps_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "issue_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "l2_tb_per_s": "lts__t_bytes.sum.per_second",
    "dram_tb_per_s": "dram__bytes.sum.per_second",
    "registers": "launch__registers_per_thread",
}
BASE_UNITS = {"us": 1e3, "l2_tb_per_s": 1e12, "dram_tb_per_s": 1e12}  # units of Nsight Compute per unit of the column


def measure(length: int, head_dim: int, chosen: list[str], rounds: int) -> list[dict]:
    """One row per kernel launch of one forward and backward pass, in order of contenders and launches."""
    profiler = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw"]
    profiler += ["--print-units", "base", "--metrics", ",".join(METRICS.values())]
    shape = ["--lengths", str(length), "--head-dims", str(head_dim), "--rounds", str(rounds), "--only", *chosen]
    program = [sys.executable, "-m", "bearings.benchmarks.kernels", *shape, "--out", os.devnull]
    command = profiler + program  # Nsight Compute and this project's own module
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S603 (see above)
    return [{"length": length, "head_dim": head_dim, **row} for row in launches(printed.splitlines())]


def launches(printed: Sequence[str]) -> list[dict]:
    """The launches in the CSV output of Nsight Compute, which follows other output."""
    table = [line for line in printed if line.startswith('"')]
    return [
        {"kernel": launch["Kernel Name"][:90]}
        | {name: float(launch[key].replace(",", "")) / BASE_UNITS.get(name, 1) for name, key in METRICS.items()}
        for launch in list(csv.DictReader(table))[1:]  # the first line after the header holds units
    ]


def show(rows: list[dict]) -> None:
    """Print all launches."""
    for row in rows:
        print(f"{row['length']:6} {row['head_dim']:4} " + " ".join(f"{row[name]:9.1f}" for name in METRICS), end=" ")
        print(row["kernel"], flush=True)


def main() -> None:
    """Measure the counters of the contenders."""
    if shutil.which("ncu") is None:
        sys.exit("error: ncu (Nsight Compute) is not on the PATH; install it with the CUDA toolkit")
    sweep(sweep_arguments(__doc__, CONTENDERS, [64], Path("counters.csv")), CONTENDERS, measure, show)


if __name__ == "__main__":
    main()
