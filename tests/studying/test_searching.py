"""task=study with a search: it comes first, and chooses settings of the runs."""

import re
import sys

import pytest
import yaml
from hydra import initialize_config_dir
from report_support import make_run
from study_support import CPU, study_command  # noqa: F401

from bearings.core.checked_files import read_csv
from bearings.core.errors import UserError
from bearings.reporting.finished import RATE
from bearings.reporting.planned import chosen_settings, listed
from bearings.reporting.reading import read_study
from bearings.session.session import Session
from bearings.session.settings import CONFIGS
from bearings.studying import jobs, planning, running
from bearings.studying.composing import Composer
from bearings.studying.searching import Searched, edges_of_grids

SEARCH = """
import csv, os, pathlib, sys
path, values = pathlib.Path(sys.argv[1]), {"False": ("0.001", 1.0), "True": ("0.01", 0.5)}
path.parent.mkdir(parents=True, exist_ok=True)
with open(path, "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["optimizer.learning_rate", "model.dropout", "valid_nll", "seeds", "each_seed", "chosen"])
    for seed in ("5", "6"):
        writer.writerows([rate, "0.5", nats, 1, seed, chosen] for chosen, (rate, nats) in values.items())
"""


LINE = "task=tune task.rates=[1e-3,1e-2] task.grid={model.dropout:[0.0,0.5]} seed=5"


@pytest.fixture(name="searched")
def searched_study(tmp_path):
    """A study of two encodings whose learning rate and dropout are searched."""
    lines = ["experiment=debug seed=0,1 encoding=rope,nope"]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"search": LINE, "runs": lines}))
    return tmp_path


def write_table(folder, key, values):
    """A table of results that has chosen these values of `key` by encoding."""
    rows = [f'experiment=debug encoding={name},"{LINE}",{value},True' for name, value in values.items()]
    (folder / "tuning.csv").write_text("\n".join([f"run,search,{key},chosen", *rows]))


def test_a_search_comes_before_the_runs_and_chooses_their_settings(searched, monkeypatch):
    trained, logs = searched / "trained", searched / "logs"
    first = planning.plan(searched, trained, [CPU, "task.samples=0"])
    assert [job.run for job in first] == ["experiment=debug encoding=rope", "experiment=debug encoding=nope"]
    command = jobs.commands(first[:1])[0][2:]
    assert command[:5] == ["experiment=debug", "encoding=rope", "task=tune", "task.rates=[1e-3,1e-2]", command[4]]
    assert command[4:] == ["task.grid={model.dropout:[0.0,0.5]}", "seed=5", CPU, f"task.out={searched / 'tuning'}"]
    config, tune = planning_of(command)
    assert first[0].path == tune.check(Session.of(config))
    given = [[sys.executable, "-c", SEARCH, str(job.path)] for job in first]
    monkeypatch.setattr(running, "commands", lambda runs: [given[first.index(runs[0])]])
    assert running.execute(first, 2, logs, seeds=4) == []
    table = (searched / "tuning.csv").read_text().splitlines()
    assert table[0].startswith("run,search,optimizer.learning_rate,model.dropout,valid_nll")
    assert len(table) == 1 + 2 * 2  # of seed 5 only
    then = planning.plan(searched, trained, [CPU])
    found = [[setting for setting in run.settings if "=" in setting][:5] for run in then]
    chosen = ["optimizer.learning_rate=0.01", "model.dropout=0.5"]
    assert found == [
        ["experiment=debug", f"seed={seed}", f"encoding={name}", *chosen]
        for seed in (0, 1)
        for name in ("rope", "nope")
    ]
    assert [len(group) for group in jobs.together(then, 2)] == [2, 2]


def test_a_search_trains_outside_the_folder_of_runs_which_reports_read(searched):
    runs = searched / "größere Läufe" / "runs"
    for job in planning.plan(searched, runs, [CPU]):
        assert job.path.is_relative_to(runs.with_name("tuning"))


