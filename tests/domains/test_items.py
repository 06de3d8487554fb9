"""Per-item results: files give back what was written, and damaged ones give one line."""

import numpy as np
import pytest

from bearings.core.errors import UserError
from bearings.domains.items import Items

SOURCE = "0" * 64


def items(**changes) -> Items:
    columns = {"acc": np.array([1, 0, 1]), "margin": np.array([0.5, -1.25, np.nan])}
    names, groups = np.array(["0", "1", "0"]), np.array(["first", "first", "second"])
    return Items(**({"names": names, "groups": groups, "columns": columns, "source": SOURCE} | changes))


def test_a_file_gives_back_what_was_written(tmp_path):
    items().save(tmp_path / "benchmarks" / "blimp.npz")
    back = Items.load(tmp_path / "benchmarks" / "blimp.npz")
    assert back.names.tolist() == ["0", "1", "0"]
    assert back.groups.tolist() == ["first", "first", "second"]
    assert back.source == SOURCE
    assert list(back.columns) == ["acc", "margin"]
    assert back.columns["acc"].tolist() == [1, 0, 1]
    assert back.columns["acc"].dtype == np.int64
    np.testing.assert_array_equal(back.columns["margin"], [0.5, -1.25, np.nan])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "unknown"}, "not a sha256"),
        ({"groups": np.array(["first"] * 2)}, "groups do not hold one string for each item"),
        ({"groups": np.array(["first"] * 3)}, "two items of a group"),
        ({"columns": {}}, "no items or no columns"),
        ({"columns": {"../acc": np.zeros(3)}}, "not a valid column name"),
        ({"columns": {"acc": np.zeros(2)}}, "for 3 items"),
        ({"columns": {"acc": np.array([0.0, 1.0, np.inf])}}, "not finite"),
    ],
)
def test_inconsistent_results_are_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        items(**changes).save(tmp_path / "bad.npz")


def test_a_damaged_file_gives_one_line(tmp_path):
    file = tmp_path / "good.npz"
    items().save(file)
    whole = file.read_bytes()
    for bad in (whole[:-30], b"", whole.replace(b"PK", b"KP")):
        file.write_bytes(bad)
        with pytest.raises(UserError, match=r"good.npz is damaged \(.*\): delete it and compute it again"):
            Items.load(file)
    np.savez(file, names=np.array(["0"]), groups=np.array(["a"]), source=np.array(SOURCE), other=np.zeros(1))
    with pytest.raises(UserError, match="holds other, which is not a field"):
        Items.load(file)
