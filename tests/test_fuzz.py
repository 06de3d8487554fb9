"""The short form of the fuzz command: a few mutants of each kind of file that can be read in milliseconds."""

import os
import random
import subprocess
import sys

import pytest
from conftest import REPOSITORY
from fuzz import mutators, outcomes, targets

# Left out are those that train, compose many configurations or read scores: the long form has them.
SLOW = ("study-list", "checkpoint-last", "export", "musicxml", "maestro", "run-m", "run-b", "evaluate-s", "evaluate-m")


def test_no_mutant_ends_in_a_traceback_or_changes_a_figure_silently():
    names = [name for name in targets.TARGETS if not name.startswith(SLOW)]
    chosen = [word for name in names for word in ("--target", name)]
    paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--count", "70", "--seed", "1", *chosen],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_mutant_can_be_made_again():
    data, donors = b"PK\x03\x04 seed: 17\n" * 20, [b"abc" * 50]
    for index in range(50):
        first, again = (mutators.mutated(targets.rng_of(0, "a", index), data, donors) for _ in range(2))
        assert first == again
    assert mutators.mutated(random.Random(1), b"", []) is not None


@pytest.mark.parametrize(
    ("found", "pinned", "outcome"),
    [
        ({"run nats": 1.0, "run encoding": "rope"}, True, "same"),
        ({"run nats": 1.000000001, "run encoding": "rope"}, True, "same"),
        ({"run nats": 1.1, "run encoding": "rope"}, True, "silent"),
        ({"run nats": 1.1, "run encoding": "rope"}, False, "changed"),
        ({"run nats": 1.0}, True, "silent"),
        ({"run": outcomes.Listed("unreadable: it is cut")}, True, "error"),
        ({"other": outcomes.Listed("unreadable: it is cut")}, True, "silent"),
    ],
)
def test_figures_stay_or_are_listed(found, pinned, outcome):
    assert outcomes.judge({"run nats": 1.0, "run encoding": "rope"}, found, pinned)[0] == outcome


@pytest.mark.parametrize("line", ["", "two\nlines", "x" * 3000])
def test_a_message_is_one_short_line(line):
    with pytest.raises(outcomes.FaultError):
        outcomes.check_line(line)