def planning_of(command):
    """The checked configuration and the task of a command."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config, task = Composer().asked(command)
    return Session.of(config).config, task


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("task.rates=[1e-3,1e-2]", r"a search is a line such as task=tune"),
        ("task=tune task.rates=[1e-3]", r"task=tune task\.rates=\[1e-3\]: task\.rates=\[0\.001\]: give at least two"),
        ("task=tune task.out=here", r"task\.out=here: a search only has task=tune"),
        ("task=tune task.points=[0]", r"task\.points=\[0\]: a search only has task=tune"),
        ("task=tune trainer.steps=3", r"trainer\.steps=3: a search only has task=tune"),
        ("task=tune seed=1,2", r"seed=1,2: a search only has task=tune"),
        ("task=tune task.grid={model.droput:[0,1]}", r"task\.grid: model\.droput is not a setting"),
        ("task=tune task.grid={model.dropout:[0.0,2.0]}", r"model\.dropout=2\.0"),
    ],
)
def test_a_mistake_in_a_search_is_reported_before_training(tmp_path, search, message):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"search": search, "runs": ["experiment=debug seed=0"]}))
    with pytest.raises(UserError, match=f"study.yaml, .*{message}"):
        planning.plan(tmp_path, tmp_path / "trained", [CPU])


def test_a_table_of_a_search_sets_nothing_but_settings_of_a_run(searched):
    for table, message in (
        (("encoding._target_", {"rope": "os.system"}), "only settings such as"),
        (("task.out", {"rope": "../elsewhere"}), "must be a path below"),
        (None, "not a table of a search"),
    ):
        if table is None:
            (searched / "tuning.csv").write_text("nothing\n1\n")
        else:
            write_table(searched, *table)
        with pytest.raises(UserError, match=rf"tuning\.csv: .*{message}"):
            planning.plan(searched, searched / "trained", [CPU])


def test_the_command_searches_then_trains(searched, command, monkeypatch):
    asked = []

    def execute(todo, jobs, logs, limit, commit, gpus, seeds, after):
        asked.append([type(job).__name__ for job in todo])
        write_table(searched, "optimizer.learning_rate", {"rope": 0.01, "nope": 0.01})
        for job in todo:
            asked.append([(type(run).__name__, run.seed) for run in after(job)])
            assert after(job) == []  # each once
        return []

    monkeypatch.setattr(running, "execute", execute)
    with pytest.raises(UserError, match="4 of 4 runs are not finished"):
        command(f"study={searched}", "runs=trained")
    assert asked == [["Searched"] * 2, *[[("Planned", 0), ("Planned", 1)]] * 2]


# The search for NoPE ends once the first run of RoPE has begun.
WAIT = """
import pathlib, sys, time
end = time.monotonic() + 20
while not list(pathlib.Path(sys.argv[2]).rglob("rope/*/begun")):
    if time.monotonic() > end:
        sys.exit("no run of the other encoding began")
    time.sleep(0.05)
