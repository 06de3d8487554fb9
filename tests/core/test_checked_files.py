"""checked_files.py: what is read, and what is refused before memory is allocated for it."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bearings.core import checked_files
from bearings.core.checked_files import (
    check_archive,
    is_count,
    read_array,
    read_arrays,
    read_cells,
    read_csv,
    read_json,
    read_text,
    whole,
    why,
)


@pytest.fixture
def write(tmp_path):
    """A function that writes bytes to a file."""

    def write(content: bytes):
        (tmp_path / "file").write_bytes(content)
        return tmp_path / "file"

    return write


def test_only_a_growing_table_may_end_within_a_line(write):
    for cut in (b"3", b"3,4"):
        path = write(b"a,b\n1,2\n\n" + cut)
        assert read_cells(path, ["a"], growing=True) == (["a", "b"], [["1", "2"]])
    assert read_csv(path)[-1] == {"a": "3", "b": "4"}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (b"a,b\n1\n", "the row 1 is cut"),
        (b"a,b\n1,2,3\n", "the row 1,2,3 is cut"),
        (b"a,b\n1,2\n3,4\n5,6\n", "it has more than 2 rows"),
        (b"a,a\n1,2\n", "not a list of distinct names"),
        (b"a,=b\n1,2\n", "not a list of distinct names"),
        (b"b\n1\n", "the column a is missing"),
    ],
)
def test_damaged_tables_are_refused(write, monkeypatch, table, message):
    monkeypatch.setattr(checked_files, "MOST_ROWS", 2)
    assert len(read_csv(write(b"a\n1\n2\n"), ["a"])) == 2
    with pytest.raises(ValueError, match=message):
        read_csv(write(table), ["a"])


def test_counts_are_digits_below_2_to_the_48():
    assert [whole(text) for text in ("0", "007", str(2**48 - 1))] == [0, 7, 2**48 - 1]
    for text in ("", "-1", "1.0", " 1", "1x", "1_0", "\N{ARABIC-INDIC DIGIT ONE}", str(2**48), "9" * 5000):
        with pytest.raises(ValueError, match="is not a count"):
            whole(text)
    assert [is_count(value) for value in (0, 2**63 - 1, 2**63, -1, True, 1.0)] == [True, True, *[False] * 4]


def test_only_regular_files_up_to_a_limit_are_read(write):
    assert read_text(write(b"four"), limit=4) == "four"
    with pytest.raises(ValueError, match="it has 4 bytes; at most 3 are allowed"):
        read_text(write(b"four"), limit=3)
    with pytest.raises(ValueError, match="not a regular file"):
        read_text(Path(os.devnull))


@pytest.mark.parametrize("text", [b"NaN", b"[-Infinity]", b"1e999"])
def test_numbers_in_json_are_finite(write, text):
    with pytest.raises(ValueError, match="is not"):
        read_json(write(text))


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_arrays_are_read_in_both_formats_and_orders(tmp_path, version):
    for values in (np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(["é", "ab"])):
        with open(tmp_path / "a.npy", "wb") as file:
            np.lib.format.write_array(file, values, version)
        found = read_array(tmp_path / "a.npy")
        assert found.dtype == values.dtype
        assert np.array_equal(found, values)


def test_arrays_that_expand_beyond_the_limit_are_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(1000), b=np.zeros(1000))
    sizes = sum(member.file_size for member in zipfile.ZipFile(tmp_path / "a.npz").infolist())
    monkeypatch.setattr(checked_files, "MOST_RECORDS", sizes)
    assert read_arrays(tmp_path / "a.npz").keys() == {"a", "b"}
    monkeypatch.setattr(checked_files, "MOST_RECORDS", sizes - 1)
    with pytest.raises(ValueError, match=f"its arrays need {sizes:,} bytes"):
        read_arrays(tmp_path / "a.npz")


def test_archives_of_weights_are_not_compressed(tmp_path):
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "a.pt", "w", method) as archive:
            archive.writestr("data", bytes(100))
        if method == zipfile.ZIP_STORED:
            check_archive(tmp_path / "a.pt")
    with pytest.raises(ValueError, match="compressed"):
        check_archive(tmp_path / "a.pt")


def test_reasons_are_one_short_line():
    assert why(ValueError("a\n b")) == "a b"
    assert why(ValueError()) == "ValueError: "
    assert why(KeyError("units")) == "KeyError: 'units'"
    assert len(why(ValueError("a" * 999))) == 300
