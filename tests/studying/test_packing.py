"""Packed studies: what is packed comes back, the same runs give the same files, and damage is one line."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packing_support import files_of, make_study
from report_support import make_run

from bearings.core.checked_files import read_arrays
from bearings.core.errors import UserError, explain_os_error
from bearings.core.packed_paths import PackedPath
from bearings.domains.records import Records
from bearings.reporting.packed import RECORDS, RUNS, packed_names, read_packed
from bearings.reporting.planned import TUNED, searched_rows
from bearings.reporting.reading import read_study
from bearings.session.run_directory import RunDirectory
from bearings.studying import packing
from bearings.studying.keeping import keep_in_study
from bearings.studying.packing import pack

CONTENTS = {"a.txt": b"first", "nll/test.npz": b"second", "samples/b.mid": b""}


def files_by_run(study):
    names = ("manifest.json", "metrics.csv")
    return {run: {name: path.files[name] for name in names} for run, path in read_packed(study).items()}


def test_a_packed_path_is_read_as_one_on_the_disk(tmp_path):
    for name, content in CONTENTS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)

    def seen(root):
        paths = [root / name for name in (*CONTENTS, "samples", "absent")]
        return [
            [sorted(map(str, root.glob(pattern))) for pattern in ("*.txt", "*/*.npz", "samples/*")],
            [(str(path), path.name, path.stem, path.suffix, path.parts, str(path.parent)) for path in paths],
            [(path.exists(), path.is_file(), path.is_dir(), path.resolve()) for path in paths],
            [str(path.relative_to(root)) for path in paths],
            [(path.read_bytes(), path.read_text(), path.stat().st_size, path.open("rb").read()) for path in paths[:3]],
            [str(path.with_suffix(".png")) for path in paths],
            [str(path) for path in sorted(paths[::-1])],
        ]

    packed = PackedPath(tmp_path, CONTENTS)
    assert seen(packed) == seen(tmp_path)
    for root in (packed, tmp_path):
        with pytest.raises(FileNotFoundError) as raised:
            (root / "absent").read_bytes()
        assert explain_os_error(raised.value).startswith(f"{tmp_path / 'absent'}: no such file or directory: ")
    with pytest.raises(TypeError):
        open(packed / "a.txt")  # noqa: SIM115
    with pytest.raises(ValueError, match="mode=r: files of a packed study can only be opened with mode=rb"):
        (packed / "a.txt").open("r")


def test_every_file_of_a_run_comes_back(tmp_path):
    study = make_study(tmp_path / "study", 0, 1)
    folders = {path.parent for path in study.glob("runs/*/*/*/manifest.json")}
    before = {file: file.read_bytes() for folder in folders for file in folder.rglob("*") if file.is_file()}
    arrays = {file: read_arrays(file) for file in before if file.suffix == ".npz"}
    assert len(before) == 18  # baselines and samples once
    assert pack(study) == 2
    packed = read_packed(study)
    assert not (study / "runs").exists()
    assert packed_names(study) == packed.keys() == {"/".join(folder.parts[-3:]) for folder in folders}
    assert sum(len(path.files) for path in packed.values()) == len(before)
    for file, content in before.items():
        path = packed["/".join(file.relative_to(study / "runs").parts[:3])]
        path /= "/".join(file.relative_to(study / "runs").parts[3:])
        assert str(path) == str(file)
        if file not in arrays:
            assert path.read_bytes() == content
        else:
            again = read_arrays(path)
            (tmp_path / "written.npz").write_bytes(path.read_bytes())
            written = read_arrays(tmp_path / "written.npz")
            assert again.keys() == written.keys() == arrays[file].keys()
            for name, array in again.items():
                assert (array.tolist(), array.dtype) == (written[name].tolist(), written[name].dtype)
                assert not array.flags.writeable
            for name, array in arrays[file].items():
                assert np.array_equal(again[name], array), (file, name)
                assert again[name].dtype.kind == "U" or again[name].dtype == array.dtype


def test_runs_of_domains_with_other_units_are_packed_together(tmp_path):
    study = make_study(tmp_path / "study")
    units = {"jsb": ("note", "step"), "maestro": ("note", "second")}
    for domain, names in units.items():
        path = make_run(tmp_path / "trained", "rope", 0, domain=domain, units=names)
        keep_in_study(path, study / "runs" / path.relative_to(tmp_path / "trained"))
    assert pack(study) == 2
    runs = read_study([study]).runs
    assert {run.config["names"]["domain"]: tuple(run.records["test"].unit_names) for run in runs} == units


def test_packed_bytes_do_not_depend_on_the_order_of_keeping(tmp_path):
    once = make_study(tmp_path / "once", 0, 1, 2)
    pack(once)
    stepwise = make_study(tmp_path / "stepwise", 0)
    pack(stepwise)
    for seed in (1, 2):
        make_study(stepwise, seed)
        assert pack(stepwise) == 1
    assert files_of(once) == files_of(stepwise)
    states = [(once / name).stat() for name in (RUNS, RECORDS)]
    assert pack(once) == 0
    assert [(once / name).stat() for name in (RUNS, RECORDS)] == states  # they are not even written again


def test_what_packed_runs_have_is_not_kept_twice(tmp_path):
    study = make_study(tmp_path / "study", 0)
    pack(study)
    make_study(study, 1)
    (kept,) = study.glob("runs/*/*/*")
    assert not (kept / "baselines").exists()
    assert not (kept / "samples").exists()
    make_study(study, 0)  # kept again: its own copy is replaced
    assert len(list(study.glob("runs/*/*/*-s0/baselines/test/*"))) == 1
    assert pack(study) == 2
    assert len(read_packed(study)) == 2


def test_a_run_whose_manifest_lists_no_files_is_packed_as_it_is(tmp_path):
    study, texts = make_study(tmp_path / "study", 0, 1, 2), ["{", "[]", "{}"]
    for kept, text in zip(sorted(study.glob("runs/*/*/*")), texts, strict=True):
        (kept / "manifest.json").write_text(text)
    assert pack(study) == 3
    assert [(path / "manifest.json").read_text() for path in read_packed(study).values()] == texts


def test_a_folder_is_read_in_place_of_the_packed_run_of_its_name(tmp_path):
    study = make_study(tmp_path / "study", 0)
    pack(study)
    make_study(study, 0)
    (run,) = read_study([study]).runs
    assert not isinstance(run.path, PackedPath)
    pack(study)
    (run,) = read_study([study]).runs
    assert isinstance(run.path, PackedPath)


def test_a_run_that_is_kept_again_replaces_the_packed_one(tmp_path):
    study = make_study(tmp_path / "study", 0, 1)
    pack(study)
    make_study(study, 0)
    (kept,) = study.glob("runs/*/*/*")
    (kept / "metrics.csv").write_text("step,valid_nll\n5,3.0\n")
    assert pack(study) == 1
    curves = {name: (path / "metrics.csv").read_text() for name, path in read_packed(study).items()}
    assert len(curves) == 2
    assert [name.rpartition("-")[2] for name, text in curves.items() if text == "step,valid_nll\n5,3.0\n"] == ["s0"]


def test_packed_files_and_searches_of_another_machine_are_added(tmp_path):
    columns = "run,search,optimizer.learning_rate,valid_nll,seeds,each_seed,chosen\n"
    here, there = make_study(tmp_path / "here", 0, 1), make_study(tmp_path / "there", 1, 2)
    (here / TUNED).write_text(f"{columns}encoding=rope,line,0.1,1.0,1,0,True\n")
    (there / TUNED).write_text(f"{columns}encoding=rope,line,0.2,1.0,1,0,True\nencoding=nope,line,0.3,1.0,1,0,True\n")
    for kept in there.glob("runs/*/*/*"):
        (kept / "metrics.csv").write_text("step,valid_nll\n5,3.0\n")
    pack(here)
    pack(there)
    copy = here / "runs" / "there"
    copy.mkdir(parents=True)
    expected = {**files_by_run(there), **files_by_run(here)}
    for name in (RUNS, RECORDS, TUNED):
        shutil.copy(there / name, copy)
    shutil.copy(there / "study.yaml", copy)
    with pytest.raises(UserError, match=r"there/study\.yaml would make .* another study: copy only runs\.parquet"):
        pack(here)
    (copy / "study.yaml").rename(copy / "notes.txt")
    shutil.copytree(copy, copy.with_name("there too"))
    assert pack(here) == 2
    assert files_by_run(here) == expected
    assert len(expected) == 3
    assert [(row["run"], row["optimizer.learning_rate"]) for row in searched_rows(here)] == [
        ("encoding=nope", "0.3"),
        ("encoding=rope", "0.1"),
    ]
    assert [path.name for path in copy.iterdir()] == ["notes.txt"]
    assert pack(here) == 0


def test_what_is_no_kept_copy_is_left_where_it_is(tmp_path):
    study = make_study(tmp_path / "study", 0)
    trained = make_run(study / "runs", "pope", 0)
    (trained / "checkpoints" / "best.ckpt").write_text("large")
    (kept,) = study.glob("runs/*/rope/*")
    begun, hidden = kept.with_name("begun"), kept.with_name(f".{kept.name}")
    for copy in (begun, hidden):
        shutil.copytree(kept, copy)
    (begun / "manifest.json").unlink()
    linked = kept.with_name(f"{kept.name}1")
    shutil.copytree(kept, linked)
    (linked / "samples").rename(tmp_path / "samples")
    (linked / "samples").symlink_to(tmp_path / "samples")
    assert pack(study) == 1
    assert (linked / "samples").is_symlink()
    shutil.rmtree(linked)
    assert (trained / "checkpoints" / "best.ckpt").exists()
    assert begun.exists()
    assert hidden.exists()
    shutil.rmtree(hidden)
    assert len(read_study([study]).runs) == 2


def test_folders_stay_where_packing_would_change_a_figure(tmp_path):
    study = make_study(tmp_path / "study", 0)
    (kept,) = study.glob("runs/*/*/*")
    records = Records.load(kept / "nll" / "test.npz")
    records.save(kept / "nll" / "test.npz")  # in float64, which keeping rounds
    with pytest.raises(
        UserError, match=r"nll/test\.npz: packing would change this file: copy that run again with task=keep"
    ):
        pack(study)
    (kept / "nll" / "test.npz").write_bytes(b"cut")
    with pytest.raises(UserError, match=r"nll/test.npz cannot be read .*: copy that run again"):
        pack(study)
    assert sorted(path.name for path in study.iterdir()) == [".lock", "runs", "study.yaml"]


@pytest.mark.parametrize("back", [{"a.txt": b"b"}, {}, {"a.txt": b"a", "b.txt": b"b"}])
def test_files_that_would_not_come_back_as_they_are_are_not_packed(tmp_path, monkeypatch, back):
    study, read = make_study(tmp_path / "study", 0), packing.read_packed
    (kept,) = study.glob("runs/*/*/*")
    (kept / "samples" / "a.txt").write_bytes(b"a")

    def other(place):
        files = {path: each.files for path, each in read(place).items()}
        rest = {
            path: {name: text for name, text in each.items() if name != "samples/a.txt"} for path, each in files.items()
        }
        changed = {f"samples/{name}": text for name, text in back.items()}
        return {path: PackedPath(place / path, each | changed) for path, each in rest.items()}

    monkeypatch.setattr(packing, "read_packed", other)
    with pytest.raises(UserError, match="packing would change this file"):
        pack(study)
    assert (kept / "samples" / "a.txt").exists()


@pytest.mark.parametrize("name", [RUNS, RECORDS])
@pytest.mark.parametrize("damage", ["cut", "changed", "absent", "foreign"])
def test_a_damaged_file_is_one_line_that_names_it(tmp_path, name, damage):
    study = make_study(tmp_path / "study", 0)
    pack(study)
    file = study / name
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "changed":
        content[len(content) // 3] ^= 0xFF
        file.write_bytes(content)
    elif damage == "foreign":
        shutil.copy(study / (RECORDS if name == RUNS else RUNS), file)
    elif name == RECORDS:
        file.unlink()
    else:
        return  # then nothing says that runs were packed
    found = read_study([study])
    assert not found.runs
    (trouble,) = found.troubles
    assert (trouble.place, trouble.state) == (str(study), "unreadable")
    assert f"{name} is {'missing' if damage == 'absent' else 'damaged'}" in trouble.why
    assert "\n" not in trouble.why


def test_records_that_were_altered_do_not_pass(tmp_path):
    """Consistently with all checksums of the file, as a tool that writes Parquet does."""
    study = make_study(tmp_path / "study", 0)
    pack(study)
    table = pq.read_table(study / RECORDS)
    nats = table["nats"].to_numpy().copy()
    nats[0] += 1
    pq.write_table(table.set_column(table.column_names.index("nats"), "nats", [nats]), study / RECORDS)
    (trouble,) = read_study([study]).troubles
    assert "nll/test.npz is damaged" in trouble.why
    assert f"its rows of {study / RECORDS} have changed since they were written" in trouble.why


@pytest.mark.parametrize("names", [["../../elsewhere/rope/small-s0"], ["jsb/rope/small-s0"] * 2])
def test_invalid_and_repeated_names_of_packed_runs_are_refused(tmp_path, names):
    study = make_study(tmp_path / "study", 0)
    pack(study)
    table = pa.concat_tables([pq.read_table(study / RUNS)] * len(names))
    pq.write_table(table.set_column(0, "run", [names]), study / RUNS)
    with pytest.raises(UserError, match="invalid or repeated run name"):
        read_packed(study)


def test_a_packed_run_is_opened_as_a_folder_is(tmp_path):
    study = make_study(tmp_path / "study", 0)
    (kept,) = study.glob("runs/*/*/*")
    before = RunDirectory.open(kept)
    config, manifest = before.config, before.manifest
    pack(study)
    (path,) = read_packed(study).values()
    after = RunDirectory.open(path)
    assert (after.config, after.manifest) == (config, manifest)
