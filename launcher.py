"""What Lightning, torchrun or SLURM, which starts a run's processes (ranks), says in their environment."""

import os


def launched() -> bool:
    """Whether this process was started as one of several."""
    return "LOCAL_RANK" in os.environ or "SLURM_PROCID" in os.environ


def rank() -> int:
    """Number of this process; 0 if it is the only one."""
    return _first_of("RANK", "LOCAL_RANK", "SLURM_PROCID")


def local_rank() -> int:
    """Number of this process on its machine."""
    return _first_of("LOCAL_RANK", "SLURM_LOCALID")


def _first_of(*names: str) -> int:
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)
