"""Ends the run when a rank dies: with NCCL the others would wait for it until a timeout of many minutes."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Trainer

from ..core import launcher, stopping
from ..core.errors import UserError
from .internals import observe_children

EVERY, GRACE = 0.5, 10.0  # seconds between checks, and for this process to end with its own message
STOPPED = (stopping.STATUS, *(-number for number in stopping.SIGNALS))  # negative: killed before `stopping.listen` ran


def watch_ranks(trainer: Trainer) -> None:
    """End this process when another process of the run has died, from the start of `trainer.fit` on.

    Rank 0 prints one line. This applies to processes that Lightning starts on one machine; torchrun and SLURM watch
    their own.
    """
    environment = getattr(trainer.strategy, "cluster_environment", None)
    if trainer.world_size == 1 or not isinstance(environment, LightningEnvironment):
        return
    if launcher.local_rank():
        _in_background(watch_parent, os.getppid())
    else:
        observe_children(lambda children: _in_background(watch_children, children))


def watch_children(children: Sequence[subprocess.Popen]) -> None:
    """End this process and ranks 1, 2, ... once one of them has failed or was asked to stop."""
    while all(child.poll() in (None, 0) for child in children):
        time.sleep(EVERY)
    number, status = next((n, child.returncode) for n, child in enumerate(children, 1) if child.returncode)
    time.sleep(GRACE)
    for child in children:
        child.kill()
    if status in STOPPED or stopping.interrupted():
        stopping.print_stopped()
        os._exit(stopping.STATUS)
    how = f"was killed by signal {-status}" if status < 0 else f"failed with status {status}"
    remedy = "rerun the same command to resume from the last checkpoint"
    print(f"error: rank {number} {how}: {remedy}", file=sys.stderr, flush=True)
    os._exit(UserError.exit_status)


def watch_parent(parent: int) -> None:
    """End this process once its parent, rank 0, has ended."""
    while os.getppid() == parent:
        time.sleep(EVERY)
    time.sleep(GRACE)
    os._exit(UserError.exit_status)


def _in_background(watch: Callable, *arguments: object) -> None:
    threading.Thread(target=watch, args=arguments, daemon=True).start()
