"""errors.py: errors of the operating system name the file in one line."""

import errno
import os

from bearings.core.errors import explain_os_error


def test_a_file_name_in_bytes_is_printed_as_text():
    error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), b"runs/events.out")
    assert explain_os_error(error).startswith("runs/events.out: no such file or directory: if it was deleted, rerun")


def test_a_copy_that_fills_the_disk_is_named_rather_than_its_original():
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "original", None, "copy")
    assert explain_os_error(error).startswith("copy: the disk is full")
