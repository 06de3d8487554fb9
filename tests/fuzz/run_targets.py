"""How runs, exports and studies are read: by the tasks and functions that a person would use."""

import csv
import zlib
from functools import cache
from pathlib import Path

from . import templates, trees
from .outcomes import FaultError, Figures, Listed, check_line

write_all = False  # reports of originals are written


def figures_of(records) -> dict[str, object]:
    return {"nats": records.nats_per_token, **records.bits_per_unit, "documents": len(records.documents)}


def report(case: Path, study_file: bool = False) -> Figures:
    """Every run's encoding, seed and figures in a report of `case`, or why it is not there; baselines' figures.

    The tables and pages are written where every run is in them and not all is as in the original, and of one in eight
    others: that takes most of the time.
    """
    from bearings.reporting.reading import read_study
    from bearings.session.explaining import one_line_errors
    from bearings.tasks.report import Report

    out, found = case / "report", {}
    try:
        with one_line_errors():
            study = read_study([case / "runs"])
            if worth_writing(study, case):
                study, *_ = Report(directories=[str(case / "runs")], out=str(out)).write([case / "runs"], case / "none")
                found["baselines"] = baselines_in(out / "tables")
    except SystemExit as end:
        if study_file:
            raise
        raise FaultError(f"report ended: {end.__context__}") from end.__context__
    for run in study.runs:
        for split, records in run.records.items():
            figures = {"encoding": run.encoding, "seed": run.seed, **figures_of(records)}
            found |= {f"{run.path.relative_to(case)} {split} {name}": value for name, value in figures.items()}
    for place, line in troubles_in(study, case).items():
        check_line(line)
        found[place] = Listed(line)
    if out.exists():
        refuse_markup(out)
    return found


def troubles_in(study, case: Path) -> dict[str, str]:
    """Why runs are left out, by their places in `case`."""
    here = [trouble for trouble in study.troubles if Path(trouble.place).is_relative_to(case)]
    return {str(Path(each.place).relative_to(case)): f"{each.state}: {each.why}" for each in here}


def worth_writing(study, case: Path) -> bool:
    """Whether all runs are in the tables and something that they say is not the original's; and one in eight others."""
    troubles = troubles_in(study, case)
    if write_all:
        return True
    if not troubles and facts_of(study, case) != _original_facts(case.parent.parent):
        return True
    return zlib.crc32(repr(troubles).replace(str(case), "").encode(errors="replace")) % 8 == 0


def facts_of(study, case: Path) -> str:
    return repr([(run.facts, run.manifest, run.curve, run.listed) for run in study.runs]).replace(str(case), "")


@cache
def _original_facts(root: Path) -> str:
    from bearings.reporting.reading import read_study

    return facts_of(read_study([root / "study" / "runs"]), root / "study")


def baselines_in(tables: Path) -> str:
    """Names and figures of the baselines in the tables of a report."""
    found = set()
    for table in tables.glob("*.csv"):
        with open(table, newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("verdict") == "baseline"]
        found |= {(row["model"], round(float(row["nats_per_token"]), 6)) for row in rows}
    return str(sorted(found))


def refuse_markup(out: Path) -> None:
    """Raise FaultError where a hostile text of trees.py stands in the report unescaped."""
    for path in (out / "index.html", out / "report.md"):
        if trees.MARKUP in path.read_text(encoding="utf-8", errors="replace"):
            raise FaultError(f"markup: {trees.MARKUP} in {path.name}")
    for path in out.rglob("*.csv"):
        lines = path.read_text(encoding="utf-8", errors="replace")
        if any(f"{begin}{trees.FORMULA}" in "\n" + lines for begin in ("\n", ",", '"')):
            raise FaultError(f"markup: a cell of {path.name} begins with {trees.FORMULA}")


@cache
def _composed(arguments: tuple[str, ...]):
    from hydra import compose, initialize_config_dir

    from bearings.session.settings import CONFIGS

    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("config", overrides=list(arguments), return_hydra_config=True)


def evaluate(case: Path) -> Figures:
    """What `python main.py task=evaluate run=...` finds; composed once, which is what takes time."""
    import copy

    from hydra.core.hydra_config import HydraConfig
    from omegaconf import open_dict

    from bearings.domains.records import Records
    from bearings.session import cli
    from bearings.session.explaining import one_line_errors

    (run,) = (case / "runs" / "jsb" / "pope").iterdir()
    choices = "domain=jsb", "encoding=pope", "model=small"
    config = copy.deepcopy(
        _composed(("task=evaluate", *choices, f"run={run}", f"stores={case / 'data'}", "trainer.accelerator=cpu"))
    )
    HydraConfig.instance().set_config(config)
    with open_dict(config):
        del config["hydra"]
    with one_line_errors():
        cli.run(config)
    return figures_of(Records.load(run / "nll" / "test.npz"))


def resume(case: Path) -> Figures:
    """What the stopped run finds when it goes on to its end."""
    from bearings.domains.records import Records

    command = templates.training_command("encoding=pope")
    templates.command(*command, f"run={case / 'run'}", f"stores={case / 'data'}")
    return figures_of(Records.load(case / "run" / "nll" / "test.npz"))


def load(case: Path) -> Figures:
    """Logits of an export, and the tokens of a text by its tokenizer."""
    import hashlib

    import torch

    from bearings.domains.documents import Document
    from bearings.tasks.export import load_exported

    exported = load_exported(case)
    model = exported.model
    with torch.inference_mode():
        logits = model(torch.arange(48).reshape(2, 24) * 5 % 256).double()
    text = "the sea, naïve and öl 音楽 don't salt 1234"
    (ids,) = exported.domain.codec.encode([Document("", text, text.encode(), 0)])
    weights = hashlib.sha256(b"".join(each.numpy().tobytes() for _, each in sorted(model.state_dict().items())))
    return {"logits": logits.abs().sum().item(), "weights": weights.hexdigest(), "ids": str(list(ids))}


def study_list(case: Path) -> Figures:
    """A report of the study, and what its list plans; nothing is trained."""
    from bearings.session.explaining import one_line_errors
    from bearings.studying.planning import plan

    found = report(case, study_file=True)
    with one_line_errors():
        planned = plan(case, case.parent / "out" / "runs", ["domain.path=chorales.json"])
    for each in planned:
        for setting in [*each.settings, *(word for line in each.then for word in line.split())]:
            if "hydra" in setting.split("=")[0] or "_target_" in setting:
                raise FaultError(f"code: the study would run main.py with {setting[:200]}")
    return {**found, "planned": len(planned)}
