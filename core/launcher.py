"""Rank and local rank of this process, from the environment variables of Lightning, torchrun or SLURM."""

import os


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


def _first_of(*names: str) -> int:
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)
