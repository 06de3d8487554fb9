"""MAESTRO: REMI tokens on a grid of time, releases in every wrapping, damage, splits, and the real performances.

BEARINGS_FULL=1 adds the complete release: a minute or two on two cores.
"""

import csv
import io
import json
import os
import shutil
import tarfile
import threading
import zipfile
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import mido
import numpy as np
import pretty_midi
import pytest
from conftest import DATA, REPOSITORY
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread
from omegaconf import OmegaConf

from bearings.domains import maestro, performances, remi
from bearings.domains.maestro import Maestro
from bearings.domains.performances import Release
from bearings.domains.store import SPLITS
from bearings.errors import UserError

RELEASE = DATA / "maestro-v3.0.0.tar.gz"
needs_release = pytest.mark.skipif(not RELEASE.exists(), reason=f"{RELEASE} is absent; set BEARINGS_DATA to its folder")
needs_patience = pytest.mark.skipif(
    not os.environ.get("BEARINGS_FULL"), reason="set BEARINGS_FULL=1 for all 1,276 files"
)

STEP = 1 / 48  # seconds: the fine grid
COLUMNS = ("canonical_composer", "canonical_title", "split", "year", "midi_filename", "audio_filename", "duration")
OFFICIAL = ["train"] * 6 + ["validation"] * 3 + ["test"] * 3


def music(seed: int, count: int = 40) -> list[tuple[int, int, int, int]]:
    """Notes (start, length, pitch, velocity), times in grid steps; no key is struck while it is down."""
    random = np.random.default_rng(seed)
    notes, time, free = [], int(random.integers(0, 150)), dict.fromkeys(range(21, 109), 0)
    for _ in range(count):
        time += int(random.choice([0, 0, 1, 5, 40, 200]))
        pitch = int(random.choice([key for key, since in free.items() if since <= time]))
        length = int(random.integers(1, 25))
        free[pitch] = time + length
        notes.append((time, length, pitch, int(random.integers(1, 128))))
    return sorted(notes, key=lambda note: (note[0], note[2]))


def midi_of(notes, step: float = STEP, resolution: int = 480, tempo: float = 120) -> pretty_midi.PrettyMIDI:
    midi = pretty_midi.PrettyMIDI(resolution=resolution, initial_tempo=tempo)
    piano = pretty_midi.Instrument(0)
    piano.notes = [
        pretty_midi.Note(velocity, pitch, start * step, (start + length) * step)
        for start, length, pitch, velocity in notes
    ]
    midi.instruments.append(piano)
    return midi


def content(midi: pretty_midi.PrettyMIDI) -> bytes:
    buffer = io.BytesIO()
    midi.write(buffer)
    return buffer.getvalue()


def same(decoded: pretty_midi.PrettyMIDI, notes) -> bool:
    """Equal starts, ends and pitches; velocities as near as 32 levels allow."""
    (piano,) = decoded.instruments
    found = [
        (round(note.start / STEP, 6), round((note.end - note.start) / STEP, 6), note.pitch) for note in piano.notes
    ]
    close = all(abs(note.velocity - raw[3]) <= 3 for note, raw in zip(piano.notes, notes, strict=True))
    return close and found == [note[:3] for note in notes]


def units(notes) -> dict[str, float]:
    return {"note": len(notes), "second": max(start + length for start, length, _, _ in notes) * STEP}


def rows_of(names, splits=OFFICIAL) -> list[dict]:
    """Metadata of pieces that all have their own composer and title."""
    return [
        dict(
            zip(COLUMNS, (f"Composer {n}", f"Sonata, Op. {n}", split, 2004, f"2004/{name}", "x.wav", 20.5), strict=True)
        )
        for n, (name, split) in enumerate(zip(names, splits, strict=True))
    ]


def write_table(folder: Path, rows) -> Path:
    path = folder / "maestro-v3.0.0.csv"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def sample(folder: Path) -> SimpleNamespace:
    """Twelve short performances for the laws of every domain (test_domain_laws.py says what the fields are)."""
    raw = {f"2004/piece{n}.midi": music(n) for n in range(12)}
    (folder / "2004").mkdir(parents=True)
    for name, notes in raw.items():
        (folder / name).write_bytes(content(midi_of(notes)))
    write_table(folder, rows_of([Path(name).name for name in raw]))
    return SimpleNamespace(
        options={"path": str(folder)}, raw=raw, same=same, units=units, source=folder / "2004" / "piece3.midi"
    )


