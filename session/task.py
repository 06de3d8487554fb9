"""What every task is, and what it is given at least. Imports no PyTorch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from rich.console import Console

from ..core import launcher
from ..core.terminal import PlainConsole

if TYPE_CHECKING:
    from .session import Session


def console_of_rank() -> Console:
    """A console that prints on the first rank only."""
    return PlainConsole(quiet=launcher.rank() != 0)


@dataclass
class Command:
    """What a task that needs nothing is given; a `Session` is one too.

    Attributes:
        config: the resolved configuration.
        console: where the task prints.
    """

    config: Mapping
    console: Console = field(default_factory=console_of_rank)


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
