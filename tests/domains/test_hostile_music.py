"""Malicious releases, MIDI files and chorales: no reading outside the folder, no memory exhaustion, one-line errors."""

import bz2
import gzip
import io
import json
import os
import stat
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pretty_midi
import pytest
from jsb_support import musicxml
from maestro_support import COLUMNS, content, midi_of, music, refusal, rows_of, sample, write_table

from bearings.core.errors import UserError
from bearings.domains import chorales, performances, remi, unpacking
from bearings.domains.jsb import JSB
from bearings.domains.maestro import Maestro


@pytest.fixture
def source(tmp_path):
    """A release of twelve performances, as a folder."""
    return Path(sample(tmp_path / "maestro-v3.0.0").options["path"])


def member(name: str, data: bytes = b"x", **fields):
    """A member of a tar file, and its contents."""
    found = tarfile.TarInfo(name)
    found.size = len(data)
    for field, value in fields.items():
        setattr(found, field, value)
    return found, data


def tar(path: Path, *members) -> Path:
    with tarfile.open(path, "w") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    "outside", ["../secret.midi", "2004/../../secret.midi", "{}/secret.midi", "..\\secret.midi", "a\nb"]
)
def test_metadata_with_outside_files_raise(source, tmp_path, outside):
    (tmp_path / "secret.midi").write_bytes(content(midi_of(music(9))))
    rows = rows_of([f"piece{n}.midi" for n in range(12)])
    rows[4]["midi_filename"] = outside.format(tmp_path)
    write_table(source, rows)
    line = refusal(source, tmp_path / "stores")
    assert "performance 5: " in line
    assert "is outside the folder of the release" in line


@pytest.mark.parametrize("name", ["2004/piece3.midi", "maestro-v3.0.0.csv"])
def test_links_to_outside_raise(source, tmp_path, name):
    (source / name).rename(tmp_path / "elsewhere")
    (source / name).symlink_to(tmp_path / "elsewhere")
    assert f"{name} is a link to outside of {source}" in refusal(source, tmp_path / "stores")


@pytest.mark.parametrize(
    "name", ["../a.midi", "/a.midi", "m/../../a.midi", "C:\\a.midi", "m\\..\\..\\a.midi", "a\nb.midi"]
)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_members_outside_folder_raise(tmp_path, kind, name):
    path = tmp_path / f"m.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, "x")
    else:
        tar(path, member(name))
    assert "which is outside its folder or not printable" in refusal(path, tmp_path / "stores")


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.GNUTYPE_SPARSE],
)
def test_links_and_devices_in_tar_raise(tmp_path, kind):
    path = tar(tmp_path / "m.tar", member("m/a.midi", b"", type=kind, linkname="/etc/passwd"))
    assert "'m/a.midi', a link or a device" in refusal(path, tmp_path / "stores")