@pytest.fixture
def source(tmp_path):
    """A release of twelve performances, as a folder."""
    return Path(sample(tmp_path / "maestro-v3.0.0").options["path"])


def contents(store):
    """What a store says, whatever file it came from."""
    return {
        name: (SPLITS[store.splits[i]], store.units[i].tolist(), store.document(i).tolist())
        for i, name in enumerate(store.names)
    }


def refusal(path: Path, root: Path, **options) -> str:
    """The line in which `path` is refused; nothing may be left in `root`."""
    with pytest.raises(UserError) as caught:
        Maestro(str(path), **options).prepare(root)
    assert [found for found in root.rglob("*") if found.is_file() and found.suffix != ".lock"] == []
    line = str(caught.value)
    assert "\n" not in line
    assert str(path) in line
    return line


def names_of(tokenizer: str, ids) -> list[str]:
    names = {number: token for token, number in remi.remi(tokenizer).miditok.vocab.items()}
    return [names[int(number)].removesuffix("_None") for number in ids]


# ---- tokens

notes_on_the_grid = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(1, 24), st.integers(21, 108), st.integers(1, 127)),
    min_size=1,
    max_size=40,
).map(lambda notes: sorted(notes, key=lambda note: (note[0], note[2], note[1])))


def as_notes(notes, step: float = STEP) -> remi.Notes:
    start, length, pitch, velocity = np.array(notes).T
    return remi.Notes(start * step, (start + length) * step, pitch, velocity)


def test_tokens_of_a_small_piece():
    domain = Maestro()
    tokens = np.append(domain.codec.encode(as_notes([(100, 6, 60, 64), (100, 24, 64, 67), (297, 48, 21, 1)])), remi.END)
    assert names_of("fine", tokens) == [
        *("BOS", "Bar", "Bar", "Position_4", "Pitch_60", "Velocity_63", "Duration_0.6.24"),
        *("Pitch_64", "Velocity_67", "Duration_1.0.12"),
        *("Bar", "Bar", "Position_9", "Pitch_21", "Velocity_3", "Duration_2.0.12", "EOS"),
    ]
    weights = domain.unit_weights(tokens)
    assert weights["note"].tolist() == [0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0]
    steps = [0, 0, 96, 4, 0, 0, 0, 0, 0, 0, 92, 96, 9, 0, 0, 0, 48]
    assert (weights["second"] / STEP).round(9).tolist() == steps


def test_the_vocabularies():
    kinds = {name: Counter(token.split("_")[0] for token in remi.remi(name).miditok.vocab) for name in remi.SETTINGS}
    special = {"PAD": 1, "BOS": 1, "EOS": 1, "MASK": 1, "Bar": 1, "Pitch": 88, "Velocity": 32}
    assert kinds["fine"] == special | {"Duration": 92, "Position": 96}
    assert kinds["pope"] == special | {"Duration": 64, "Position": 32, "Chord": 14, "Tempo": 32, "PitchDrum": 61}
    assert (Maestro().vocabulary, Maestro(tokenizer="pope").vocabulary) == (313, 328)
    for name in remi.SETTINGS:
        vocabulary = remi.remi(name).miditok.vocab
        assert (vocabulary["PAD_None"], vocabulary["BOS_None"], vocabulary["EOS_None"]) == (0, remi.START, remi.END)
        assert [vocabulary[f"Pitch_{pitch}"] for pitch in range(21, 109)] == remi.remi(name).pitch_ids.tolist()


@settings(max_examples=60, deadline=None)
@given(notes_on_the_grid)
def test_decode_inverts_encode(notes):
    domain = Maestro()
    tokens = np.append(domain.codec.encode(as_notes(notes)), remi.END)
    assert sorted(content_of(domain.decode(tokens))) == sorted(note[:3] for note in notes)
    weights = domain.unit_weights(tokens)
    assert {unit: weight.sum() for unit, weight in weights.items()} == pytest.approx(units(notes))
    assert min(weights["second"]) >= 0


