"""Kept runs as training leaves them, made in a moment: figures are drawn, nothing is trained."""

import csv
import io
import json
import math
import zlib
from dataclasses import asdict
from functools import cache

import numpy as np
import pytest
import yaml
from conftest import composed
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.layout_engine import ConstrainedLayoutEngine

from bearings.core.legends import Elements, Legend
from bearings.core.terminal import PlainConsole
from bearings.domains.records import Records
from bearings.lightning_modules.outline import outlined
from bearings.session.command import Command
from bearings.session.configuration import build
from bearings.session.models import build_transformer, model_facts

DOCUMENTS = 24
UNITS = ("note", "step")
BETTER = {"rope": 0.0, "pope": -0.05, "path": 0.0, "nope": 0.2}


def records(encoding, seed, store="5" * 64, documents=DOCUMENTS, units=UNITS, correct=None):
    """Records of the same documents for every encoding, which is BETTER by something and has a little noise."""
    random = np.random.default_rng(0)
    tokens = random.integers(200, 900, documents)
    hard = 1 + 0.2 * random.normal(size=documents)
    noise = np.random.default_rng([seed, *encoding.encode()]).normal(size=documents)
    nats = (hard + BETTER.get(encoding, 0.0) + 0.002 * noise + 0.0003 * noise[0]) * tokens
    return Records(
        np.array([f"piece {i}" for i in range(documents)]),
        np.arange(documents),
        nats,
        tokens,
        np.stack([tokens / 4.0, tokens / 5.0], 1)[:, : len(units)],
        units,
        store,
        np.full(documents, -1) if correct is None else np.round(correct * tokens).astype(int),
        np.zeros((documents, 0)),
        np.zeros((documents, 0), int),
        (),
    )


@cache
def _facts(config):
    """What a manifest says about the model of a configuration in JSON."""
    with outlined():
        return model_facts(json.loads(config), build_transformer(json.loads(config), 60))


def make_run(folder, encoding, seed, *overrides, finished=True, domain="jsb", splits=("test",), **given):
    """Write a run of `encoding` under `folder` and return its directory; `given` goes to `records`."""
    config = composed(f"domain={domain}", f"encoding={encoding}", "experiment=debug", *overrides)
    config |= {"seed": seed, "content": {}, "names": {"domain": domain, "encoding": encoding, "model": "small"}}
    config["trainer"]["precision"] = "32-true"
    digest = f"{zlib.crc32(repr((overrides, sorted(given.items()))).encode()):08x}"
    path = folder / domain / encoding / f"small-{digest}-s{seed}"
    for part in ("nll", "samples", "checkpoints"):
        (path / part).mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    model = _facts(json.dumps(config | {"seed": 0}))
    store = given.get("store", "5" * 64)
    units = given.get("units", UNITS)
    manifest = {
        "config": config,
        "store": {
            "sha256": store,
            "units": list(units),
            "splits": ["train", "valid", *splits],
            "documents": dict.fromkeys(["train", "valid", *splits], DOCUMENTS),
            "vocabulary": 60,
            "domain": domain,
        },
        "model": model,
        "sessions": [{"device": "a device", "code": {"commit": None, "dirty": None}}],
        "failed": None,
        "finished": finished,
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    with open(path / "metrics.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["step", "train_nll", "valid_nll", "tokens_per_s", "delta_frozen_share"])
        writer.writeheader()
        for step in (5, 10, 15, 20):
            logged = {"train_nll": 4 - step / 20 + seed / 50, "tokens_per_s": 100 * step + seed}
            writer.writerow({"step": step, **logged, "delta_frozen_share": 0})
            writer.writerow({"step": step, "valid_nll": 4 - step / 25 + seed / 50})
    if finished:
        for split in ("valid", *splits):
            records(encoding, seed, **given).save(path / "nll" / f"{split}.npz")
    return path


def diverge(path, step=12):
    """Make the run at `path` one whose training diverged at `step`."""
    manifest = json.loads((path / "manifest.json").read_text())
    ended = {"finished": False, "failed": f"the loss or gradient was not finite at step {step}", "diverged": step}
    (path / "manifest.json").write_text(json.dumps({**manifest, **ended}))
    for file in (path / "nll").iterdir():
        file.unlink()
    return path


DELTA = Legend(
    "delta, radians",
    "The learnt phase offset",
    Elements("element", {"-2π": -2 * math.pi, "0": 0.0}, {}, "-2π and 0 are the same phase", None, "outside the clamp"),
)


def mechanisms(path, name, columns, rows, legend=None):
    """Write `mechanisms/<name>.csv` of the run at `path`, and its legend into the manifest."""
    write_rows(path / "mechanisms" / f"{name}.csv", columns, rows)
    if legend is not None:
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["portraits"] = manifest.get("portraits", {}) | {name: asdict(legend)}
        (path / "manifest.json").write_text(json.dumps(manifest))


def lengths(path, trained=32, contexts=(8, 16, 32, 64, 128), worse=0.5, forms=("none", "yarn")):
    """Write what task=extrapolate measures: nats a token that rise by `worse` of them beyond the trained length."""
    columns = ("stretch", "context", "trained", "beyond", "low", "high", "targets", "nats")
    rows = [
        (form, context, trained, beyond, low, high, targets, targets * level)
        for form in forms
        for context in contexts
        if form == "none" or context > trained
        for level in [2.0 * (1 + worse * (form == "none" and context > trained))]
        for beyond, low, high, targets in ((False, 1, 1, 100), (True, context // 2, context, 50))
    ]
    write_rows(path / "extrapolation" / "test.csv", columns, rows)


def sample_metrics(path, level, pieces=12):
    """Write what task=generate measures of samples around `level`, and of a test split around 1."""
    columns = ("origin", "piece", "cluster", "segment", "polyphony", "voice_crossing")
    rows = [
        (origin, i, i, segment, mean + i / 100 + segment, "" if segment else 0.5)
        for origin, mean in (("sample", level), ("test", 1.0))
        for i in range(pieces)
        for segment in (0, 1)
    ]
    write_rows(path / "sample_metrics" / "seed0.csv", columns, rows)


def write_rows(path, columns, rows):
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


def rewritten(path, group, /, **changes):
    """Change what a run's files say of its configuration; a key that is `...` is left out."""
    config = yaml.safe_load((path / "config.yaml").read_text())
    config[group] = {key: value for key, value in (config[group] | changes).items() if value is not ...}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "config": config}))
    return path


@pytest.fixture
def undrawn(monkeypatch):
    """Plots are empty files, for tests of what a report says: drawing takes most of its time."""
    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda self, figure: None)
    monkeypatch.setattr(FigureCanvasSVG, "print_svg", lambda self, file, **options: file.write("<svg>"))


@pytest.fixture(name="report")
def report_task(tmp_path, monkeypatch):
    """Run `task=report` on `tmp_path/runs`: the folder it made and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*overrides):
        plain = composed("task=report", *overrides)
        plain["names"] = {"domain": "jsb", "encoding": "pope", "model": "small"}
        command = Command(plain, PlainConsole(file=io.StringIO(), width=250))
        build(plain["task"], "task")(command)
        return tmp_path / "report", command.console.file.getvalue()

    return run


def rows_of(path):
    with open(path, newline="") as file:
        return {row["model"]: row for row in csv.DictReader(file)}
