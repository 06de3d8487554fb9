"""whole_files.py: whole or not at all, whoever else writes or has put links into the folder."""

import errno

import pytest
from report_support import make_run, records

from bearings.core.whole_files import made_whole, written_whole
from bearings.lightning_modules.metrics_csv import MetricsCSV
from bearings.studying.keeping import keep_run


def test_links_at_names_that_can_be_guessed_are_not_written_through(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0)
    mine, folder = tmp_path / "mine", tmp_path / "folder"
    mine.write_text("mine")
    folder.mkdir()
    links = [path / name for name in ("config.yaml.tmp", "metrics.csv.tmp", "nll/test.tmp.npz")]
    for link in links:
        link.symlink_to(mine)
    (tmp_path / ".kept.making").symlink_to(folder)
    with written_whole(path / "config.yaml") as file:
        file.write((path / "config.yaml").read_text())
    records("rope", 0).save(path / "nll" / "test.npz")
    MetricsCSV(path / "metrics.csv", ["train_nll", "valid_nll", "tokens_per_s", "delta_frozen_share"], 20, 20)
    for link in links:
        link.unlink(missing_ok=True)
    keep_run(path, tmp_path / "kept")
    assert mine.read_text() == "mine"
    assert list(folder.iterdir()) == []


def test_two_that_write_at_once_each_write_the_whole(tmp_path):
    with written_whole(tmp_path / "file") as one, written_whole(tmp_path / "file") as other:
        one.write("one")
        other.write("other")
    assert (tmp_path / "file").read_text() == "one"
    with made_whole(tmp_path / "folder") as one, made_whole(tmp_path / "folder") as other:
        (one / "one").touch()
        (other / "other").touch()
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["one"]
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}


def test_a_folder_that_is_replaced_is_whole_or_absent_at_any_time(tmp_path, monkeypatch):
    path, removed = tmp_path / "folder", []
    with made_whole(path) as making:
        (making / "old").touch()

    def killed(folder, **options):
        removed.append(folder)
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt), made_whole(path) as making:
        (making / "new").touch()
    assert not path.exists()
    assert [file.name for file in removed[0].iterdir()] == ["old"]


@pytest.mark.parametrize("way", [written_whole, made_whole])
def test_a_failure_leaves_nothing(tmp_path, way):
    with pytest.raises(RuntimeError), way(tmp_path / "made"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("way", [written_whole, made_whole])
def test_a_full_disk_is_named(tmp_path, way):
    for number, name in ((errno.ENOSPC, str(tmp_path / "made")), (errno.EDQUOT, str(tmp_path / "made")), (5, None)):
        with pytest.raises(OSError, match="why") as raised, way(tmp_path / "made"):
            raise OSError(number, "why")
        assert raised.value.filename == name
