"""`python main.py` in this process, for tests of what a person meets at the command line."""

import sys

import pytest
from hydra.core.global_hydra import GlobalHydra

from bearings.session import cli


@pytest.fixture(name="run")
def run_command(tmp_path, monkeypatch, capfd):
    """Run `python main.py ARGUMENTS` in an empty directory: exit status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

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
