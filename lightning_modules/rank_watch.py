"""A rank that dies ends the run: under NCCL the others would wait for it until a timeout of many minutes."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch import Callback, Trainer

from bearings.errors import InterruptedRunError, UserError
from bearings.lightning_modules.language_model import LanguageModel

EVERY, GRACE = 0.5, 5.0  # seconds between looks, and given to this process to end by itself with its own error


class RankWatch(Callback):
    """Ends this process, with one line from rank 0, when another of the run's processes has died, until it ends itself.

    For the processes of one machine that Lightning has started; torchrun and SLURM watch over theirs.
    """

    def setup(self, trainer: Trainer, module: LanguageModel, stage: str) -> None:
        strategy = trainer.strategy
        if trainer.world_size == 1 or not isinstance(strategy.cluster_environment, LightningEnvironment):
            return
        if strategy.local_rank:
            target, argument = watch_parent, os.getppid()
        else:
            for thread in threading.enumerate():
                if thread.name == "child-process-observer":  # Lightning's own kills this process without a word
                    thread._child_processes = []
            target, argument = watch_children, strategy.launcher.procs
        threading.Thread(target=target, args=(argument,), daemon=True).start()


def watch_children(children: Sequence[subprocess.Popen]) -> None:
    """End this process, and what is left of ranks 1, 2, ..., once one of them has failed."""
    stopped = (None, 0, InterruptedRunError.exit_status)  # or going on: all ranks end alike when asked to stop
    while all(child.poll() in stopped for child in children):
        time.sleep(EVERY)
    number, status = next(
        (n, child.returncode) for n, child in enumerate(children, 1) if child.returncode not in stopped
    )
    time.sleep(GRACE)
    for child in children:
        child.kill()
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    print(f"error: rank {number} {how}: the same command goes on from the last checkpoint", file=sys.stderr, flush=True)
    os._exit(UserError.exit_status)


def watch_parent(parent: int) -> None:
    """End this process once its parent, rank 0, has gone."""
    while os.getppid() == parent:
        time.sleep(EVERY)
    time.sleep(GRACE)
    os._exit(UserError.exit_status)
