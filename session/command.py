"""The context of tasks that need neither data nor a model. Imports no PyTorch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console

from ..core import launcher
from ..core.terminal import PlainConsole


def console_of_rank() -> Console:
    """A console that prints only on rank 0."""
    return PlainConsole(quiet=launcher.rank() != 0)


@dataclass
class Command:
    """The context of a task: its configuration and where it prints. `Session` extends it.

    Attributes:
        config: the resolved configuration.
        console: where the task prints.
        overrides: the settings of the command line; None in a sweep and when called from Python.
        own_files: the folder of --config-dir; None without one.
    """

    config: Mapping
    console: Console = field(default_factory=console_of_rank)
    overrides: Sequence[str] | None = None
    own_files: str | None = None
