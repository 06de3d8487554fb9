"""Releases of performances: folder, zip and tar, metadata, damage, and skipped files."""

import csv
import errno
import io
import json
import os
import tarfile
import threading
import zipfile
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import mido
import numpy as np
import pytest
from maestro_support import COLUMNS, content, contents, midi_of, music, refusal, rows_of, sample, units, write_table

from bearings.core.errors import UserError
from bearings.domains import maestro, performances, workers
from bearings.domains.maestro import Maestro


@pytest.fixture
def source(tmp_path):
    """A release of twelve performances, as a folder."""
    return Path(sample(tmp_path / "maestro-v3.0.0").options["path"])


def packed(source: Path, path: Path) -> Path:
    """Pack `source` as the archive `path`, inside a folder of the same name as in the published zip."""
    files = sorted(file for file in source.rglob("*") if file.is_file())
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, f"maestro-v3.0.0/{file.relative_to(source)}")
    else:
        with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
            archive.add(source, "maestro-v3.0.0")
    return path


def test_folder_zip_and_tar_agree(source, tmp_path):
    folder = contents(Maestro(str(source)).prepare(tmp_path / "stores"))
    assert Counter(part for part, _, _ in folder.values()) == {"train": 6, "valid": 3, "test": 3}
    for name in ("m.zip", "m.tar", "m.tar.gz"):
        store = Maestro(str(packed(source, tmp_path / name))).prepare(tmp_path / "stores")
        assert contents(store) == folder, name
    with tarfile.open(tmp_path / "inside.tar", "w") as archive:
        archive.add(source, ".")
    assert contents(Maestro(str(tmp_path / "inside.tar")).prepare(tmp_path / "stores")) == folder, "tar -c ."
    assert contents(Maestro(str(source.parent)).prepare(tmp_path / "stores")) == folder, "the folder around it"
    rows = list(csv.DictReader((source / "maestro-v3.0.0.csv").read_text().splitlines()))
    columns = {name: {str(n): row[name] for n, row in enumerate(rows)} for name in COLUMNS}
    (source / "maestro-v3.0.0.csv").unlink()
    (source / "maestro-v3.0.0.json").write_text(json.dumps(columns))
    assert contents(Maestro(str(source)).prepare(tmp_path / "stores")) == folder, "metadata as json"


def test_manifest(source, tmp_path):
    unreleased = mido.MidiFile(io.BytesIO(None), file=io.BytesIO(content(midi_of(music(3)))))
    unreleased.tracks[1].insert(-1, mido.Message("note_on", note=30, velocity=9))
    unreleased.save(source / "2004" / "piece3.midi")
    (source / "2004" / "spare.midi").write_bytes(content(midi_of(music(5))))
    manifest = Maestro(str(source)).prepare(tmp_path / "stores").manifest
    assert manifest["grid_ms"] == 20.833
    assert manifest["midi"]["train"] == {"note": 241, "second": 6 * 20.5}
    assert manifest["lost"]["train"]["note"] == 1
    assert manifest["lost"]["train"]["second"] == pytest.approx(
        6 * 20.5 - sum(units(music(n))["second"] for n in range(6))
    )
    assert (manifest["lost"]["test"]["note"], manifest["compositions"]) == (0, 12)
    assert (manifest["skipped"], manifest["unlisted"]) == ({}, 1)
    assert manifest["composition_also_in_train"] == {"valid": 0, "test": 0}


