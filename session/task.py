"""What every task is. Imports no PyTorch."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from .session import Session


class Task(ABC):
    """A verb of the command line: `task=train` calls an instance of `bearings.tasks.train.Train`.

    Its constructor's arguments are the keys of the group `task`, and raise ValueError outside their ranges.

    Attributes:
        needs: `nothing`: no domain, data or model; it is given a `Command`, and its module imports no PyTorch.
            `configuration`: that of a run to make. `run`: a run's own, which `run=DIRECTORY` names. Both are given a
            `Session`.
    """

    needs: ClassVar[Literal["nothing", "configuration", "run"]] = "configuration"

    @abstractmethod
    def __call__(self, session: "Session") -> None:
        """Do it, with a session that has been checked."""