def content_of(midi):
    (piano,) = midi.instruments
    return [(round(note.start / STEP), round((note.end - note.start) / STEP), note.pitch) for note in piano.notes]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["fine", "pope"]))
def test_a_written_file_is_a_prompt_that_encodes_back(tmp_path_factory, seed, tokenizer):
    domain, path = Maestro(tokenizer=tokenizer), tmp_path_factory.mktemp("prompt") / "x.mid"
    tokens = domain.codec.encode(as_notes(music(seed, 30), domain.codec.step))
    domain.decode(tokens).write(str(path))
    again = domain.encode_file(path)
    assert again.tolist() == tokens.tolist()
    assert again[0] == domain.start
    assert remi.END not in again


def test_a_sample_is_a_midi_file_and_a_picture(tmp_path):
    domain = Maestro()
    score, picture = domain.render(domain.decode(domain.codec.encode(as_notes(music(1)))), tmp_path / "sample-0.5")
    assert (score.name, picture.name) == ("sample-0.5.mid", "sample-0.5.png")
    again = pretty_midi.PrettyMIDI(str(score))
    again.instruments[0].notes.sort(key=lambda note: (round(note.start / STEP), note.pitch))
    assert same(again, music(1))
    assert (np.abs(imread(picture)[50:, :, :3] - np.array([213, 94, 0]) / 255).max(-1) < 0.02).sum() > 1000


@pytest.mark.parametrize(("tokenizer", "half"), [("fine", 1 / 96), ("pope", 1 / 32)])
def test_any_tempo_and_resolution_is_read_in_seconds(tmp_path, tokenizer, half):
    """Onsets land on the nearest point of the grid, whatever the file's own ticks; its tempo may change on the way."""
    domain = Maestro(tokenizer=tokenizer)
    file = mido.MidiFile(ticks_per_beat=220)
    tempi, track = mido.MidiTrack(), mido.MidiTrack()
    tempi += [mido.MetaMessage("set_tempo", tempo=705_882), mido.MetaMessage("set_tempo", tempo=260_000, time=1000)]
    expected = []
    for n in range(60):  # a note every 77 ticks, 40 of them long
        track += [mido.Message("note_on", note=40 + n, velocity=70, time=37 if n else 0)]
        track += [mido.Message("note_on", note=40 + n, velocity=0, time=40)]
        tick = 77 * n
        expected.append((min(tick, 1000) * 0.705882 + max(tick - 1000, 0) * 0.26) / 220)
    file.tracks += [tempi, track]
    file.save(tmp_path / "x.mid")
    found = [note.start for note in domain.decode(domain.encode_file(tmp_path / "x.mid")).instruments[0].notes]
    assert np.abs(np.array(found) - expected).max() <= half + 1e-9
    assert np.abs(np.array(found) - expected).max() > half / 2


def test_long_notes_are_cut_and_short_ones_kept():
    decoded = Maestro().decode(
        Maestro().codec.encode(remi.Notes(*np.array([[0, 0], [0.001, 9.5], [60, 61], [64, 64]])))
    )
    assert [note.end for note in decoded.instruments[0].notes] == pytest.approx([STEP, 6])


def test_decode_takes_any_ids():
    domain = Maestro()
    (bar, position, pitch, velocity, duration) = (
        domain.codec.miditok.vocab[token]
        for token in ("Bar_None", "Position_12", "Pitch_60", "Velocity_63", "Duration_1.0.12")
    )
    note = [pitch, velocity, duration]

    def starts(ids):
        return [n.start for n in domain.decode(ids).instruments[0].notes]

    assert starts([]) == starts([1]) == starts([2, bar, *note]) == starts([pitch, velocity]) == []
    assert starts(note) == [0]
    assert starts([1, bar, position, *note]) == [0.25]
    assert starts([1, bar, bar, *note, -1, 10**30, 0, 3, pitch, *note, position, *note]) == [2, 2, 2.25]
    assert starts([1, bar, *note, 2, bar, *note]) == [0], "nothing is heard after EOS"
    assert starts(np.array(note, np.uint16)) == [0]
    drum = remi.remi("pope").miditok.vocab["PitchDrum_40"]
    assert len(Maestro(tokenizer="pope").decode([drum, *range(93, 96), drum]).instruments[0].notes) == 0


