"""What every task is."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from .session import Session


class Task(ABC):
    """A verb of the command line: `task=train` calls an instance of `bearings.tasks.train.Train`.

    Its constructor's arguments are the keys of the group `task`, and raise ValueError outside their ranges.

    Attributes:
        needs: `configuration`, that of a run to make, or `run`, a run's own, which `run=DIRECTORY` names.
    """

    needs: ClassVar[Literal["configuration", "run"]] = "configuration"

    @abstractmethod
    def __call__(self, session: Session) -> None:
        """Do it, with a session that has been checked."""