def test_title_in_two_official_splits(source, tmp_path):
    """Clusters are separate, following the publisher, and the manifest counts the title."""
    rows = rows_of([f"piece{n}.midi" for n in range(12)])
    for n in (1, 2, 7, 8):  # two in train, two in validation, with slightly different spelling
        rows[n] |= {"canonical_composer": "Joseph HAYDN", "canonical_title": f"Sonata, Hob.{' ' * (n % 2)}XVI:41"}
    write_table(source, rows)
    store = Maestro(str(source)).prepare(tmp_path / "stores")
    place = {name: store.clusters[i] for i, name in enumerate(store.names)}
    label = [place[f"2004/piece{n}.midi"] for n in range(12)]
    assert label[1] == label[2] != label[7] == label[8]
    assert len(set(label)) == 10
    assert store.manifest["compositions"] == 9
    assert store.manifest["composition_also_in_train"] == {"valid": 2, "test": 0}
    random = Maestro(str(source), split="random").prepare(tmp_path / "stores")
    together = {random.clusters[random.names.index(f"2004/piece{n}.midi")] for n in (1, 2, 7, 8)}
    assert len(together) == 1, "the random split does not use the publisher's judgement"


def test_random_split_is_fixed_and_by_performance():
    listed = [performances.Performance(f"2004/{n}.midi", f"piece {n // 3}", "train", 1.0) for n in range(1276)]
    splits = Maestro(split="random")._splits(listed)
    assert Counter(splits.values()) == {"train": 1148, "valid": 64, "test": 64}
    assert Maestro(split="random")._splits(listed[::-1]) == splits
    few = Maestro(split="random")._splits(listed[:5])
    assert Counter(few.values()) == {"train": 3, "valid": 1, "test": 1}
    drawn = np.array([n for n in range(1276) if splits[f"2004/{n}.midi"] == "test"])
    assert 450 < drawn.mean() < 830, "spread over the whole list"


@pytest.mark.parametrize("wrapping", ["folder", "zip", "tar.gz"])
def test_unreadable_and_missing_files_raise_or_are_skipped(source, tmp_path, wrapping):
    half = (source / "2004" / "piece1.midi").read_bytes()[:150]
    (source / "2004" / "piece1.midi").write_bytes(half)
    (source / "2004" / "piece8.midi").unlink()

    def path(suffix):
        return source if wrapping == "folder" else packed(source, tmp_path / f"{suffix}.{wrapping}")

    assert "2004/piece8.midi cannot be used (listed but missing): " in refusal(path("a"), tmp_path / "stores")
    (source / "2004" / "piece8.midi").write_bytes(content(midi_of(music(8))))
    line = refusal(path("b"), tmp_path / "stores")
    assert "2004/piece1.midi cannot be used (cut short: " in line
    assert "domain.skip_unreadable=true" in line
    (source / "2004" / "piece2.midi").write_bytes(half)
    line = refusal(path("d"), tmp_path / "stores")
    assert all(f"2004/piece{number}.midi cannot be used (cut short: " in line for number in (1, 2))
    (source / "2004" / "piece2.midi").write_bytes(content(midi_of(music(2))))
    (source / "2004" / "piece8.midi").unlink()
    store = Maestro(str(path("c")), skip_unreadable=True).prepare(tmp_path / "stores")
    assert sorted(store.manifest["skipped"]) == ["2004/piece1.midi", "2004/piece8.midi"]
    assert store.manifest["skipped"]["2004/piece1.midi"].startswith("cut short")
    assert store.manifest["compositions"] == len(store.names) == 10
    assert store.manifest["midi"]["train"]["note"] == 200


def test_single_midi_file_raises(source, tmp_path):
    with pytest.raises(UserError, match=r"piece1.midi is a single MIDI file: give a folder of at least 3 MIDI files"):
        Maestro(str(source / "2004" / "piece1.midi")).prepare(tmp_path / "stores")


def test_skipping_must_not_empty_a_split(source, tmp_path):
    for n in (9, 10, 11):
        (source / "2004" / f"piece{n}.midi").write_bytes(b"")
    with pytest.raises(UserError, match=r"no file is left in test, because 2004/piece\d+\.midi is skipped \(an e"):
        Maestro(str(source), skip_unreadable=True).prepare(tmp_path / "stores")