def test_units_of_sequences_that_no_document_holds():
    domain = Maestro()
    vocabulary = domain.codec.miditok.vocab
    late, early, bar = vocabulary["Position_90"], vocabulary["Position_5"], vocabulary["Bar_None"]
    weights = domain.unit_weights(np.array([1, bar, late, early, bar, early, 2, bar, 2]))["second"]
    assert (weights / STEP).round(9).tolist() == [0, 0, 90, 0, 6, 5, 0, 91, 0]
    for ids in ([1], [1, 2], [2, 2], [vocabulary["Pitch_60"], 2]):
        assert domain.unit_weights(np.array(ids))["second"].tolist() == [0] * len(ids)


# ---- transposition


@pytest.mark.parametrize(
    ("lowest", "highest", "allowed"),
    [(60, 64, range(-3, 4)), (21, 64, range(4)), (22, 107, range(-1, 2)), (60, 107, range(-3, 2)), (21, 108, [0])],
)
def test_augment_draws_every_shift_that_stays_on_the_keyboard_evenly(lowest, highest, allowed):
    domain, random = Maestro(transpose=3), np.random.default_rng(0)
    window = domain.codec.encode(as_notes([(0, 5, lowest, 60), (9, 30, highest, 80)]))
    seen = Counter()
    for _ in range(200 * len(allowed)):
        moved = domain.augment(window, random)
        pitches = domain.codec.value[moved[domain.codec.kind[moved] == "Pitch"]]
        shift = int(pitches[0]) - lowest
        assert pitches.tolist() == [lowest + shift, highest + shift]
        others = domain.codec.kind[window] != "Pitch"
        assert np.array_equal(moved[others], window[others])
        assert (moved.dtype, moved.shape) == (window.dtype, window.shape)
        seen[shift] += 1
    assert sorted(seen) == list(allowed)
    assert all(140 < times < 260 for times in seen.values())


def test_no_transposition_changes_nothing_and_draws_nothing():
    random = np.random.default_rng(0)
    before = random.bit_generator.state
    window = np.array([1, 4, 5, 95, 130])
    assert Maestro().augment(window, random).tolist() == window.tolist()
    assert Maestro(transpose=3).augment(window[:2], random).tolist() == window[:2].tolist()
    assert random.bit_generator.state == before


# ---- arguments


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"transpose": -1}, "transpose is -1: 0 to 12"),
        ({"transpose": 13}, "transpose is 13: 0 to 12"),
        ({"split": "paper"}, "split is 'paper': official or random"),
        ({"tokenizer": "bpe"}, "tokenizer is 'bpe': fine or pope"),
    ],
)
def test_arguments_out_of_reach_are_refused(given, told):
    with pytest.raises(ValueError, match=told):
        Maestro(**given)


def test_the_shipped_configuration():
    domain = instantiate(OmegaConf.load(REPOSITORY / "configs" / "domain" / "maestro.yaml"))
    assert (domain.path, domain.split, domain.tokenizer, domain.transpose) == (None, "official", "fine", 3)
    assert not domain.skip_unreadable
    assert domain.urls == list(Maestro().urls)
    assert domain.options()["sha256"] == maestro.SHA256


def test_what_decides_the_contents_is_in_the_options(source):
    def options(**given):
        return json.dumps(Maestro(**({"path": str(source)} | given)).options(), sort_keys=True)

    first = options()
    assert options(transpose=3) == first
    others = {options(split="random"), options(tokenizer="pope"), options(skip_unreadable=True), options(path=None)}
    (source / "2004" / "piece7.midi").write_bytes(content(midi_of(music(99))))
    others.add(options())
    (source / "2004" / "piece7.midi").rename(source / "2004" / "piece77.midi")
    others.add(options())
    assert len(others | {first}) == 7


# ---- releases


def packed(source: Path, path: Path) -> Path:
    """`source` as the archive `path`, inside a folder of its own name as in the published zip."""
    files = sorted(file for file in source.rglob("*") if file.is_file())
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, f"maestro-v3.0.0/{file.relative_to(source)}")
    else:
        with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
            archive.add(source, "maestro-v3.0.0")
    return path


