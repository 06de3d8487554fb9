"""What is mutated, how it is then read, and whether its figures must stay."""

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import containers, data_targets, mutators, templates, trees
from .outcomes import Figures
from .run_targets import evaluate, load, report, resume, study_list

DONORS = (
    b"PK\x03\x04\x14\0",
    b"\x1f\x8b\x08\0" * 3,
    b"\x89PNG\r\n\x1a\n",
    b"\x93NUMPY\x01\0v\0{'descr': '<f8'}",
    b"\x7fELF\x02",
)


@dataclass(frozen=True)
class Target:
    """Files of a template, by globs, and `read`, which gives the figures of a copy of it.

    Attributes:
        pinned: other figures are a fault; weight: share of the mutants.
        resealed: a container may be written anew, with right checksums.
        study: the file may end a report, rather than one run of it.
    """

    name: str
    template: str
    files: tuple[str, ...]
    read: Callable[[Path], Figures]
    pinned: bool = True
    weight: int = 4
    resealed: bool = True

    def mutate(self, case: Path, rng: random.Random, outside: Path) -> str:
        """Change one file of the copy `case` and say which and how."""
        path = rng.choice(sorted({path for glob in self.files for path in case.glob(glob) if path.is_file()}))
        name, data = str(path.relative_to(case)), path.read_bytes()
        donors = [*DONORS, *(other.read_bytes() for other in sorted(case.rglob("*")) if other.is_file())]
        chance = rng.random()
        if chance < 0.01:
            return f"{name}: {containers.replaced(rng, path, outside)}"
        if chance < 0.014 and (packed := containers.bomb(rng, name, data)):
            found = packed
        elif chance < 0.5 and self.resealed:
            found = _structured(rng, path.name, data, donors)
        else:
            found = mutators.mutated(rng, data, donors)
        path.write_bytes(found[0])
        return f"{name}: {found[1]}"


def _structured(rng: random.Random, name: str, data: bytes, donors: list[bytes]) -> tuple[bytes, str]:
    """A change of what the file says, by the kind of its name; of its bytes where it has none, or cannot be read."""
    ways = {
        "study.yaml": lambda: trees.changed_list(rng, data),
        ".yaml": lambda: trees.changed_yaml(rng, data),
        ".json": lambda: trees.changed_json(rng, data),
        ".jsonl": lambda: trees.changed_line(rng, data),
        ".csv": lambda: trees.changed_csv(rng, data),
        ".safetensors": lambda: containers.changed_safetensors(rng, data),
        **{end: lambda: containers.changed_zip(rng, data, donors) for end in (".npz", ".ckpt", ".zip")},
        **{end: lambda: containers.unpacked_change(rng, name, data, donors) for end in (".gz", ".zst")},
        **{end: lambda: containers.attacked_text(rng, data) for end in (".txt", ".fa", ".bed", ".xml")},
    }
    way = next((way for end, way in ways.items() if name.endswith(end)), None)
    return way() if way else mutators.mutated(rng, data, donors)


RUN = ("runs/jsb/pope/*/", "runs/jsb/rope/*/")
RUNS = (
    Target("run-config", "study", tuple(f"{run}config.yaml" for run in RUN), report, weight=12),
    Target("run-manifest", "study", tuple(f"{run}manifest.json" for run in RUN), report, weight=10),
    Target("run-metrics", "study", tuple(f"{run}metrics.csv" for run in RUN), report, weight=4),
    Target("run-records", "study", tuple(f"{run}nll/*.npz" for run in RUN), report, weight=9),
    Target("run-baselines", "study", tuple(f"{run}baselines/*/*.npz" for run in RUN), report, weight=4),
    Target(
        "run-measured",
        "study",
        tuple(f"{run}{name}/*.csv" for run in RUN for name in ("extrapolation", "mechanisms")),
        report,
        weight=5,
    ),
    Target("study-list", "study", ("study.yaml",), study_list, False, weight=5),
    Target("evaluate-config", "trained", ("runs/*/*/*/config.yaml",), evaluate, weight=8),
    Target("evaluate-manifest", "trained", ("runs/*/*/*/manifest.json",), evaluate, weight=4),
    Target("checkpoint-best", "trained", ("runs/*/*/*/checkpoints/best.ckpt",), evaluate, weight=8),
    Target("evaluate-store", "trained", ("data/jsb/*/*",), evaluate, weight=3),
    # Nothing but the checksums of its members covers it until the run ends.
    Target("checkpoint-last", "stopped", ("run/checkpoints/last.ckpt",), resume, weight=2, resealed=False),
    Target("export-config", "export", ("config.yaml",), load, weight=7),
    Target("export-weights", "export", ("model.safetensors",), load, weight=7),
    Target("export-tokenizer", "export", ("tokenizer.json",), load, weight=3),
)
TARGETS = {target.name: target for target in (*RUNS, *(Target(*each) for each in data_targets.TARGETS))}


def prepare_templates(root: Path, names: set[str]) -> None:
    """Make what the targets of these names need, in the new folder `root`."""
    os.chdir(root)
    templates.chorales(root / "chorales.json")
    needed = {TARGETS[name].template for name in names}
    trained = {"study": templates.make_runs, "trained": templates.make_runs, "stopped": templates.make_stopped}
    trained["export"] = templates.make_export
    for make in dict.fromkeys(make for template, make in trained.items() if template in needed):
        make(root)
    if needed - trained.keys():
        templates.make_data(root)


def copy_of(root: Path, target: Target, place: Path) -> Path:
    """Copy the target's template to `place`/case; next to it, `out` and `outside` are empty, for what readers write."""
    for name in ("case", "out", "outside"):
        shutil.rmtree(place / name, ignore_errors=True)
    shutil.copytree(root / target.template, place / "case")
    for name in ("out", "outside"):
        (place / name).mkdir()
    return place / "case"


def rng_of(seed: int, target: str, index: int) -> random.Random:
    return random.Random(json.dumps([seed, target, index]))
