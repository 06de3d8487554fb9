"""Rank and local rank of this process, from the environment that Lightning, torchrun or SLURM sets."""

import os


def launched() -> bool:
    """Whether this process was started as one of several."""
    return "LOCAL_RANK" in os.environ or "SLURM_PROCID" in os.environ


def rank() -> int:
    """Number of this process, 0 for exactly one of them.

    On a node other than the first, where Lightning's own launcher sets NODE_RANK only, it is not unique.
    """
    return _first_of("RANK", "LOCAL_RANK", "SLURM_PROCID") or _first_of("RANK", "NODE_RANK")


def local_rank() -> int:
    """Number of this process on its machine."""
    return _first_of("LOCAL_RANK", "SLURM_LOCALID")


def _first_of(*names: str) -> int:
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)