def test_folder_zip_and_tar_hold_the_same(source, tmp_path):
    folder = contents(Maestro(str(source)).prepare(tmp_path / "stores"))
    assert Counter(part for part, _, _ in folder.values()) == {"train": 6, "valid": 3, "test": 3}
    for name in ("m.zip", "m.tar", "m.tar.gz"):
        store = Maestro(str(packed(source, tmp_path / name))).prepare(tmp_path / "stores")
        assert contents(store) == folder, name
    assert contents(Maestro(str(source.parent)).prepare(tmp_path / "stores")) == folder, "the folder around it"
    rows = list(csv.DictReader((source / "maestro-v3.0.0.csv").read_text().splitlines()))
    columns = {name: {str(n): row[name] for n, row in enumerate(rows)} for name in COLUMNS}
    (source / "maestro-v3.0.0.csv").unlink()
    (source / "maestro-v3.0.0.json").write_text(json.dumps(columns))
    assert contents(Maestro(str(source)).prepare(tmp_path / "stores")) == folder, "metadata as json"


def test_what_the_manifest_tells(source, tmp_path):
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


def test_a_title_in_two_official_splits(source, tmp_path):
    """Clusters stay apart, as the publisher has it, and the manifest counts the title."""
    rows = rows_of([f"piece{n}.midi" for n in range(12)])
    for n in (1, 2, 7, 8):  # two in train, two in validation; written a little differently
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
    assert len(together) == 1, "the random split knows no such judgement"


def test_the_random_split_is_by_performance_and_always_the_same():
    listed = [performances.Performance(f"2004/{n}.midi", f"piece {n // 3}", "train", 1.0) for n in range(1276)]
    splits = Maestro(split="random")._splits(listed)
    assert Counter(splits.values()) == {"train": 1148, "valid": 64, "test": 64}
    assert Maestro(split="random")._splits(listed[::-1]) == splits
    few = Maestro(split="random")._splits(listed[:5])
    assert Counter(few.values()) == {"train": 3, "valid": 1, "test": 1}
    drawn = np.array([n for n in range(1276) if splits[f"2004/{n}.midi"] == "test"])
    assert 450 < drawn.mean() < 830, "spread over the whole list"


@pytest.mark.parametrize("wrapping", ["folder", "zip", "tar.gz"])
def test_unreadable_and_absent_files_are_refused_by_name_or_skipped(source, tmp_path, wrapping):
    half = (source / "2004" / "piece1.midi").read_bytes()[:150]
    (source / "2004" / "piece1.midi").write_bytes(half)
    (source / "2004" / "piece8.midi").unlink()

    def path(suffix):
        return source if wrapping == "folder" else packed(source, tmp_path / f"{suffix}.{wrapping}")

    assert "2004/piece8.midi cannot be used (listed, but not there): " in refusal(path("a"), tmp_path / "stores")
    (source / "2004" / "piece8.midi").write_bytes(content(midi_of(music(8))))
    line = refusal(path("b"), tmp_path / "stores")
    assert "2004/piece1.midi cannot be used (cut short: " in line
    assert "domain.skip_unreadable=true" in line
    (source / "2004" / "piece8.midi").unlink()
    store = Maestro(str(path("c")), skip_unreadable=True).prepare(tmp_path / "stores")
    assert sorted(store.manifest["skipped"]) == ["2004/piece1.midi", "2004/piece8.midi"]
    assert store.manifest["skipped"]["2004/piece1.midi"].startswith("cut short")
    assert store.manifest["compositions"] == len(store.names) == 10
    assert store.manifest["midi"]["train"]["note"] == 200


def test_skipping_may_not_empty_a_split(source, tmp_path):
    for n in (9, 10, 11):
        (source / "2004" / f"piece{n}.midi").write_bytes(b"")
    with pytest.raises(UserError, match="no document fell into test"):
        Maestro(str(source), skip_unreadable=True).prepare(tmp_path / "stores")


