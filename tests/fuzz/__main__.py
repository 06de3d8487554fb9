"""python -m tests.fuzz [--count N] [--seed S] [--jobs J] [--target NAME [--index I]]"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "agg",
}
sys.path.extend(str(Path(__file__).parents[1] / name) for name in (".", "support"))  # what the tests share

import multiprocessing

from . import __doc__ as rules
from . import targets
from .reading import Reader, Result, limit_memory
from .workers import run_all

OUTCOMES = ("same", "error", "changed", "fault")


def jobs_of(names: Sequence[str], count: int) -> list[tuple[str, int]]:
    """`count` mutants over the targets by their weights; those of a target follow each other."""
    weights = {name: targets.TARGETS[name].weight for name in names}
    total = sum(weights.values())
    return [(name, index) for name in names for index in range(max(1, -(-count * weights[name] // total)))]


def load_bearings() -> None:
    """Import what most readers need, before the children are forked, which then need not."""
    import bearings.session.cli
    import bearings.tasks.export
    import bearings.tasks.report  # noqa: F401


def made(root: Path, names: set[str]) -> None:
    """Make the templates in a child, whose threads and settings then stay out of the mutants' way."""
    child = multiprocessing.get_context("fork").Process(target=_make, args=(root, names))
    child.start()
    child.join()
    if child.exitcode:
        sys.exit(f"the originals could not be made; {root}/making.log says why")


def _make(root: Path, names: set[str]) -> None:
    root.mkdir(parents=True, exist_ok=True)
    log = os.open(root / "making.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    targets.prepare_templates(root, names)


def tables(results: Sequence[Result], names: Sequence[str], command: str) -> str:
    """Counts by target and outcome, and the faults by kind and place, each with a command that shows one."""
    counts = Counter((each.target, each.outcome) for each in results)
    lines = [f"{'target':<20}" + "".join(f"{outcome:>9}" for outcome in OUTCOMES) + f"{'seconds':>9}"]
    for name in [*names, "all"]:
        here = [sum(counts[each, outcome] for each in (names if name == "all" else [name])) for outcome in OUTCOMES]
        seconds = sum(each.seconds for each in results if name in (each.target, "all"))
        lines.append(f"{name:<20}" + "".join(f"{number:>9,}" for number in here) + f"{seconds:>9.1f}")
    groups: dict[tuple, list[Result]] = {}
    for each in results:
        if each.outcome == "fault":
            groups.setdefault((each.target, each.kind, each.place), []).append(each)
    for (name, kind, place), found in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        first = min(found, key=lambda each: each.index)
        lines += ["", f"{len(found)} x {name}: {kind} {place}", f"    {first.change}: {first.line}"[:300]]
        lines.append(f"    {command} --target {name} --index {first.index}")
    return "\n".join(lines)


def show(root: Path, name: str, index: int, seed: int) -> None:
    """Read one mutant in this process and print everything about it; its files are kept."""
    limit_memory()
    reader = Reader(root, root / "worker-0", seed)
    reader.read_original(name)
    case, change = reader.mutate(name, index)
    print(f"{change}\nin {case}", flush=True)
    found = reader.read(name, index, case, change)
    print(found.trace or found.line)
    print(f"{found.target} {found.index}: {found.outcome} {found.kind} {found.place} in {found.seconds:.2f} s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=rules, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="mutants, over all targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hang", type=float, default=20, help="seconds that a mutant may take")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--target", choices=targets.TARGETS, action="append", help="these only")
    parser.add_argument("--index", type=int, help="one mutant of the target, with its traceback")
    parser.add_argument("--keep", type=Path, help="folder for the originals and the last mutants; made anew")
    given = parser.parse_args(arguments)
    names = given.target or list(targets.TARGETS)
    began = time.monotonic()
    place = given.keep or Path(tempfile.mkdtemp(prefix="bearings-fuzz-"))
    root = (place / "fuzz").resolve()
    shutil.rmtree(root, ignore_errors=True)
    load_bearings()
    made(root, set(names))
    if given.index is not None:
        show(root, names[0], given.index, given.seed)
        return 0
    print(f"{time.monotonic() - began:.0f} s for the originals", flush=True)
    results = []
    for found in run_all(root, jobs_of(names, given.count), given.jobs, given.seed, given.hang):
        results.append(found)
        with open(root / "results.jsonl", "a") as log:
            log.write(json.dumps(asdict(found)) + "\n")
        if len(results) % 1000 == 0:
            print(f"{len(results):,} mutants in {time.monotonic() - began:.0f} s", flush=True)
    print(tables(results, names, f"python -m tests.fuzz --seed {given.seed}"))
    faults = sum(each.outcome == "fault" for each in results)
    print(f"\n{len(results):,} mutants, {faults:,} faults, {time.monotonic() - began:.0f} s")
    if given.keep is None:
        shutil.rmtree(place, ignore_errors=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