@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz"])
@pytest.mark.parametrize("damage", ["half", "empty", "text", "flipped"])
def test_damaged_archives_raise(source, tmp_path, suffix, damage):
    path = packed(source, tmp_path / f"m.{suffix}")
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        if suffix == "tar":
            pytest.skip("a tar has no checksum of its contents")
        data[len(data) // 2] ^= 0xFF
    changed = {"half": data[: len(data) // 2], "empty": b"", "text": b"hello " * 200, "flipped": data}
    path.write_bytes(changed[damage])
    assert "cannot be " in refusal(path, tmp_path / "stores")


def test_unknown_zip_compression_raises(source, tmp_path):
    path = packed(source, tmp_path / "m.zip")
    data = bytearray(path.read_bytes())
    for signature, at in ((b"PK\x01\x02", 10), (b"PK\x03\x04", 8)):  # positions of the compression method in headers
        begin = data.find(signature)
        while begin >= 0:
            data[begin + at : begin + at + 2] = b"\x61\x00"
            begin = data.find(signature, begin + 4)
    path.write_bytes(data)
    assert "compression method is not supported" in refusal(path, tmp_path / "stores")


def own_files(folder, seeds):
    """A folder with a MIDI file for each seed, in order."""
    folder.mkdir()
    for number, seed in enumerate(seeds):
        (folder / f"{number:02d}.mid").write_bytes(content(midi_of(music(seed))))
    return folder


def test_midi_files_without_metadata_are_separate_pieces(tmp_path):
    mine, notes = tmp_path / "mine", {name: music(seed) for seed, name in enumerate(("b.mid", "a/b.MID", "c.midi"))}
    for name in notes:
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_bytes(content(midi_of(notes[name])))
    line = refusal(mine, tmp_path / "stores")
    assert "of your own MIDI files" in line
    assert line.endswith("with domain.split=random")
    store = Maestro(str(mine), split="random").prepare(tmp_path / "stores")
    found = contents(store)
    assert set(found) == set(notes)
    assert sorted(split for split, _, _ in found.values()) == ["test", "train", "valid"]
    assert len(set(store.clusters.tolist())) == 3
    for part in ("train", "valid", "test"):
        assert store.manifest["lost"][part] == {"note": 0, "second": 0}
    (mine / "c.midi").unlink()
    assert "at least 3 of your own MIDI files" in refusal(mine, tmp_path / "others", split="random")


def test_hidden_files_are_ignored(tmp_path):
    """Such as those that macOS adds to archives and foreign file systems."""
    mine, hidden = own_files(tmp_path / "mine", range(3)), b"\0\5\x16\7 of AppleDouble"
    store = Maestro(str(mine), split="random").prepare(tmp_path / "stores")
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        for number in range(3):
            archive.write(mine / f"{number:02d}.mid", f"mine/{number:02d}.mid")
            archive.writestr(f"__MACOSX/mine/._{number:02d}.mid", hidden)
    zipped = Maestro(str(tmp_path / "mine.zip"), split="random").prepare(tmp_path / "stores")
    assert zipped.names == store.names  # and therefore in the same splits
    (mine / "._00.mid").write_bytes(hidden)
    assert Maestro(str(mine), split="random").prepare(tmp_path / "stores").directory == store.directory


def test_a_split_whose_only_file_is_a_copy_is_named(tmp_path):
    mine = own_files(tmp_path / "mine", range(6))
    splits = {
        name: split
        for name, (split, _, _) in contents(Maestro(str(mine), split="random").prepare(tmp_path / "stores")).items()
    }
    (held,) = (name for name, split in splits.items() if split == "test")
    first = min(name for name, split in splits.items() if split == "train")
    assert first < held  # copies of an earlier file are left out
    (mine / held).write_bytes((mine / first).read_bytes())
    with pytest.raises(UserError, match=rf"no file is left in test, because {held} has the same notes as {first}"):
        Maestro(str(mine), split="random").prepare(tmp_path / "others")


def test_own_files_with_notes_that_never_end_are_refused(tmp_path):
    mine = own_files(tmp_path / "mine", range(3))
    played = b"".join(b"\x00\x90\x3c\x40\x60\x80\x3c\x00" for _ in range(40))
    track = b"\x00\x90\x3c\x40" + played + b"\x00\xff\x2f\x00"  # the first note starts again before its end
    header = b"MThd" + (6).to_bytes(4) + bytes([0, 0, 0, 1, 0, 96])
    (mine / "00.mid").write_bytes(header + b"MTrk" + len(track).to_bytes(4) + track)
    with pytest.raises(UserError, match=r"00\.mid cannot be used \(1 of its 41 notes have no end or zero length"):
        Maestro(str(mine), split="random").prepare(tmp_path / "stores")


@pytest.mark.parametrize("blocked", ["00.mid", "inner"])
def test_what_cannot_be_opened_is_named(tmp_path, monkeypatch, blocked):
    """Tests may run as root, who can read everything."""
    mine = own_files(tmp_path / "mine", range(4))
    (mine / "inner").mkdir()

    def refused(path, *args, real, **options):
        if Path(os.fspath(path)).name == blocked:
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return real(path, *args, **options)

    monkeypatch.setattr("builtins.open", partial(refused, real=open))
    monkeypatch.setattr("os.scandir", partial(refused, real=os.scandir))
    with pytest.raises(UserError, match=rf"{blocked} .*permission denied"):
        Maestro(str(mine), split="random").prepare(tmp_path / "stores")


def test_copies_of_a_file_are_too_few_files(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in "abc":
        (mine / f"{name}.mid").write_bytes(content(midi_of(music(0))))
    with pytest.raises(UserError, match=r"mine has 3 files, but only 1 with different notes, and train, "):
        Maestro(str(mine), split="random").prepare(tmp_path / "stores")


def test_copies_of_a_file_are_in_one_split(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 1)  # other processes would take longer to start
    mine = own_files(tmp_path / "mine", (number % 40 for number in range(60)))
    domain = Maestro(str(mine), split="random")
    store = domain.prepare(tmp_path / "stores")
    splits_of: dict[bytes, set[int]] = {}
    for index, split in enumerate(store.splits.tolist()):
        splits_of.setdefault(store.document(index).tobytes(), set()).add(split)
    assert [len(splits) for splits in splits_of.values()] == [1] * 40
    assert len(set(store.clusters.tolist())) == 40
    left_out = store.manifest["copies_left_out"]
    assert left_out
    assert {int(copy[:2]) - int(first[:2]) for copy, first in left_out.items()} == {40}
    assert len(store.names) + len(left_out) == 60


def test_copies_stay_in_the_official_splits(source, tmp_path):
    (source / "2004" / "piece11.midi").write_bytes((source / "2004" / "piece0.midi").read_bytes())
    store = Maestro(str(source)).prepare(tmp_path / "stores")
    assert len(store.names) == 12
    assert store.manifest["copies_left_out"] == {}


def test_invalid_releases_raise(source, tmp_path):
    root = tmp_path / "stores"
    assert "does not exist: give MAESTRO's zip" in refusal(tmp_path / "none.zip", root)
    table = source / "maestro-v3.0.0.csv"
    assert refusal(table, root) == f"{table} cannot be read (neither a zip nor a tar): download it again"
    (tmp_path / "bare").mkdir()
    assert "contains no metadata (maestro-*.csv or maestro-*.json)" in refusal(tmp_path / "bare", root)
    (source / "maestro-v3.0.0.csv").unlink()
    assert "contains no metadata" in refusal(source, root)
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("m/maestro-v3.0.0.csv", "x")
        archive.writestr("m/a.midi", "x")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("m/a.midi", "y")
    assert "contains m/a.midi twice" in refusal(tmp_path / "two.zip", root)


def change(row, **values):
    return lambda rows: rows[row].update(values)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change(4, split="dev"), "performance 5: split 'dev', not train, validation, test"),
        (change(4, duration="long"), "performance 5: duration 'long' is not a number of seconds"),
        (change(4, duration="-3"), "performance 5: duration '-3' is not a number of seconds"),
        (change(4, duration="nan"), "performance 5: duration 'nan' is not a number of seconds"),
        (change(11, midi_filename=""), "performance 12: no midi_filename"),
        (change(0, canonical_title="", split=""), "performance 1: no canonical_title, split"),
        (change(7, midi_filename="2004/piece3.midi"), "performance 8: 2004/piece3.midi is listed twice"),
        (lambda rows: rows.clear(), "lists no performances"),
    ],
)
def test_invalid_metadata_raises(source, tmp_path, spoil, message):
    rows = rows_of([f"piece{n}.midi" for n in range(12)])
    spoil(rows)
    table = write_table(source, rows)
    line = refusal(source, tmp_path / "stores")
    assert message in line
    assert str(table) in line


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("csv", b"", "lists no performances"),
        ("csv", b"\x89PNG\r\n\xff\xfe", "cannot be read as a table"),
        ("csv", b"a,b\r\n1,2\r\n", "performance 1: no canonical_composer, "),
        ("csv", b"canonical_composer,canonical_title\n" + b'"x' * 200_000, "cannot be read as a table"),
        ("json", b"", "cannot be read as a table"),
        ("json", b"[1, 2]", "cannot be read as a table"),
        ("json", b'{"midi_filename": {"0": "a.midi"}', "cannot be read as a table"),
        ("json", b'{"midi_filename": "a.midi"}', "cannot be read as a table"),
        ("json", b'{"midi_filename": {"0": "a.midi"}}', "performance 1: no canonical_composer, "),
        ("json", b"{}", "lists no performances"),
    ],
)
def test_missing_metadata_raises(source, tmp_path, name, text, message):
    (source / "maestro-v3.0.0.csv").unlink()
    (source / f"maestro-v3.0.0.{name}").write_bytes(text)
    assert message in refusal(source, tmp_path / "stores")


