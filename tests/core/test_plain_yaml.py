"""YAML that others wrote is read as plain data."""

import re

import pytest
import yaml

from bearings.core.plain_yaml import DEEPEST, LONGEST_KEY, as_yaml, read_yaml

READ = [
    "",
    "# a comment\n",
    "a",
    "a: 1\nb: 1.0\nc: '1'\nd: 1e-3\ne: 1.0e-3\nf: on\ng: ~\nh:\ni: 0x1f\nj: 1_000\nk: .inf\n",
    "a: [1, [2, {b: 'x', c: []}], {}]\nb:\n- |\n  two\n  lines\n- 'it''s'\n",
    "a: 1\nb: 2\na: 3\n",
    "[" * DEEPEST + "]" * DEEPEST,
    f"{'k' * LONGEST_KEY}: 1\n",
    f"[{2**63 - 1}, {-(2**63)}]",
]
REFUSED = {
    "a: &x 1\nb: *x\n": "line 1: aliases and anchors are not allowed",
    "a: !!python/name:os.system x\n": "line 1: tags are not allowed",
    "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1): "nested more than",
    "a: 1\n---\nb: 2\n": "more than one document",
    "<<: {a: 1}\n": "constructor",
    "? {a: 1}\n: 2\n": "unhashable",
    "2: a\n": "the key 2 must be text",
    "a: 2026-11-28\n": "dates are not allowed",
    "a: [1\n": "expected",
    "a: [1, {b: .nan}]\n": r"^a\.b: it is not a number$",
    "- .nan\n": "^it is not a number$",
    f"a:\n  {'k' * (LONGEST_KEY + 1)}: 1\n": "^a: a key has 121 characters; at most 120 are allowed$",
    f"[{2**63}]": "more than 64 bits",
    f"[{-(2**63) - 1}]": "more than 64 bits",
    '"a\\x7f": 1': "cannot be printed",
    "a: ${b}": r"^a: \$\{b\}: interpolations are not allowed",
}


@pytest.mark.parametrize("text", READ)
def test_values_are_those_of_yaml(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    assert repr(read_yaml(tmp_path / "a.yaml")) == repr(yaml.safe_load(text))


def test_what_is_written_is_read_again(tmp_path):
    """In its order, and without an alias for what occurs twice."""
    shared = [1, 2.5, "1", "on", None, True]
    tree = {"b": shared, "a": {"é": shared}}
    (tmp_path / "a.yaml").write_text(as_yaml(tree), encoding="utf-8")
    assert repr(read_yaml(tmp_path / "a.yaml")) == repr(tree)


@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_is_refused(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ValueError, match=REFUSED[text]) as raised:
        read_yaml(tmp_path / "a.yaml")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"runs: [\n", "line 2 is not YAML (did not find expected node content)"),
        (b"runs:\n  - a\n  b\nc: d\n", "line 3 is not YAML (could not find expected ':')"),
        (b"a: b\nc d\n", "line 2 is not YAML (could not find expected ':')"),
        (b"a: b: c\n", "line 1 is not YAML (mapping values are not allowed in this context)"),
        (b"a: b\nc: d\xe9\n", "line 2 is not UTF-8 text (byte 0xe9, invalid continuation byte)"),
        (b"a: \x01\n", "character 4: control characters are not allowed"),
    ],
)
def test_faults_name_the_line(tmp_path, raw, message):
    (tmp_path / "a.yaml").write_bytes(raw)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read_yaml(tmp_path / "a.yaml")