@pytest.mark.parametrize("suffix", ["zip", "tar", "tar.gz"])
@pytest.mark.parametrize("damage", ["half", "empty", "text", "flipped"])
def test_damaged_archives_are_refused(source, tmp_path, suffix, damage):
    path = packed(source, tmp_path / f"m.{suffix}")
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        if suffix == "tar":
            pytest.skip("a tar has no checksum of its contents")
        data[len(data) // 2] ^= 0xFF
    changed = {"half": data[: len(data) // 2], "empty": b"", "text": b"hello " * 200, "flipped": data}
    path.write_bytes(changed[damage])
    assert "cannot be " in refusal(path, tmp_path / "stores")


def test_releases_that_do_not_serve(source, tmp_path):
    root = tmp_path / "stores"
    assert "is missing: give MAESTRO's zip" in refusal(tmp_path / "none.zip", root)
    table = source / "maestro-v3.0.0.csv"
    assert refusal(table, root) == f"{table} cannot be read (file could not be opened successfully): get it anew"
    (tmp_path / "bare").mkdir()
    assert "holds no metadata (maestro-*.csv or maestro-*.json)" in refusal(tmp_path / "bare", root)
    (source / "maestro-v3.0.0.csv").unlink()
    assert "holds no metadata" in refusal(source, root)
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("m/maestro-v3.0.0.csv", "x")
        archive.writestr("m/a.midi", "x")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("m/a.midi", "y")
    assert "holds m/a.midi twice" in refusal(tmp_path / "two.zip", root)


def change(row, **values):
    return lambda rows: rows[row].update(values)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (change(4, split="dev"), "performance 5: split 'dev', not train, validation, test"),
        (change(4, duration="long"), "performance 5: duration 'long' is no number of seconds"),
        (change(4, duration="-3"), "performance 5: duration '-3' is no number of seconds"),
        (change(4, duration="nan"), "performance 5: duration 'nan' is no number of seconds"),
        (change(11, midi_filename=""), "performance 12: no midi_filename"),
        (change(0, canonical_title="", split=""), "performance 1: no canonical_title, split"),
        (change(7, midi_filename="2004/piece3.midi"), "performance 8: 2004/piece3.midi is listed twice"),
        (lambda rows: rows.clear(), "lists no performances"),
    ],
)
def test_metadata_that_does_not_serve(source, tmp_path, spoil, told):
    rows = rows_of([f"piece{n}.midi" for n in range(12)])
    spoil(rows)
    table = write_table(source, rows)
    line = refusal(source, tmp_path / "stores")
    assert told in line
    assert str(table) in line


@pytest.mark.parametrize(
    ("name", "text", "told"),
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
def test_metadata_that_is_none(source, tmp_path, name, text, told):
    (source / "maestro-v3.0.0.csv").unlink()
    (source / f"maestro-v3.0.0.{name}").write_bytes(text)
    assert told in refusal(source, tmp_path / "stores")


def test_metadata_with_crlf_and_a_byte_order_mark(source, tmp_path):
    before = contents(Maestro(str(source)).prepare(tmp_path / "stores"))
    table = source / "maestro-v3.0.0.csv"
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())
    assert b"\r\n" in table.read_bytes()
    assert contents(Maestro(str(source)).prepare(tmp_path / "stores")) == before


def test_many_files_are_read_in_parallel_and_in_order():
    items = [(n, bytes(n % 50)) for n in range(100)]
    assert list(performances.each(len, iter(items), 100)) == [(n, n % 50) for n in range(100)]


def test_a_killed_process_is_told():
    with pytest.raises(UserError, match="a process that reads music died: free some memory"):
        list(performances.each(os._exit, iter([(n, 1) for n in range(40)]), 40))


# ---- download


def test_the_zip_is_downloaded_and_verified(source, tmp_path, monkeypatch):
    file = packed(source, tmp_path / maestro.FILE)
    monkeypatch.setattr(maestro, "SHA256", performances.fingerprint(file))
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


def test_offline_says_which_file_and_which_override(tmp_path):
    with pytest.raises(UserError, match=r"no URL.*get maestro-v3\.0\.0-midi\.zip.*domain\.path=/where/you/put/maestro"):
        Maestro(urls=[]).prepare(tmp_path)


# ---- MIDI files


def track(*events: bytes) -> bytes:
    body = b"".join(events) + b"\x00\xff\x2f\x00"
    return b"MTrk" + len(body).to_bytes(4) + body


def file_of(*tracks: bytes, division: int = 480, kind: int = 1) -> bytes:
    return b"MThd\x00\x00\x00\x06" + b"".join(n.to_bytes(2) for n in (kind, len(tracks), division)) + b"".join(tracks)


NOTE = b"\x00\x90\x3c\x40\x81\x70\x80\x3c\x40"


def test_note_ons_are_counted_as_mido_counts_them():
    random = np.random.default_rng(0)
    for _ in range(20):
        file = mido.MidiFile()
        for _ in range(random.integers(1, 4)):
            events = file.add_track()
            for _ in range(100):
                note, time, channel = (int(random.integers(limit)) for limit in (128, 300_000, 16))
                events.append(
                    [
                        mido.Message(
                            "note_on", note=note, velocity=int(random.integers(3)), time=time, channel=channel
                        ),
                        mido.Message("control_change", control=64, value=note, time=time, channel=channel),
                        mido.Message("program_change", program=note, channel=channel),
                        mido.Message("pitchwheel", pitch=note, channel=channel),
                        mido.Message("sysex", data=[1] * int(random.integers(300))),
                        mido.MetaMessage("text", text="x" * int(random.integers(300))),
                    ][random.choice(6, p=[0.6, *[0.08] * 5])]
                )
        buffer = io.BytesIO()
        file.save(file=buffer)
        wanted = sum(
            event.type == "note_on" and event.velocity > 0 and event.channel != 9
            for events in file.tracks
            for event in events
        )
        assert remi.note_ons(buffer.getvalue()) == wanted


def test_running_status_and_unknown_chunks():
    running = track(b"\x00\x90\x3c\x40", b"\x0a\x3e\x40", b"\x0a\x3c\x00", b"\x00\xff\x01\x01x", b"\x0a\x3e\x00")
    notes, count = remi.read(file_of(b"XYZW\x00\x00\x00\x03abc" + running))
    assert (count, notes.pitch.tolist()) == (2, [60, 62])


def test_drums_do_not_count_and_tracks_are_merged():
    drums = track(NOTE.replace(b"\x90", b"\x99").replace(b"\x80", b"\x89"))
    high = track(NOTE.replace(b"\x3c", b"\x48"))
    notes, count = remi.read(file_of(drums, high, track(NOTE)))
    assert (count, sorted(notes.pitch.tolist())) == (2, [60, 72])
    with pytest.raises(ValueError, match="no notes"):
        remi.read(file_of(drums))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "an empty file"),
        (b"MThd", "no MIDI header"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "no MIDI header"),
        (b"RIFF" + file_of(track(NOTE)), "no MIDI header"),
        (file_of(track(NOTE))[:14], "cut short: 1 of its tracks are not there"),
        (file_of(track(NOTE), track(NOTE))[: -len(track(NOTE))], "cut short: 1 of its tracks"),
        (file_of(track(NOTE))[:-3], "cut short: a chunk that begins at byte 14 needs 3 bytes more"),
        (file_of(track(NOTE))[:18], "cut short: a chunk that begins at byte 14"),
        (file_of(track(NOTE)) + b"xx", "cut short: a chunk that begins at byte 35"),
        (file_of(track(NOTE), division=0xE728), "its time unit is 0xe728"),
        (file_of(track(NOTE), division=0), "its time unit is 0x0000"),
        (file_of(track(b"\x00\x40\x40")), "damaged: byte 23 belongs to no event"),
        (file_of(track(b"\x00\xff\x01\x7fx")), "damaged: an event runs over the end of its track"),
        (file_of(track(NOTE[:-1])), "damaged"),
        (file_of(track()), "no notes"),
        (file_of(track(NOTE.replace(b"\x3c", b"\x14"))), r"pitches 20\.\.20 leave a piano's 21\.\.108"),
        (file_of(track(NOTE.replace(b"\x3c", b"\x6d"))), r"pitches 109\.\.109 leave"),
        (file_of(track(b"\xff\xff\xff\x7f" + NOTE[1:]), division=24), "it lasts 1,553 hours, more than 24"),
    ],
)
def test_files_that_are_no_piano_music_are_refused(tmp_path, data, told):
    with pytest.raises(ValueError, match=told):
        remi.read(data)
    path = tmp_path / "x.mid"
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"x\.mid cannot be read as piano music \(" + told):
        Maestro().encode_file(path)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_file_is_read_or_refused_but_never_more(data):
    whole = bytearray(content(midi_of(music(4, 10))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        notes, _ = remi.read(bytes(whole))
    except ValueError:
        return
    assert notes.pitch.min() >= 21


def test_prompts_that_are_no_files(tmp_path):
    with pytest.raises(UserError, match=r"y\.mid is not there"):
        Maestro().encode_file(tmp_path / "y.mid")
    with pytest.raises(UserError, match="cannot be read as piano music"):
        Maestro().encode_file(tmp_path)


# ---- the real release


@pytest.fixture(scope="module")
def some():
    """The first performance and five others from the first quarter of the release, as MIDI bytes."""
    return [data for _, data in islice(Release(RELEASE).read(), 0, 300, 50)]


@needs_release
@pytest.mark.parametrize(("tokenizer", "half"), [("fine", 1 / 96), ("pope", 1 / 32)])
def test_performances_come_back_within_the_grid(some, tokenizer, half):
    domain = Maestro(tokenizer=tokenizer)
    assert len(some) == 6
    for data in some:
        midi = pretty_midi.PrettyMIDI(io.BytesIO(data))
        played = midi.instruments[0].notes
        tokens, note_ons = maestro.document(data, tokenizer)
        heard = domain.decode(tokens).instruments[0].notes
        weights = domain.unit_weights(tokens)
        assert len(heard) == note_ons == len(played) == weights["note"].sum()
        assert weights["second"].sum() == pytest.approx(max(note.end for note in played), abs=0.15)
        for pitch in range(21, 109):
            one, other = ([n for n in notes if n.pitch == pitch] for notes in (played, heard))
            starts, again = (np.sort([n.start for n in notes]) for notes in (one, other))
            assert np.abs(starts - again).max(initial=0) <= half + 1e-6
            one, other = (sorted(notes, key=lambda n: n.start) for notes in (one, other))
            assert all(abs(a.velocity - b.velocity) <= 3 for a, b in zip(one, other, strict=True))
        lengths, kept = (np.sort([n.end - n.start for n in notes]) for notes in (played, heard))
        short = lengths < 5.9
        assert np.abs(lengths - kept)[short].max() <= 0.0625 + 2 * half
        assert kept.max() <= 6


@needs_release
def test_the_release_has_the_published_figures():
    listed = Release(RELEASE).performances
    assert Counter(row.split for row in listed) == {"train": 962, "valid": 137, "test": 177}
    hours = {part: sum(row.seconds for row in listed if row.split == part) / 3600 for part in SPLITS}
    assert {part: round(hour, 2) for part, hour in hours.items()} == {"train": 159.24, "valid": 19.43, "test": 19.98}
    titles: dict[str, set] = {}
    for row in listed:
        titles.setdefault(row.composition, set()).add(row.split)
    assert (len(titles), sum(len(parts) > 1 for parts in titles.values())) == (777, 5)


@needs_release
@needs_patience
@pytest.mark.parametrize("tokenizer", ["fine", "pope"])
def test_the_whole_release(tmp_path, tokenizer):
    store = Maestro(str(RELEASE), tokenizer=tokenizer).prepare(tmp_path)
    notes = {part: store.manifest["midi"][part]["note"] for part in SPLITS}
    assert notes == {"train": 5_659_329, "valid": 639_425, "test": 741_410}
    assert [store.manifest["lost"][part]["note"] for part in SPLITS] == [1, 0, 0]
    for part in SPLITS:
        assert store.unit_counts(part)["note"] == notes[part] - (part == "train")
        assert abs(store.manifest["lost"][part]["second"]) < 0.001 * store.manifest["midi"][part]["second"]
        others = store.clusters[store.splits != SPLITS.index(part)]
        assert not set(store.clusters[store.documents(part)]) & set(others)
    assert store.manifest["documents"] == {"train": 962, "valid": 137, "test": 177}
    assert store.manifest["composition_also_in_train"] == {"valid": 1, "test": 4}
    assert store.manifest["skipped"] == {}
    shutil.rmtree(tmp_path)