def test_metadata_with_crlf_and_a_byte_order_mark(source, tmp_path):
    before = contents(Maestro(str(source)).prepare(tmp_path / "stores"))
    table = source / "maestro-v3.0.0.csv"
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())
    assert b"\r\n" in table.read_bytes()
    assert contents(Maestro(str(source)).prepare(tmp_path / "stores")) == before


def test_files_are_read_in_parallel_and_in_order(monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 2)  # on one core, no process is started
    items = [(n, bytes(n % 50)) for n in range(100)]
    assert list(workers.each(len, iter(items), 100)) == [(n, n % 50) for n in range(100)]


def test_killed_process_raises(monkeypatch):
    monkeypatch.setattr(workers, "cores", lambda: 2)
    with pytest.raises(UserError, match="a process that reads music was killed: free memory"):
        list(workers.each(os._exit, iter([(n, 1) for n in range(40)]), 40))
    large = "__import__('time').sleep(1) or bytes(1 << 24)"  # of another process, which would wait until it is read
    with pytest.raises(UserError, match="a process that reads music was killed"):
        list(workers.each(eval, iter([(0, "__import__('os')._exit(1)"), *((n, large) for n in range(1, 40))]), 40))


def test_zip_is_downloaded_and_verified(source, tmp_path, monkeypatch):
    file = packed(source, tmp_path / maestro.FILE)
    monkeypatch.setattr(maestro, "SHA256", performances.fingerprint(file))
    monkeypatch.setattr(maestro, "BYTES", file.stat().st_size)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        store = Maestro(urls=[f"{address}/none", f"{address}/{file.name}"]).prepare(tmp_path / "stores")
        server.shutdown()
    assert Maestro(str(file)).prepare(tmp_path / "stores").directory == store.directory, "by path it is the same store"
    assert len(store.names) == 12


def test_offline_error_names_file_and_override(tmp_path):
    with pytest.raises(UserError, match=r"no URL.*get maestro-v3\.0\.0-midi\.zip.*domain\.path=/where/you/put/maestro"):
        Maestro(urls=[]).prepare(tmp_path)
