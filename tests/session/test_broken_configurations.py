"""Configuration files of runs that are damaged or hostile: each is one line of a report, which goes on."""

import datetime
import shutil
import time

import yaml
from report_support import report_task, rows_of  # noqa: F401
from trust_support import importable_modules, sound_run  # noqa: F401

BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
BROKEN = {
    "an alias": BOMB,
    "an alias of itself": "a: &a [*a]\n",
    "bytes": b"seed: \xff\xfe\n",
    "NUL": b"seed: 0\x00\n",
    "deep": "a: " + "[" * 5000,
    "deep mappings": "".join(f"{' ' * i}a:\n" for i in range(500)),
    "large": "a: " + "x" * (1 << 20),
    "a tag": "!!python/object/apply:os.system [touch marker]\n",
    "a list": "- 1\n",
    "nothing": "",
    "text": "seed",
    "two documents": "seed: 1\n---\nseed: 2\n",
}
CHANGES = {
    "huge": {"seed": 10**30},
    "not a number": {"optimizer": {"learning_rate": float("nan")}},
    "negative": {"seed": -1},
    "true": {"seed": True},
    "no mapping": {"encoding": "rope"},
    "null": {"domain": None},
    "a list of settings": {"trainer": [1]},
    "names": {"names": ["jsb", "rope", "small"]},
    "a name": {"names": {"domain": 3}},
    "a path": {"names": {"domain": "../../../x"}},
    "a type": {"trainer": {"steps": "many"}},
    "another type": {"data": {"length": [512]}},
    "content": {"content": None},
    "a date": {"domain": {"path": datetime.date(2020, 1, 1)}},
    "no text": {"domain": {1: 2}},
    "a control character": {"domain": {"path": "\x1b[2J"}},
    "an interpolation": {"domain": {"path": "${oc.env:HOME}"}},
}


def test_broken_configurations_are_a_line_each_and_the_report_goes_on(tmp_path, sound, report):
    shutil.copytree(sound, tmp_path / "runs" / "sound")
    for name, text in BROKEN.items():
        path = shutil.copytree(sound, tmp_path / "runs" / name)
        (path / "config.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    for name, change in CHANGES.items():
        path = shutil.copytree(sound, tmp_path / "runs" / name)
        config = yaml.safe_load((path / "config.yaml").read_text())
        for key, value in change.items():
            config[key] = {**config[key], **value} if isinstance(value, dict) else value
        (path / "config.yaml").write_text(yaml.safe_dump(config))
    began = time.monotonic()
    folder, printed = report()
    assert time.monotonic() - began < 30
    lines = [line for line in printed.splitlines() if line.startswith("unreadable: ")]
    assert len(lines) == len(BROKEN) + len(CHANGES)
    assert set(rows_of(folder / "tables" / "jsb-test.csv")) == {"rope"}
