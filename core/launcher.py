"""Rank and local rank of this process, from the environment variables of Lightning, torchrun or SLURM."""

import os

INTERACTIVE = ("bash", "interactive")  # names of SLURM jobs in which Lightning starts the processes itself


def launched() -> bool:
    """Whether a launcher started this process as one of several."""
    return "LOCAL_RANK" in os.environ or "SLURM_PROCID" in os.environ


def rank() -> int:
    """The rank of this process; exactly one process has rank 0.

    With Lightning's launcher, which sets only NODE_RANK, other ranks are not unique on nodes after the first.
    """
    return _first_of("RANK", "LOCAL_RANK", "SLURM_PROCID") or _first_of("RANK", "NODE_RANK")


def local_rank() -> int:
    """The rank of this process on its machine."""
    return _first_of("LOCAL_RANK", "SLURM_LOCALID")


def started(needed: int) -> tuple[int, int] | None:
    """Numbers of ranks and nodes that torchrun or SLURM started; None if Lightning starts the `needed` ranks.

    A command of a batch job is a single process without srun, but Lightning expects SLURM_NTASKS of them.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        ranks = int(os.environ["WORLD_SIZE"])
        return ranks, ranks // int(os.environ["LOCAL_WORLD_SIZE"])
    if os.environ.get("SLURM_JOB_NAME") in INTERACTIVE:
        return None
    if "SLURM_STEP_NUM_TASKS" in os.environ:  # by srun
        return _first_of("SLURM_STEP_NUM_TASKS"), _first_of("SLURM_STEP_NUM_NODES", "SLURM_NNODES") or 1
    if "SLURM_NTASKS" in os.environ and needed > 1:
        return 1, 1
    return None


def _first_of(*names: str) -> int:
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)
