"""Studies with kept runs to pack."""

import shutil

from report_support import lengths, make_run, mechanisms, sample_metrics

from bearings.reporting.packed import RECORDS, RUNS
from bearings.studying.keeping import keep_in_study


def make_study(folder, *seeds, encoding="rope"):
    """A study with kept runs in folders."""
    folder.mkdir(exist_ok=True)
    (folder / "study.yaml").write_text("runs: []\n")
    for seed in seeds:
        path = make_run(folder.parent / "trained", encoding, seed)
        (path / "samples" / "sample.mid").write_bytes(b"MThd\0\xff")
        mechanisms(path, "attention", ("layer", "head", "low", "high", "mass"), [(0, 0, 1, 1, 1.0)])
        lengths(path)
        sample_metrics(path, 1.0)
        source = path / "nll" / "test.npz"
        (path / "baselines" / "test").mkdir(parents=True)
        shutil.copy(source, path / "baselines" / "test" / "Markov, order 4.npz")
        keep_in_study(path, folder / "runs" / path.relative_to(folder.parent / "trained"))
        shutil.rmtree(path)
    return folder


def files_of(study):
    return [(study / name).read_bytes() for name in (RUNS, RECORDS)]