def test_links_in_zip_raise(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        link = zipfile.ZipInfo("m/a.midi")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    assert "'m/a.midi', a link or a device" in refusal(tmp_path / "m.zip", tmp_path / "stores")


def test_huge_members_take_no_memory(source, tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "SPARE", 1 << 20)
    giant = b"a" * (9 << 20)
    with zipfile.ZipFile(tmp_path / "m.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in source.rglob("*.*"):
            archive.write(file, file.relative_to(source))
        archive.writestr("2004/piece12.midi", giant)
    with zipfile.ZipFile(tmp_path / "t.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("maestro-v3.0.0.csv", giant)
    plain = tar(tmp_path / "m.tar", member("maestro-v3.0.0.csv", giant))
    header = tar(tmp_path / "h.tar", member("x" * 101, b""))  # a long name, in a header that is preceded by its size
    data = header.read_bytes()
    long = tarfile.TarInfo("././@LongLink")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
    header.write_bytes(long.tobuf(tarfile.GNU_FORMAT) + data)
    packed = tmp_path / "p.tar.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "p.tar.bz2").write_bytes(bz2.compress(plain.read_bytes()))
    write_table(source, [*rows_of([f"piece{n}.midi" for n in range(12)]), *rows_of(["piece12.midi"], ["train"])])
    (source / "2004" / "piece12.midi").write_bytes(giant)
    del giant
    remi.remi("fine")  # import packages first, because they take memory too
    tracemalloc.start()
    assert "more than 8,388,608 bytes" in refusal(tmp_path / "t.zip", tmp_path / "stores")
    assert "more than 8,388,608 bytes" in refusal(plain, tmp_path / "stores")
    assert "a part of more than 16,777,216 bytes" in refusal(header, tmp_path / "stores")
    for path in (packed, tmp_path / "p.tar.bz2"):
        assert "it decompresses to more than" in refusal(path, tmp_path / "stores")
    assert "2004/piece12.midi cannot be used (more than 2,097,152 bytes)" in refusal(source, tmp_path / "stores")
    assert tracemalloc.get_traced_memory()[1] < 40 << 20
    tracemalloc.stop()


def test_too_many_members_raise(tmp_path, monkeypatch):
    monkeypatch.setattr(performances, "MOST_MEMBERS", 3)
    path = tar(tmp_path / "m.tar", *(member(f"{n}.midi") for n in range(4)))
    assert "contains more than 3 files" in refusal(path, tmp_path / "stores")


def test_large_metadata_are_fast(source, tmp_path):
    (source / "maestro-v3.0.0.csv").unlink()
    columns = {name: {str(n): "x" for n in range(20_000)} for name in COLUMNS} | {f"c{n}": {} for n in range(20_000)}
    (source / "maestro-v3.0.0.json").write_text(json.dumps(columns))
    assert "performance 1: split 'x'" in refusal(source, tmp_path / "stores")


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"midi_filename": {"0": ' + "[" * 500 + "]" * 500 + "}}", '{"midi_filename": {"0": "\\ud800"}}'],
)
def test_odd_metadata_raise_one_line(source, tmp_path, text):
    (source / "maestro-v3.0.0.csv").unlink()
    (source / "maestro-v3.0.0.json").write_text(text)
    assert "maestro-v3.0.0.json" in refusal(source, tmp_path / "stores")


def test_non_text_names_are_read(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for n in range(3):
        (folder / os.fsdecode(b"%d\xff.mid" % n)).write_bytes(content(midi_of(music(n))))
    assert len(Maestro(str(folder), split="random").prepare(tmp_path / "stores").names) == 3


def track(*events: bytes) -> bytes:
    body = b"".join(events) + b"\0\xff\x2f\0"
    return b"MThd\0\0\0\x06\0\0\0\1\1\xe0MTrk" + len(body).to_bytes(4) + body


NOTE = b"\0\x90\x3c\x40\x60\x80\x3c\x40"
MIDI = {
    "number without end": (track(b"\xff" * 200_000), "a number of more than four bytes"),
    "length without end": (track(NOTE, b"\0\xff\1" + b"\xff" * 200_000), "a number of more than four bytes"),
    "a long time": (track(*[b"\xff\xff\xff\x7f\x90\x3c\x40"] * 9), "it lasts more than 2,147,483,647 ticks"),
    "a long note": (track(b"\0\x90\x3c\x40\xff\xff\xff\x7f\x80\x3c\x40"), "hours|largest tick|16ths|max"),
    "long": (track(NOTE * 300_000), "more than 2,097,152 bytes"),
}


@pytest.mark.parametrize("kind", MIDI)
@pytest.mark.parametrize("domain", [Maestro, JSB])
def test_midi_with_huge_claims_raises(tmp_path, kind, domain):
    data, message = MIDI[kind]
    path = tmp_path / "x.mid"
    path.write_bytes(data)
    with pytest.raises(UserError, match=message) as caught:
        domain().encode_file(path)
    assert "\n" not in str(caught.value)


def test_huge_note_takes_no_memory(tmp_path):
    midi = pretty_midi.PrettyMIDI(resolution=1, initial_tempo=100)
    for name in chorales.VOICES:
        midi.instruments.append(pretty_midi.Instrument(0, name=name))
        midi.instruments[-1].notes.append(pretty_midi.Note(64, 60, 0, 2_000_000))
    midi.write(str(tmp_path / "x.mid"))
    with pytest.raises(UserError, match=r"x\.mid lasts [\d,]+ 16ths, more than 100,000"):
        JSB().encode_file(tmp_path / "x.mid")


def test_huge_score_raises(tmp_path):
    path = tmp_path / "x.xml"
    path.write_text(musicxml({name: [(60, 1e9)] for name in chorales.VOICES}))
    with pytest.raises(UserError, match=r"x\.xml .*lasts [\d,]+ 16ths, more than 100,000"):
        chorales.read(path)


def test_score_bomb_raises(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.mxl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("score.xml", b" " * (5 << 20))
    with pytest.raises(UserError, match=r"x\.mxl cannot be read .*more than 4,194,304 bytes"):
        chorales.read(tmp_path / "x.mxl")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"train": [[[1' + "0" * 30 + ", 60, 60, 60]]]}", "train piece 0 has a different format"),
        ('{"train": [[[1' + "0" * 5000 + "]]]}", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"train": [' + "[" * 200 + "]" * 200 + "]}", "train piece 0 has a different format"),
        ('{"train": [[[60, 60, 60, 60]' + ", [60, 60, 60, 60]" * 100_000 + "]]}", "train piece 0 lasts 100,001 16ths"),
        (
            '{"train": [[[60, 60, 60, 60]]' + ", [[60, 60, 60, 60]]" * 5000 + "]}",
            "train has 5,001 pieces, more than 5,000",
        ),
        ('"' + "x" * (17 << 20) + '"', "more than 16,777,216 bytes"),
        ("\xff\xfe", "is not JSON"),
    ],
)
def test_json_with_huge_claims_raises(tmp_path, text, message):
    (tmp_path / "x.json").write_bytes(text.encode("latin1"))
    with pytest.raises(UserError) as caught:
        JSB("separated16", str(tmp_path / "x.json")).prepare(tmp_path / "stores")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mutated_music_gives_tokens_or_one_line(source, tmp_path):
    random = np.random.default_rng(0)
    piece = [[72, 67, 64, 48]] * 8
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(source, "m")
    midi = content(midi_of(music(3)))
    seeds = {
        "m.mid": (midi, Maestro().encode_file),
        "n.mid": (midi, JSB().encode_file),
        "x.json": (
            json.dumps({split: [piece] for split in ("train", "valid", "test")}).encode(),
            lambda path: chorales.read_separated(path, ("train", "valid", "test")),
        ),
        "m.tar.gz": (packed.getvalue(), lambda path: list(performances.Release(path).read())),
        "m.tar": (gzip.decompress(packed.getvalue()), lambda path: list(performances.Release(path).read())),
        "maestro.csv": (
            (source / "maestro-v3.0.0.csv").read_bytes(),
            lambda path: performances.parse(path.read_bytes(), "x"),
        ),
    }
    for name, (seed, read) in seeds.items():
        for _ in range(60):
            data = bytearray(seed)
            for place in random.integers(len(data), size=random.integers(1, 4)):
                data[place] = random.integers(256)
            (tmp_path / name).write_bytes(data[: random.integers(len(data))] if random.random() < 0.2 else data)
            try:
                read(tmp_path / name)
            except UserError as error:
                said = str(error)
            else:
                said = "tokens"
            assert "\n" not in said
