"""errors.py: names near a mistake, messages of one line, and errors of the operating system."""

import errno
import os

import pytest

from bearings.core.errors import explain_os_error, nearest, nearest_key, one_line, several, shortened


def test_the_nearest_name_is_suggested_unless_it_is_far():
    assert nearest("pop", ["RoPE", "PoPE"]) == "did you mean PoPE? "
    assert nearest("music", ["jsb", "text"]) == ""


@pytest.mark.parametrize("allowed", [["data.steps", "trainer.steps"], ["trainer.steps", "data.steps"]])
def test_the_nearest_key_is_that_of_the_same_group(allowed):
    assert nearest_key("trainer.STEPS_", allowed) == "did you mean trainer.steps? "


def test_long_messages_are_cut():
    assert several([*"abcdefghij"]) == "a; b; c; d; e; f; g; h; i; j"
    assert several([*"abcdefghijk"]) == "a; b; c; d; e; f; g; h; i; j; ..."
    long, longest = "a" * 1000, "b" * 1501
    assert several([long, "b" * 500]) == f"{long}; {'b' * 500}"
    assert several([long, "b" * 501]) == f"{long}; ..."
    assert several([longest, "c"]) == f"{longest}; ..."
    assert shortened("a" * 198) == f"'{'a' * 198}'"
    assert shortened("a" * 199) == f"'{'a' * 199}…"
    assert one_line(ValueError("a\n  b" + "c" * 300)) == "a b" + "c" * 197
    assert one_line(ValueError()) == "ValueError"


def explained(code, *names):
    return explain_os_error(OSError(code, os.strerror(code), *names))


def test_a_file_name_in_bytes_is_printed_as_text():
    assert explained(errno.ENOENT, b"runs/events.out").startswith("runs/events.out: no such file or directory: if it")


def test_errors_without_advice_or_a_file_are_explained_where_possible():
    assert explained(errno.EFBIG, "runs/a").startswith("runs/a: file too large: choose another folder")
    assert explained(errno.ENOSPC).startswith("writing failed: the disk is full")
    assert explained(errno.EPIPE) is None
    assert explain_os_error(OSError("no number")) is None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_copy_that_fills_the_disk_is_named_rather_than_its_original(code):
    assert explained(code, "original", None, "copy").startswith("copy: the disk ")
    assert explained(errno.EACCES, "original", None, "copy").startswith("original: permission denied")


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("runs/.config.yaml.1a2b3c4d.tmp", "runs/config.yaml"),
        (".stores.1a2b3c4d/text", "stores/text"),
        ("runs/v1.best.20240101", "runs/v1.best.20240101"),
        ("runs/.env.productions", "runs/.env.productions"),
    ],
)
def test_a_temporary_file_is_named_as_the_one_that_it_will_be(path, named):
    assert explained(errno.ENOSPC, path).startswith(f"{named}: the disk is full")
