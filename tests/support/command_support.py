"""`python main.py` in this process, for tests of what a person meets at the command line."""

import sys

import pytest
from hydra.core.global_hydra import GlobalHydra
from training_support import without_drawing

from bearings.session import cli
from bearings.tasks import train


@pytest.fixture(name="run")
def run_command(tmp_path, monkeypatch, capfd):
    """Run `python main.py ARGUMENTS` in an empty directory: exit status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "plot_losses", without_drawing)

    def main(*arguments):
        GlobalHydra.instance().clear()
        monkeypatch.setattr(sys, "argv", ["main.py", *arguments])
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = stop.code
        out, err = capfd.readouterr()
        return status, out, err

    return main
