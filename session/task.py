"""The base class of all tasks. Imports no PyTorch."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from ..domains.base import Domain
    from .session import Session


class Task(ABC):
    """A verb of the command line: `task=train` calls an instance of `bearings.tasks.train.Train`.

    The constructor's arguments are the keys of the group `task`; it raises ValueError for values out of range.

    Attributes:
        needs: `nothing`: no domain, data or model. The task gets a `Command`, and its module imports no PyTorch.
            `configuration`: the configuration of a new run; the task gets a `Session`.
            `run`: the configuration of the run in `run=DIRECTORY`; the task gets a `Session`.
        resumes: whether a stopped task goes on where it was if the same command is given again.
        reads: keys that a task which needs `nothing` reads in addition to `task` and `trust`; others are refused.
    """

    needs: ClassVar[Literal["nothing", "configuration", "run"]] = "configuration"
    resumes: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ()

    def configured(self, config: dict) -> dict:
        """`config` with the settings that this task chooses."""
        return config

    def possible_contexts(self, split: str, trained: int) -> set[int]:
        """The context lengths with which the task scores `split` of a run, if its documents are long enough.

        Args:
            split: a test split.
            trained: the run's `data.length`.
        """
        return set()

    def refusal(self, domain: "Domain") -> str | None:
        """Why the task cannot be carried out for runs on `domain`; None if it can."""
        return None

    @abstractmethod
    def __call__(self, session: "Session") -> float | None:
        """Carry out the task, with a checked session. May return a loss, which a Hydra sweeper can minimise."""
