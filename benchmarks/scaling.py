"""Measures training speed on several GPUs, for the 124M model with this project's Trainer.

    python -m bearings.benchmarks.scaling --devices 1 2 4 --strategies ddp fsdp --out scaling.csv
    python -m bearings.benchmarks.scaling --strategies context --batch 1 --length 131072 --steps 10 --out context.csv

The number of rows per GPU and step is constant; with `context` all GPUs share each row, and their number per step is
constant. Efficiency is tokens/s per GPU relative to the first given number of GPUs, with the first strategy.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import cast

import torch
from lightning.pytorch import Callback, Trainer
from torch.utils.data import DataLoader, Dataset

from ..lightning_modules.context_parallel import ContextParallel, part_of, unsupported
from ..lightning_modules.data_module import IGNORED, StepBatches
from ..lightning_modules.fitting import FittedModel, build_trainer
from ..lightning_modules.language_model import LanguageModel
from ..lightning_modules.trainer import TrainerSettings
from .record import parser_of, source, write_rows
from .training import Size, ours


class RandomRows(Dataset):
    """An endless dataset of rows of random tokens, each as a batch of one."""

    def __init__(self, length: int):
        self.length = length

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.randint(Size.vocabulary, (self.length + 1,), generator=torch.Generator().manual_seed(row))


def batch_of(rows: list[torch.Tensor], place: int, shared_by: int) -> dict[str, torch.Tensor]:
    """Batch rows like `collate` of the data module, or the part of them for rank `place` of those that share them."""
    tokens = torch.stack(rows)
    batch = {"inputs": tokens[:, :-1].contiguous(), "targets": tokens[:, 1:].contiguous()}
    return batch if shared_by == 1 else {key: part_of(x, place, shared_by, IGNORED) for key, x in batch.items()}


class Clock(Callback):
    """Measures seconds per step after the first `warm` steps."""

    def __init__(self, warm: int):
        self.warm, self.began, self.seconds = warm, 0.0, 0.0

    def on_train_start(self, *rest) -> None:
        self.began = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, *rest) -> None:
        if trainer.global_step in (self.warm, trainer.max_steps):
            torch.cuda.synchronize()
            now = time.perf_counter()
            if trainer.global_step == self.warm:
                self.began = now
            else:
                self.seconds = (now - self.began) / (trainer.max_steps - self.warm)


def measure(arguments: argparse.Namespace, devices: int, strategy: str) -> None:
    """Run one process of a measurement. Rank 0 prints the results as a line of JSON."""
    shared_by = devices if strategy == "context" else 1
    contender = ours(arguments.encoding, Size(length=arguments.length), compiled=shared_by == 1)
    model = FittedModel.of(cast("LanguageModel", contender.module))
    if shared_by > 1:
        if reason := unsupported(model.transformer, model.device):
            raise SystemExit(f"--strategies context: {reason}")
        model.transformer.compile_parts()
        model.context = ContextParallel(shared_by)
    sharded = "fsdp" if strategy == "fsdp" else "ddp"
    settings = TrainerSettings(
        steps=arguments.warm + arguments.steps, devices=devices, strategy=sharded, context_parallel=shared_by
    )
    clock = Clock(arguments.warm)
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(settings, Path(folder), [clock], [])
        replica, rows = trainer.global_rank // shared_by, arguments.batch * settings.replicas
        batches = StepBatches(0, settings.steps, rows, replica, settings.replicas)
        batched = partial(batch_of, place=trainer.global_rank % shared_by, shared_by=shared_by)
        loader = DataLoader(
            RandomRows(arguments.length), batch_sampler=batches, collate_fn=batched, num_workers=4, pin_memory=True
        )
        trainer.fit(model.to(settings.device), loader)
    if trainer.is_global_zero:
        peak = torch.cuda.max_memory_allocated() / 2**20
        print(json.dumps({"seconds": clock.seconds, "peak_mib": round(peak), "loss": model.loss.item()}))


def runs_of(devices: list[int], strategies: list[str]) -> list[tuple[int, str]]:
    """Every number of devices with every strategy. They do not differ on a single device, which runs once."""
    return [(n, strategy) for n in devices for strategy in (strategies if n > 1 else strategies[:1])]


def launch(arguments: argparse.Namespace, devices: int, strategy: str) -> dict:
    """Measure a run with `devices` processes and return the results of rank 0."""
    again = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}"]
    again += ["-m", "bearings.benchmarks.scaling", *sys.argv[1:], f"--one={devices},{strategy}"]
    done = subprocess.run(again, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 (this module again)
    return json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{")))


def main() -> None:
    """Measure every number of devices with every strategy, and update the CSV after each."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--devices", nargs="+", type=int, default=[1, 2, 4], help="numbers of GPUs; the first is the baseline"
    )
    parser.add_argument("--strategies", nargs="+", default=["ddp", "fsdp"], choices=["ddp", "fsdp", "context"])
    parser.add_argument("--encoding", default="rope")
    parser.add_argument("--batch", type=int, default=32, help="rows per GPU and step")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--warm", type=int, default=15, help="steps before the measurement")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        devices, strategy = arguments.one.split(",")
        return measure(arguments, int(devices), strategy)
    if torch.cuda.device_count() < max(arguments.devices):
        parser.error(f"--devices {max(arguments.devices)}: only {torch.cuda.device_count()} GPUs are visible")
    os.environ["OMP_NUM_THREADS"] = "1"
    rows: list[dict] = []
    for devices, strategy in runs_of(arguments.devices, arguments.strategies):
        found = launch(arguments, devices, strategy)
        rows_per_step = arguments.batch * (1 if strategy == "context" else devices)
        speed = rows_per_step * arguments.length / found["seconds"]
        one = rows[0]["tokens_per_s"] / rows[0]["devices"] if rows else speed / devices
        rows.append(
            {
                "encoding": arguments.encoding,
                "devices": devices,
                "strategy": strategy if devices > 1 else "",
                "tokens_per_s": round(speed),
                "efficiency": round(speed / devices / one, 4),
                "peak_mib": found["peak_mib"],
                "batch": arguments.batch,
                "length": arguments.length,
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "python": platform.python_version(),
                "commit": source(arguments.commit),
            }
        )
        print(f"{devices} x {strategy:5} {speed:>10,.0f} tokens/s  efficiency {rows[-1]['efficiency']:.3f}", flush=True)
        write_rows(arguments.out, rows)
    return None


if __name__ == "__main__":
    main()
