"""Hardware counters of the kernels that contenders of benchmarks/kernels.py run, by Nsight Compute. Writes a CSV.

    python -m bearings.benchmarks.counters --lengths 4096 --head-dims 64 --only "PoPE, auto" --out counters.csv

Percentages are of what the chip could sustain: of the tensor cores' cycles, of warps in flight, of memory's bandwidth.
"""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bearings.benchmarks.kernels import CONTENDERS
from bearings.benchmarks.sweep import sweep, sweep_arguments

METRICS = {
    "us": "gpu__time_duration.sum",
    "tensor_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "warps_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "registers": "launch__registers_per_thread",
}


def measure(length: int, head_dim: int, chosen: list[str], rounds: int) -> list[dict]:
    """A row for each kernel launch of one forward and backward pass, in the order of contenders and launches."""
    profiler = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw"]
    profiler += ["--print-units", "base", "--metrics", ",".join(METRICS.values())]
    shape = ["--lengths", str(length), "--head-dims", str(head_dim), "--rounds", str(rounds), "--only", *chosen]
    program = [sys.executable, "-m", "bearings.benchmarks.kernels", *shape, "--out", os.devnull]
    found = subprocess.run(profiler + program, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    table = [line for line in found if line.startswith('"')]
    rows = []
    for launch in list(csv.DictReader(table))[1:]:  # behind the names is a line of units
        row = {"length": length, "head_dim": head_dim, "kernel": launch["Kernel Name"][:90]}
        for name, metric in METRICS.items():
            row[name] = float(launch[metric].replace(",", ""))
        row["us"] /= 1000  # Nsight Compute's base unit is the nanosecond
        rows.append(row)
    return rows


def show(rows: list[dict]) -> None:
    """All launches on the terminal."""
    for row in rows:
        print(f"{row['length']:6} {row['head_dim']:4} " + " ".join(f"{row[name]:9.1f}" for name in METRICS), end=" ")
        print(row["kernel"], flush=True)


def main() -> None:
    """Read the counters of the contenders."""
    if shutil.which("ncu") is None:
        sys.exit("error: ncu, Nsight Compute's command, is not on the PATH: it comes with CUDA's toolkit")
    sweep(sweep_arguments(__doc__, CONTENDERS, [64], Path("counters.csv")), CONTENDERS, measure, show)


if __name__ == "__main__":
    main()
