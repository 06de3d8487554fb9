"""Compares scores of the default job on a GPU and a CPU. Trains every encoding on both and writes a CSV.

    python -m bearings.benchmarks.device_agreement --seeds 0 1 2 --jobs cpu=12 gpu=6 --out agreement.csv

Each run is `python main.py encoding=E seed=S trainer.accelerator=A`. Finished runs under `--runs` are reused.
"""

import argparse
import itertools
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

from ..domains.records import Records
from ..session.overrides import as_setting, choices_of
from ..session.run_directory import RunDirectory
from ..studying.jobs import MAIN
from .record import parser_of, source, write_rows


def train(encoding: str, seed: int, accelerator: str, arguments: argparse.Namespace) -> dict:
    """Train one run in a separate process and return its row."""
    runs = Path(arguments.runs) / accelerator
    given = [f"encoding={encoding}", f"seed={seed}", f"trainer.accelerator={accelerator}", as_setting("runs", runs)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    began = time.perf_counter()
    command = [sys.executable, str(MAIN), *given, "task.samples=0", *arguments.overrides]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)  # noqa: S603 (main.py, no shell)
    row = {"encoding": encoding, "seed": seed, "accelerator": accelerator, "seconds": time.perf_counter() - began}
    if done.returncode:
        print(f"{encoding} seed {seed} on {accelerator} failed:\n{done.stdout}{done.stderr}", file=sys.stderr)
        return row
    found = runs.glob(f"*/{encoding}/*-s{seed}/manifest.json")  # several, if earlier calls had other settings
    path = max(found, key=lambda file: file.stat().st_mtime).parent
    session = RunDirectory.open(path).manifest["sessions"][-1]
    return row | {
        "valid_nats_per_token": Records.load(path / "nll" / "valid.npz").nats_per_token,
        "test_nats_per_token": Records.load(path / "nll" / "test.npz").nats_per_token,
        "device": session["device"],
        "precision": session["precision"],
        "torch": session["packages"]["torch"],
        "commit": source(arguments.commit, session["code"]),
    }


def main() -> None:
    """Train the grid on both accelerators at the same time, and update the CSV after each run."""
    parser = parser_of(__doc__)
    parser.add_argument("--encodings", nargs="+", default=choices_of("encoding"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", nargs="+", default=["cpu=1", "gpu=1"], help="concurrent processes per accelerator")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads per process")
    parser.add_argument("--runs", default="runs/agreement")
    parser.add_argument("overrides", nargs="*", help="additional key=value settings for every run")
    arguments = parser.parse_args()
    rows: list[dict] = []
    writing = Lock()

    def one(task: tuple[str, int, str]) -> None:
        row = train(*task, arguments)
        rows.append(row)
        print({key: row.get(key) for key in ("encoding", "seed", "accelerator", "test_nats_per_token")}, flush=True)
        with writing:  # several threads run this at once
            write_rows(arguments.out, sorted(rows, key=lambda row: (row["encoding"], row["accelerator"], row["seed"])))

    pools = []
    for job in arguments.jobs:
        accelerator, _, count = job.partition("=")
        pool = ThreadPoolExecutor(int(count))
        grid = itertools.product(arguments.seeds, arguments.encodings)
        pools.append((pool, [pool.submit(one, (encoding, seed, accelerator)) for seed, encoding in grid]))
    for pool, futures in pools:
        for future in futures:
            future.result()
        pool.shutdown()


if __name__ == "__main__":
    main()
