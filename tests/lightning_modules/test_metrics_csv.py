"""metrics.csv of a resumed run: no row is lost, and damage is reported."""

import pytest

from bearings.core.errors import UserError
from bearings.lightning_modules.metrics_csv import MetricsCSV


def test_damaged_metrics_are_reported_before_a_run_resumes(tmp_path):
    (tmp_path / "metrics.csv").write_text("10,1.5\n20,1.4\n")
    with pytest.raises(UserError, match=r"metrics\.csv is damaged \(KeyError: 'step'\): delete it and rerun"):
        MetricsCSV(tmp_path / "metrics.csv", ["train_nll"], 20, 20)
    (tmp_path / "metrics.csv").write_text("step,train_nll,valid_nll\n10,1.5,,7\n")
    with pytest.raises(UserError, match=r"metrics\.csv is damaged \(a row has more cells than"):
        MetricsCSV(tmp_path / "metrics.csv", ["train_nll", "valid_nll"], 20, 20)


@pytest.mark.parametrize("name", ["loss/rank", "valid_nll"])
def test_a_metric_that_reports_could_not_read_is_refused(tmp_path, name):
    with pytest.raises(UserError, match=rf"^{name}: the names of metrics must differ, and have only letters"):
        MetricsCSV(tmp_path / "metrics.csv", ["valid_nll", name], 0, 0)
    assert not (tmp_path / "metrics.csv").exists()


def test_a_metric_that_a_resumed_run_no_longer_logs_is_kept(tmp_path):
    path, rows = tmp_path / "metrics.csv", "step,train_nll,valid_nll,gone\r\n10,1.4,,3\r\n"
    path.write_bytes(rows.encode())
    logger = MetricsCSV(path, ["train_nll", "valid_nll"], 10, 0)
    assert path.read_bytes() == rows.encode()
    logger.log_metrics({"train_nll": 1.3}, 20)
    assert path.read_text().splitlines()[-1] == "20,1.3,,"


def test_a_row_of_metrics_that_a_full_disk_has_cut_off_is_dropped(tmp_path):
    path, rows = tmp_path / "metrics.csv", "step,train_nll,valid_nll\r\n9,1.5,\r\n10,1.4,\r\n"
    path.write_bytes(f"{rows}1".encode())  # of step 11
    MetricsCSV(path, ["train_nll", "valid_nll"], 10, 0)
    assert path.read_bytes() == rows.encode()
