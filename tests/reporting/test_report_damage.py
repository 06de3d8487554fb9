"""Damaged or hostile files of a run: the report goes on without it and says why in one line."""

import io
import json
import tracemalloc
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import yaml
from report_support import DELTA, lengths, make_run, mechanisms, records, sample_metrics

from bearings.core.errors import UserError
from bearings.core.legends import Legend
from bearings.domains.records import Records
from bearings.reporting.reading import read_study
from bearings.session.run_directory import RunDirectory


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with everything that a report reads."""
    path = make_run(tmp_path_factory.mktemp("made"), "rope", 0)
    lengths(path)
    sample_metrics(path, 2.0)
    mechanisms(path, "attention", ("layer", "head", "low", "high", "mass"), [(0, 0, 1, 1, 0.5), (0, 0, 2, 3, 0.5)])
    deltas = [(0, h, e, -1.0) for h in (0, 1) for e in (0, 1)]
    mechanisms(path, "delta", ("layer", "head", "element", "delta"), deltas, DELTA)
    quantiles = ("layer", "head", "q05", "q25", "q50", "q75", "q95")
    mechanisms(path, "beta", quantiles, [(0, 0, 1, 2, 3, 4, 5)], Legend("beta"))
    return path


@pytest.fixture
def run(made):
    """The run, restored afterwards."""
    before = {file: file.read_bytes() for file in made.rglob("*") if file.is_file()}
    yield made
    for file in made.rglob("*"):
        if file.is_file() and file not in before:
            file.unlink()
    for file, data in before.items():
        file.write_bytes(data)


def refused(run) -> str:
    """Why the run is in no table."""
    study = read_study([run])
    assert not study.runs
    (trouble,) = study.troubles
    assert "\n" not in trouble.why
    return f"{trouble.state}: {trouble.why}"


def archive(arrays) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def saved(**changed) -> bytes:
    """A file of records with some fields changed, None for absent."""
    fields = {name: np.array(value) for name, value in vars(records("rope", 0)).items()}
    fields |= {name: np.array(fields[name], str) for name in ("unit_names", "group_names")}
    fields |= {name: change(fields.get(name)) for name, change in changed.items()}
    return archive({name: value for name, value in fields.items() if value is not None})


def grouped(tokens, nats=240.0, **fields) -> bytes:
    """A file of records with `tokens [documents, groups]`, and nats that add up."""
    documents, groups = tokens.shape
    fields = {
        "nats": np.full(documents, nats),
        "group_names": np.array([f"group {i}" for i in range(groups)]),
        "group_nats": np.full((documents, groups), nats / groups),
        "group_tokens": tokens,
        **fields,
    }
    return saved(**{name: lambda old, value=value: value for name, value in fields.items()})


def declaring(shape) -> bytes:
    """A file of records whose tokens are declared to be of that shape, with valid checksums."""
    text = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    file = io.BytesIO(saved(tokens=lambda old: None))
    with zipfile.ZipFile(file, "a") as there:
        there.writestr("tokens.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(192))
    return file.getvalue()


def bomb() -> bytes:
    """513 MiB of zeros in half a MiB."""
    file = io.BytesIO(saved(tokens=lambda old: None))
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as there, there.open("tokens.npy", "w") as member:
        for _ in range(513):
            member.write(bytes(1 << 20))
    return file.getvalue()


RECORDS = {
    "objects": lambda: saved(documents=lambda old: old.astype(object)),
    "numbers for names": lambda: saved(documents=lambda old: np.arange(24)),
    "texts for numbers": lambda: saved(nats=lambda old: old.astype(str)),
    "floats for counts": lambda: saved(tokens=lambda old: old + 0.5),
    "a field less": lambda: saved(clusters=lambda old: None),
    "a field more": lambda: saved(more=lambda old: np.zeros(3)),
    "other lengths": lambda: saved(tokens=lambda old: old[:12]),
    "other dimensions": lambda: saved(nats=lambda old: old[None]),
    "a unit less": lambda: saved(units=lambda old: old[:, :1]),
    "a unit twice": lambda: saved(unit_names=lambda old: np.array(["note", "note"])),
    "other units": lambda: saved(unit_names=lambda old: np.array(["note", "bar"])),
    "negative tokens": lambda: saved(tokens=lambda old: -old),
    "no tokens": lambda: saved(tokens=lambda old: 0 * old),
    "negative clusters": lambda: saved(clusters=lambda old: old - 1),
    "too many tokens": lambda: saved(tokens=lambda old: old + 2**48),
    "infinite units": lambda: saved(units=lambda old: old * np.inf),
    "negative units": lambda: saved(units=lambda old: -old),
    "more right than there are": lambda: saved(correct=lambda old: np.full(24, 10**6)),
    "fewer right than none": lambda: saved(correct=lambda old: np.full(24, -2)),
    "some counted": lambda: saved(correct=lambda old: np.arange(24) - 1),
    "groups without sums": lambda: saved(
        group_names=lambda old: np.array(["a"]),
        group_nats=lambda old: np.ones((24, 1)),
        group_tokens=lambda old: records("rope", 0).tokens[:, None],
    ),
    "groups of fewer tokens": lambda: saved(
        group_names=lambda old: np.array(["a"]),
        group_nats=lambda old: records("rope", 0).nats[:, None],
        group_tokens=lambda old: np.ones((24, 1), int),
    ),
    "groups of negative tokens": lambda: grouped(records("rope", 0).tokens[:, None] * [2, -1]),
    "groups whose sums overflow": lambda: grouped(
        records("rope", 0).tokens[:, None].astype(np.uint64) * np.array([1, 0, 0], np.uint64)
        + np.array([0, 2**63, 2**63], np.uint64)
    ),
    "characters that do not exist": lambda: saved(
        documents=lambda old: np.frombuffer(b"\xff\xff\xff\x7f" * 24, "<U1"),
    ),
    "24 GB declared": lambda: declaring("(3000000000,)"),
    "a negative shape": lambda: declaring("(-24,)"),
    "a bomb": bomb,
    "cut": lambda: saved()[:-100],
    "empty": lambda: b"",
}


@pytest.mark.parametrize("name", RECORDS)
def test_records_that_do_not_fit_are_listed(run, name):
    data = RECORDS[name]()
    (run / "nll" / "test.npz").write_bytes(data)
    tracemalloc.start()
    said = refused(run)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    assert said.startswith(("unreadable: nll/test.npz", "unusable: nll/test.npz"))


def test_a_flipped_bit_in_records_is_listed(run):
    file = run / "nll" / "test.npz"
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 4
    file.write_bytes(data)
    assert "nll/test.npz is damaged" in refused(run)


def test_float32_nats_of_groups_still_add_up(tmp_path):
    """As task=keep rounds them."""
    whole = records("rope", 0)
    nats = whole.nats[:, None] * np.array([0.3, 0.7])
    tokens = np.stack([whole.tokens // 3, whole.tokens - whole.tokens // 3], 1)
    kept = replace(whole, group_names=("a", "b"), group_nats=nats.astype(np.float32), group_tokens=tokens)
    replace(kept, nats=whole.nats.astype(np.float32)).save(tmp_path / "a.npz")
    loaded = Records.load(tmp_path / "a.npz")
    assert loaded.group_names == ("a", "b")
    assert loaded.nats.dtype == loaded.group_nats.dtype == np.float64  # sums are not rounded to float32


@pytest.mark.parametrize("nats", [np.nan, np.inf])
def test_scores_of_groups_of_a_diverged_model_can_be_read(tmp_path, nats):
    (tmp_path / "a.npz").write_bytes(grouped(records("rope", 0).tokens[:, None], nats=nats))
    assert np.array_equal(Records.load(tmp_path / "a.npz").nats, np.full(24, nats), equal_nan=True)


@pytest.mark.parametrize("names", ["unit_names", "group_names"])
def test_equal_names_of_scores_are_refused(tmp_path, names):
    alike = grouped(np.stack([records("rope", 0).tokens, np.zeros(24, int)], 1), **{names: np.array(["a", "a"])})
    (tmp_path / "a.npz").write_bytes(alike)
    with pytest.raises(UserError, match="it holds a, a, of which two are equal"):
        Records.load(tmp_path / "a.npz")


def test_a_baseline_of_other_tokens_is_listed(run):
    baseline = records("rope", 1)
    replace(baseline, tokens=baseline.tokens + 1).save(run / "baselines" / "test" / "unigram.npz")
    assert refused(run) == "unusable: baselines/test/unigram.npz and the run's records have different tokens"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("store.sha256", 3),
        ("store.units", "note"),
        ("store.splits", ["train", "valid", "../../../test"]),
        ("store.splits", "train"),
        ("store.documents", [1]),
        ("store.documents", {"train": 1, "valid": "24", "test": 24}),
        ("store.vocabulary", 10**30),
        ("store.domain", ".."),
        ("store.domain", "/etc"),
        ("store", []),
        ("sessions", []),
        ("sessions", [3]),
        ("sessions", [{"device": ["a"]}]),
        ("sessions", [{"device": "\ud800", "code": None}]),
        ("sessions", [{"device": "a", "code": {"commit": 3, "dirty": None}}]),
        ("sessions", [{"device": "a", "code": {}}]),
        ("sessions", [{"device": "a", "ranks": "2"}]),
        ("sessions", [{"device": "a", "from_step": -1}]),
        ("peak_memory_bytes", "many"),
        ("diverged", "12"),
        ("files", ["metrics.csv"]),
        ("config", None),
        ("portraits", ["delta"]),
        ("portraits", {"delta": {"caption": "without an axis"}}),
        ("portraits", {"delta": {"axis": "a", "elements": {"axis": "e", "ticks": {"0": 0.0}}}}),
        ("portraits.delta", {"axis": "a", "elements": {"axis": "e", "ticks": {"0": 0.0, "1": 1.0}, "period": 0.0}}),
    ],
)
def test_a_manifest_of_other_types_is_listed(run, key, value):
    file = run / "manifest.json"
    manifest = json.loads(file.read_text())
    group, _, inner = key.rpartition(".")
    (manifest[group] if group else manifest)[inner] = value
    file.write_text(json.dumps(manifest))
    assert "manifest.json" in refused(run)


@pytest.mark.parametrize("text", [b"\xff{}", b"[" * 100_000, b"[]", b'{"a": NaN}', b'{"a": 1e999}', b"9" * 5000, b"3"])
def test_a_manifest_that_is_none_is_listed(run, text):
    (run / "manifest.json").write_bytes(text)
    assert refused(run).startswith("unreadable: manifest.json is damaged")


def test_a_configuration_other_than_the_manifest_s_is_listed(run):
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"seed": 7}))
    assert refused(run) == "unusable: config.yaml and manifest.json have different configurations"


COLUMNS = "stretch,context,trained,beyond,low,high,targets,nats\n"
TABLES = {
    "metrics.csv": [
        b"",
        b"train_nll\n3\n",
        b"step,train_nll\n1,two\n",
        b"step,train_nll\n1e9,2\n",
        b"step,train_nll\n,2\n",
        b"step,train_nll\n1\n2,3\n",
        b"step,train_nll\n1,2,3\n",
        b"step,step\n1,2\n",
        b"step,$\\frac$\n1,2\n",
        b"step,\xff\n1,2\n",
        b"step,a\n1," + b"9" * 200_000 + b"\n",
        b'step,a\n1,"2\n',
    ],
    "extrapolation/test.csv": [
        b"",
        b"stretch,context\n",
        COLUMNS.encode(),
        (COLUMNS + "none,64,32,False,1,1,10,20\n").encode(),  # without the trained length
        (COLUMNS + "none,32,32,False,1,1,0,0\n").encode(),
        (COLUMNS + "none,32,32,False,1,1,10,nan\n").encode(),
        (COLUMNS + "none,32,32,Maybe,1,1,10,20\n").encode(),
        (COLUMNS + "none,32,32,False,9,1,10,20\n").encode(),
        (COLUMNS + "none,-32,-32,False,1,1,10,20\n").encode(),
        (COLUMNS + "none,32,32,False,1,1,10,20\nnone,64,32,False,1,1,11,20\n").encode(),
        (COLUMNS + "none,32,32,False,1,1,10,20\nnone,32,32,False,1,1,10,20\n").encode(),
        (COLUMNS + "none,32,32,False,1,1,10,20\nnone,32,16,False,2,2,10,20\n").encode(),
        (COLUMNS + "$x$,32,32,False,1,1,10,20\n").encode(),
    ],
    "mechanisms/attention.csv": [b"", b"low,high\n1,2\n", b"low,high,mass\n2,1,0.5\n", b"low,high,mass\n1,2,9\n"],
    "mechanisms/positions.csv": [b"low,high,mass\n0,0,0.5\n", b"low,high,mass,uniform\n0,0,0.5,-1\n"],
    "mechanisms/locality.csv": [b"low,high,share\n1,1,1.5\n", b"low,high,share\n1,1,nan\n"],
    "mechanisms/bands.csv": [
        b"low,high,elements,plain,unrotated\n4,16,3,2,2\n",
        b"low,high,elements,plain,unrotated,removed\n4,16,3,2,inf,2\n",
        b"low,high,elements,plain,unrotated,removed\n0,4,3,2,2,2\n",
        b"low,high,elements,plain,unrotated,removed\n4,16,0,2,2,2\n",
    ],
    "mechanisms/delta.csv": [
        b"layer,head,delta\n0,0,1\n0,0,1\n0,1,1\n",
        b"layer,head,delta\n0,0,inf\n",
        b"layer,head,delta\n0,x,1\n",
        b"layer,delta\n0,1\n",
    ],
    "mechanisms/beta.csv": [
        b"layer,head,q50\n0,0,1\n",
        b"layer,head,q05,q25,q50,q75,q95\n0,0,5,4,3,2,1\n",
        b"layer,head,q05,q25,q50,q75,q95\n0,a,1,2,3,4,5\n",
    ],
    "mechanisms/$x$.csv": [b"a\n1\n"],
    "sample_metrics/seed0.csv": [
        b"",
        b"origin,piece,cluster,segment\nsample,0,0,0\ntest,0,0,0\n",
        b"origin,piece,cluster,segment,a\nsample,0,0,0,1\n",
        b"origin,piece,cluster,segment,a\nsample,0,0,0,1\nsample,0,0,0,1\ntest,0,0,0,1\n",
        b"origin,piece,cluster,segment,a\nsample,0,0,0,1e99\ntest,0,0,0,1\n",
    ],
    "sample_metrics/$x$.csv": [b"origin,piece,cluster,segment,a\nsample,0,0,0,1\ntest,0,0,0,1\n"],
}


@pytest.mark.parametrize(("name", "data"), [(name, data) for name, several in TABLES.items() for data in several])
def test_tables_that_cannot_be_drawn_are_listed(run, name, data):
    (run / name).write_bytes(data)
    assert refused(run).startswith(f"unreadable: {name} is damaged (")


@pytest.mark.parametrize("name", ["metrics.csv", "extrapolation/test.csv", "mechanisms/delta.csv", "manifest.json"])
def test_a_digit_that_changed_since_it_was_recorded_is_listed(run, name):
    directory = RunDirectory.open(run)
    directory.seal(*(file for file in run.rglob("*.csv") if "samples" not in file.parts))
    assert len(read_study([run]).runs) == 1
    text = (run / name).read_text()
    (run / name).write_text(text.replace("0", "1", 1))
    assert "changed since" in refused(run)


def test_records_of_another_seed_in_place_of_those_that_were_recorded_are_listed(run):
    file = RunDirectory.open(run).records("test")
    RunDirectory.open(run).seal(file)
    assert len(read_study([run]).runs) == 1
    records("rope", 1).save(file)
    assert "nll/test.npz has changed since" in refused(run)


def test_a_manifest_without_digests_is_read(run):
    directory = RunDirectory.open(run)
    assert "sha256" not in json.loads((run / "manifest.json").read_text())
    assert len(read_study([run]).runs) == 1
    directory.write_manifest(finished=True)
    assert "sha256" in json.loads((run / "manifest.json").read_text())
    assert len(read_study([run]).runs) == 1


def test_a_task_refuses_damaged_lengths_in_one_line(run):
    from bearings.reporting.lengths import read_lengths

    (run / "extrapolation" / "test.csv").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"test.csv is damaged \(.*\): delete it and measure it again"):
        read_lengths(run / "extrapolation" / "test.csv")