"""
BEGIN = """
import pathlib, sys
path = pathlib.Path(sys.argv[1]); path.mkdir(parents=True); (path / "begun").touch(); sys.exit(1)
"""


# Adds one point, as task=tune with task.points does.
POINT = """
import csv, os, pathlib, sys
path, number, nats = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
with open(path, "a", newline="") as file:
    writer = csv.writer(file)
    if not file.tell():
        writer.writerow(["optimizer.learning_rate", "model.dropout", "valid_nll", "seeds", "each_seed", "chosen"])
    writer.writerow([("0.001", "0.01")[number // 2], ("0.0", "0.5")[number % 2], nats[number], 1, "5", "False"])
"""


@pytest.mark.parametrize(("nats", "best"), [("2,inf,1.5,3", ["0.01", "0.0"]), ("inf,inf,inf,inf", None)])
def test_processes_share_a_search_and_the_best_of_all_their_points_is_chosen(searched, monkeypatch, nats, best):
    search, kept = planning.plan(searched, searched / "trained", [CPU])[0], []
    search.path.parent.mkdir(parents=True)
    parts = [each for (each,) in jobs.together([search], 1)]
    assert [part.settings[-1] for part in parts] == [f"task.points=[{number}]" for number in range(4)]
    assert len({part.suffix for part in parts}) == 4

    def after(job):
        kept.append((searched / "tuning.csv").exists())
        return []

    def commands(runs):
        return [[sys.executable, "-c", POINT, str(search.path), str(runs[0].part[0]), nats]]

    monkeypatch.setattr(running, "commands", commands)
    failed = running.execute([search], 1, searched / "logs", after=after)
    if best is None:
        assert kept == [False] * 3
        assert re.search("task=tune .*: training diverged at all points: give lower rates", failed[0])
        assert not (searched / "tuning.csv").exists()
    else:
        assert not failed
        assert kept == [False] * 3 + [True]
        assert [*chosen_settings(searched, LINE).values()] == [[f"{RATE}={best[0]}", f"model.dropout={best[1]}"]]


def test_parts_of_a_search_have_as_many_points_as_a_process_trains(searched):
    search = planning.plan(searched, searched / "trained", [CPU])[0]
    assert [[part.part for part in group] for group in jobs.together([search], 3)] == [[[0, 1, 2]], [[3]]]
    assert jobs.together([search], 4) == [[search]]
    assert search.parts(3)[0].title == f"{search.path}, task.points=[0, 1, 2]"


def test_runs_begin_once_their_own_search_has_ended(searched, command, monkeypatch):
    def commands(runs):
        script, path = SEARCH if isinstance(runs[0], Searched) else BEGIN, runs[0].path
        wait = WAIT if isinstance(runs[0], Searched) and "nope" in path.parts else ""
        return [[sys.executable, "-c", wait + script, str(path), "trained"]]

    monkeypatch.setattr(running, "commands", commands)
    with pytest.raises(UserError, match="4 of 4 runs are not finished"):
        command(
            f"study={searched}",
            "runs=trained",
            "task.jobs=2",
            "task.seeds=4",
            f"task.settings={{{CPU.replace('=', ': ')}}}",
        )
    assert len([*(searched / "trained").rglob("begun")]) == 4


def test_runs_of_searched_settings_come_before_other_searches(searched, monkeypatch):
    first = planning.plan(searched, searched / "trained", [CPU])
    order, start = [], running.Running.start

    def noted(each, environment):
        order.append((type(each.runs[0]).__name__, each.runs[0].path.parent.name))
        start(each, environment)

    def after(job):
        return planning.plan(searched, searched / "trained", [CPU], job.run) if isinstance(job, Searched) else []

    def commands(runs):
        return [
            [
                sys.executable,
                "-c",
                SEARCH if isinstance(runs[0], Searched) else BEGIN,
                str(runs[0].path),
            ]
        ]

    monkeypatch.setattr(running.Running, "start", noted)
    monkeypatch.setattr(running, "commands", commands)
    assert len(running.execute(first, 1, searched / "logs", seeds=4, after=after)) == 4
    # Two runs in one process, which fails, and then each on its own.
    one, other = ([("Searched", name), *[("Planned", name)] * 3] for name in ("rope", "nope"))
    assert order == [*one, *other]


def test_a_list_that_becomes_invalid_stops_no_other_search(searched, monkeypatch):
    first = planning.plan(searched, searched / "trained", [CPU])

    def after(job):
        (searched / "study.yaml").write_text("runs: [encoding=")
        return planning.plan(searched, searched / "trained", [CPU], job.run)

    monkeypatch.setattr(running, "commands", lambda runs: [[sys.executable, "-c", SEARCH, str(runs[0].path)]])
    failed = running.execute(first, 1, searched / "logs", seeds=4, after=after)
    assert len(failed) == 2
    assert all("study.yaml" in line for line in failed)


def test_the_time_of_a_search_does_not_keep_runs_from_starting(searched, monkeypatch):
    """Although less time is left than the search has taken."""
    first, late, clock = planning.plan(searched, searched / "trained", [CPU])[:1], [0.0], running.time.monotonic
    monkeypatch.setattr(running.time, "monotonic", lambda: clock() + late[0])

    def commands(runs):
        if isinstance(runs[0], Searched):
            late[0] = 60.0
        script = SEARCH if isinstance(runs[0], Searched) else BEGIN
        return [[sys.executable, "-c", script, str(runs[0].path)]]

    def after(job):
        return planning.plan(searched, searched / "trained", [CPU], job.run)

    monkeypatch.setattr(running.Running, "last", True)
    monkeypatch.setattr(running, "commands", commands)
    running.execute(first, 1, searched / "logs", 100, seeds=4, after=after)
    assert len([*(searched / "trained").rglob("begun")]) == 2


def test_encodings_with_different_searched_settings_are_compared(searched):
    """Without the search, their dropout would set them apart."""
    for encoding, dropout in (("rope", 0.0), ("nope", 0.5)):
        for seed in (0, 1):
            make_run(searched / "runs", encoding, seed, f"model.dropout={dropout}")
    write_table(searched, "model.dropout", {"rope": 0.0, "nope": 0.5})
    study = read_study([searched])
    assert [len(comparison.contestants) for comparison in study.comparisons] == [2]
    assert not study.troubles
    write_table(searched, "model.dropout", {"rope": 0.0, "nope": 0.0})
    missing = [trouble.place for trouble in read_study([searched]).troubles if trouble.state == "missing"]
    assert missing == [f"experiment=debug seed={seed} encoding=nope model.dropout=0.0" for seed in (0, 1)]
    (searched / "study.yaml").write_text("runs: []\n")
    assert [len(comparison.contestants) for comparison in read_study([searched]).comparisons] == [1, 1]


def test_the_page_of_a_study_names_encodings_whose_best_rate_is_at_the_edge_of_the_grid(tmp_path):
    rates = {"rope": "1e-3", "nope": "2e-3", "fox": "4e-3", "path": "1e-3", None: "4e-3"}
    rows = [
        f"{'' if name is None else f'encoding={name} '}seed=0,{LINE},{rate},{dropout},{rate == best and dropout == 0}"
        for name, best in rates.items()
        for rate in ("1e-3", "2e-3", "4e-3")
        for dropout in (0, 1)
    ]
    quoted = [row.replace(LINE, f'"{LINE}"') for row in rows]
    (tmp_path / "tuning.csv").write_text("\n".join([f"run,search,{RATE},model.dropout,chosen", *quoted]))
    assert edges_of_grids(tmp_path) == (
        "Best learning rates at the edge of the grid: the lowest for rope, path; the highest for fox, the "
        "default encoding."
    )
    (tmp_path / "tuning.csv").write_text(f"run,search,{RATE},chosen\nencoding=rope,s,fast,True\n")
    with pytest.raises(UserError, match=r"tuning\.csv: not a table of a search \(.*fast.*\): restore or delete it"):
        edges_of_grids(tmp_path)
    (tmp_path / "tuning.csv").write_text(f"run,search,{RATE},chosen\nencoding=rope,s,1e-3,True\n")
    assert edges_of_grids(tmp_path) is None


def test_a_table_of_a_search_may_come_from_a_spreadsheet(tmp_path):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"search": LINE, "runs": ["encoding=rope seed=0"]}))
    table = f'run,search,{RATE},chosen\nencoding=rope,"{LINE}",1e-3,TRUE\nencoding=rope,"{LINE}",2e-3,FALSE\n'
    (tmp_path / "tuning.csv").write_text(table)
    assert [chosen for _, chosen in listed(tmp_path)] == [[f"{RATE}=1e-3"]]
    (tmp_path / "tuning.csv").write_text(table.replace("TRUE", "yes"))
    with pytest.raises(UserError, match=r"tuning\.csv: not a table of a search \(chosen: yes must be True or False"):
        listed(tmp_path)


def test_encodings_at_the_edge_of_the_grid_on_several_data_sets_have_the_setting_that_differs(tmp_path):
    best = {"domain=jsb domain.path=Bach's.mid": "1e-3", "domain=maestro": "4e-3"}
    rows = [
        f"{domain} encoding=rope,s,{rate},{rate == best[domain]}"
        for domain in best
        for rate in ("1e-3", "2e-3", "4e-3")
    ]
    (tmp_path / "tuning.csv").write_text("\n".join([f"run,search,{RATE},chosen", *rows]))
    assert edges_of_grids(tmp_path) == (
        "Best learning rates at the edge of the grid: the lowest for rope (domain=jsb); the highest for rope "
        "(domain=maestro)."
    )


def test_an_encoding_at_the_edge_with_one_search_so_far_has_the_settings_that_differ_for_others(tmp_path):
    runs = "domain.back=1 encoding=rope", "domain.back=2 encoding=rope", "domain.back=2 encoding=fox encoding.bias=0"
    rows = [f"{run},s,{rate},{rate == '1e-3'}" for run in runs for rate in ("1e-3", "2e-3")]
    (tmp_path / "tuning.csv").write_text("\n".join([f"run,search,{RATE},chosen", *rows]))
    assert edges_of_grids(tmp_path) == (
        "Best learning rates at the edge of the grid: the lowest for rope (domain.back=1), rope (domain.back=2), fox "
        "(domain.back=2)."
    )


def test_a_changed_search_is_made_again_and_chooses_among_its_own_points(searched, monkeypatch):
    """Although the results of other points are in the table of task=tune."""
    job = planning.plan(searched, searched / "trained", [CPU])[0]
    job.path.parent.mkdir(parents=True)
    head = "optimizer.learning_rate,model.dropout,valid_nll,seeds,each_seed,chosen"
    job.path.write_text(f"{head}\n0.016,0.0,0.1,1,5,True\n0.01,0.5,0.3,1,5,False\n0.001,0.5,0.2,1,5,False\n")
    job.keep(None)
    (chosen,) = chosen_settings(searched, LINE).values()
    assert chosen == ["optimizer.learning_rate=0.001", "model.dropout=0.5"]
    (searched / "study.yaml").write_text((searched / "study.yaml").read_text().replace("1e-3,1e-2", "1e-3,2e-3"))
    assert [type(each).__name__ for each in planning.plan(searched, searched / "trained", [CPU])] == ["Searched"] * 2


def test_a_search_kept_again_replaces_its_own_results_only(searched):
    rope, nope = planning.plan(searched, searched / "trained", [CPU])
    for job, nats in ((rope, "1.0"), (nope, "2.0"), (rope, "3.0")):
        job.path.parent.mkdir(parents=True, exist_ok=True)
        job.path.write_text(f"{RATE},model.dropout,valid_nll,seeds,each_seed,chosen\n0.001,0.5,{nats},1,5,True\n")
        job.keep(None)
    rows = read_csv(searched / "tuning.csv")
    assert [(row["run"], row["valid_nll"]) for row in rows] == [(nope.run, "2.0"), (rope.run, "3.0")]


def test_a_run_line_with_signs_and_options_of_a_task_is_searched(searched):
    line = "++model.dropout=0.1 experiment=debug seed=0 task.samples=0"
    (searched / "study.yaml").write_text(yaml.safe_dump({"search": LINE, "runs": [line]}))
    (job,) = planning.plan(searched, searched / "trained", [CPU])
    assert job.run == "model.dropout=0.1 experiment=debug"
    job.path.parent.mkdir(parents=True)
    head = "optimizer.learning_rate,model.dropout,valid_nll,seeds,each_seed,chosen"
    job.path.write_text(f"{head}\n0.001,0.5,0.2,1,5,True\n")
    job.keep(None)
    (run,) = planning.plan(searched, searched / "trained", [CPU])
    assert isinstance(run, jobs.Planned)


def test_a_failed_search_stops_no_other_run(searched, command, monkeypatch):
    asked = []

    def execute(todo, jobs, logs, limit, commit, gpus, seeds, after):
        write_table(searched, "model.dropout", {"rope": 0.0})
        asked.extend([type(run).__name__ for run in after(todo[0])])
        return ["encoding=nope: it broke"]

    monkeypatch.setattr(running, "execute", execute)
    with pytest.raises(UserError, match=r"^3 of 3 runs and searches are not finished: .*\nencoding=nope: it broke$"):
        command(f"study={searched}", "runs=trained")
    assert asked == ["Planned"] * 2
