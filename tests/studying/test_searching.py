"""task=study with a search: it comes first, and chooses settings of the runs."""

import sys

import pytest
import yaml
from hydra import initialize_config_dir
from report_support import make_run
from study_support import CPU, study_command  # noqa: F401

from bearings.core.errors import UserError
from bearings.reporting.reading import read_study
from bearings.session.configuration import CONFIGS
from bearings.session.session import Session
from bearings.studying import planning, running

SEARCH = """
import csv, os, pathlib, sys
path, values = pathlib.Path(sys.argv[1]), {"False": "0.001", "True": "0.01"}
path.parent.mkdir(parents=True, exist_ok=True)
with open(path, "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["optimizer.learning_rate", "model.dropout", "valid_nll", "seeds", "each_seed", "chosen"])
    writer.writerows([value, "0.5", 1.0, 1, seed, chosen] for seed in ("5", "6") for chosen, value in values.items())
"""


@pytest.fixture(name="searched")
def searched_study(tmp_path):
    """A study of two encodings whose learning rate and dropout are searched."""
    lines = ["experiment=debug seed=0,1 encoding=rope,nope"]
    search = "task=tune task.rates=[1e-3,1e-2] task.grid={model.dropout:[0.0,0.5]} seed=5"
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"search": search, "runs": lines}))
    return tmp_path


def test_a_search_comes_before_the_runs_and_chooses_their_settings(searched, monkeypatch):
    trained, logs = searched / "trained", searched / "logs"
    first = planning.plan(searched, trained, [CPU, "task.samples=0"])
    assert [job.run for job in first] == ["experiment=debug encoding=rope", "experiment=debug encoding=nope"]
    command = planning.commands(first[:1])[0][2:]
    assert command[:5] == ["experiment=debug", "encoding=rope", "task=tune", "task.rates=[1e-3,1e-2]", command[4]]
    assert command[4:] == ["task.grid={model.dropout:[0.0,0.5]}", "seed=5", CPU, f"task.out={trained / 'search'}"]
    config, tune = planning_of(command)
    assert first[0].path == tune.results(config)
    given = [[sys.executable, "-c", SEARCH, str(job.path)] for job in first]
    monkeypatch.setattr(running, "commands", lambda runs: [given[first.index(runs[0])]])
    assert running.execute(first, 2, logs, seeds=2) == []
    table = (searched / "tuning.csv").read_text().splitlines()
    assert table[0].startswith("run,optimizer.learning_rate,model.dropout,valid_nll")
    assert len(table) == 1 + 2 * 2  # of seed 5 only
    then = planning.plan(searched, trained, [CPU])
    found = [[setting for setting in run.settings if "=" in setting][:5] for run in then]
    chosen = ["optimizer.learning_rate=0.01", "model.dropout=0.5"]
    assert found == [
        ["experiment=debug", f"seed={seed}", f"encoding={name}", *chosen]
        for seed in (0, 1)
        for name in ("rope", "nope")
    ]
    assert [len(group) for group in planning.together(then, 2)] == [2, 2]


def planning_of(command):
    """The checked configuration and the task of a command."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config, task = planning._asked(command)
    return Session.of(config).config, task


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("task.rates=[1e-3,1e-2]", r"a search is a line such as task=tune"),
        ("task=tune task.rates=[1e-3]", r"task=tune task\.rates=\[1e-3\]: task\.rates=\[0\.001\]: give at least two"),
        ("task=tune task.out=here", r"task\.out=here: a search only has task=tune"),
        ("task=tune trainer.steps=3", r"trainer\.steps=3: a search only has task=tune"),
        ("task=tune seed=1,2", r"seed=1,2: a search only has task=tune"),
        ("task=tune task.grid={model.droput:[0,1]}", r"task\.grid: model\.droput is not a setting"),
    ],
)
def test_a_mistake_in_a_search_is_reported_before_training(tmp_path, search, message):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"search": search, "runs": ["experiment=debug seed=0"]}))
    with pytest.raises(UserError, match=f"study.yaml, .*{message}"):
        planning.plan(tmp_path, tmp_path / "trained", [CPU])


def test_a_table_of_a_search_sets_nothing_but_settings_of_a_run(searched):
    for table, message in (
        ("run,encoding._target_,chosen\nexperiment=debug encoding=rope,os.system,True\n", "only settings such as"),
        ("run,task.out,chosen\nexperiment=debug encoding=rope,../elsewhere,True\n", "must be a path below"),
        ("nothing\n1\n", "not a table of a search"),
    ):
        (searched / "tuning.csv").write_text(table)
        with pytest.raises(UserError, match=rf"tuning\.csv: .*{message}"):
            planning.plan(searched, searched / "trained", [CPU])


def test_the_command_searches_then_trains(searched, command, monkeypatch):
    asked = []

    def execute(todo, *given):
        asked.append([type(job).__name__ for job in todo])
        if len(asked) == 1:
            rows = [f"experiment=debug encoding={name},0.01,True" for name in ("rope", "nope")]
            (searched / "tuning.csv").write_text("\n".join(["run,optimizer.learning_rate,chosen", *rows]))
        return []

    monkeypatch.setattr(running, "execute", execute)
    with pytest.raises(UserError, match="4 of 4 runs are not finished"):
        command(f"study={searched}", "runs=trained")
    assert asked == [["Searched"] * 2, ["Planned"] * 4]


def test_encodings_with_different_searched_settings_are_compared(searched):
    """Without the search, their dropout would set them apart."""
    for encoding, dropout in (("rope", 0.0), ("nope", 0.5)):
        for seed in (0, 1):
            make_run(searched / "runs", encoding, seed, f"model.dropout={dropout}")
    rows = [f"experiment=debug encoding={name},{value},True" for name, value in (("rope", 0.0), ("nope", 0.5))]
    (searched / "tuning.csv").write_text("\n".join(["run,model.dropout,chosen", *rows]))
    study = read_study([searched])
    assert [len(comparison.contestants) for comparison in study.comparisons] == [2]
    assert not study.troubles
    (searched / "tuning.csv").write_text(
        "\n".join(["run,model.dropout,chosen", *rows[:1], rows[1].replace("0.5", "0.0")])
    )
    missing = [trouble.place for trouble in read_study([searched]).troubles if trouble.state == "missing"]
    assert missing == [f"experiment=debug seed={seed} encoding=nope model.dropout=0.0" for seed in (0, 1)]
    (searched / "study.yaml").write_text("runs: []\n")
    assert [len(comparison.contestants) for comparison in read_study([searched]).comparisons] == [1, 1]
