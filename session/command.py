"""What a task that needs neither data nor a model is given. Imports no PyTorch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console

from ..core import launcher
from ..core.terminal import PlainConsole


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
