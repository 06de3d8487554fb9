"""Bach's chorales: tokens, the published file and music21's corpus."""

import json
import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import mido
import numpy as np
import pretty_midi
import pytest
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from jsb_support import count, musicxml, random_grid, roll, runs
from omegaconf import OmegaConf

from bearings.core.errors import UserError
from bearings.domains import chorales
from bearings.domains.jsb import JSB
from bearings.domains.store import SPLITS

REPOSITORY = Path(__file__).parents[2]
DATA = Path(os.environ.get("BEARINGS_DATA", REPOSITORY.parent / "shared" / "data"))
FILE = DATA / "jsb-chorales" / "Jsb16thSeparated.json"
needs_file = pytest.mark.data(FILE)
pitches = st.one_of(st.just(-1), st.integers(chorales.LOWEST, chorales.HIGHEST))
grids = arrays.arrays(np.int16, st.tuples(st.integers(0, 40), st.just(4)), elements=pitches)


def sample(folder: Path) -> SimpleNamespace:
    """Twelve small scores for the tests of all domains; test_domain_laws.py describes the fields."""
    random = np.random.default_rng(1)
    raw = {f"piece{i}": random_grid(random, int(random.integers(40, 120))) for i in range(12)}
    folder.mkdir()
    for name, grid in raw.items():
        voices = {voice: runs(grid[:, i]) for i, voice in enumerate(chorales.VOICES)}
        (folder / f"{name}.xml").write_text(musicxml(voices))
    return SimpleNamespace(
        options={"path": str(folder)},
        raw=raw,
        same=lambda decoded, grid: np.array_equal(roll(decoded, len(grid)), grid),
        units=count,
        source=folder / "piece3.xml",
    )


def test_tokens_of_a_small_piece():
    grid = np.array([[72, 67, 64, 48], [72, 67, -1, 36], [81, 65, 64, 36]])
    tokens = JSB().encode(grid)
    assert tokens.tolist() == [0, 44, 39, 36, 20, 44, 39, 1, 8, 53, 37, 36, 8]
    assert JSB().vocabulary == 60
    weights = JSB().unit_weights(tokens)
    assert weights["note"].tolist() == [0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0]
    assert weights["step"].tolist() == [0] + [0.25] * 12


@given(grids)
def test_decode_inverts_encode(grid):
    domain = JSB()
    tokens = domain.encode(grid)
    assert len(tokens) == 1 + 4 * len(grid)
    assert np.array_equal(roll(domain.decode(tokens), len(grid)), grid)
    assert {unit: weights.sum() for unit, weights in domain.unit_weights(tokens).items()} == count(grid)


@settings(max_examples=20)
@given(grids)
def test_midi_file_has_the_same_music(tmp_path_factory, grid):
    path = tmp_path_factory.mktemp("midi") / "piece.mid"
    JSB().decode(JSB().encode(grid)).write(str(path))
    again = pretty_midi.PrettyMIDI(str(path))
    silent = {"Soprano", "Alto", "Tenor", "Bass"} - {instrument.name for instrument in again.instruments}
    again.instruments += [pretty_midi.Instrument(0, name=name) for name in silent]
    assert np.array_equal(roll(again, len(grid)), grid)


def notes(midi):
    return {i.name: [(note.pitch, note.start, note.end) for note in i.notes] for i in midi.instruments}


@settings(max_examples=30)
@given(grids)
def test_rendered_file_round_trips(tmp_path_factory, grid):
    domain, folder = JSB(), tmp_path_factory.mktemp("prompt")
    (score, _) = domain.render(domain.decode(domain.encode(grid)), folder / "piece")
    if (grid == -1).all():
        with pytest.raises(UserError, match=r"piece\.mid has no notes"):
            domain.encode_file(score)
        return
    again = domain.encode_file(score)
    sounding = len(grid) - int((grid[::-1] != -1).any(1).argmax())
    assert again.tolist() == domain.encode(grid[:sounding]).tolist()


@pytest.mark.parametrize("text", [b"", b"MThd", b"hello, this is no music at all"])
def test_invalid_midi_prompt_raises(tmp_path, text):
    (tmp_path / "x.mid").write_bytes(text)
    with pytest.raises(UserError, match=r"x\.mid cannot be read as MIDI"):
        JSB().encode_file(tmp_path / "x.mid")
    with pytest.raises(UserError, match="does not exist"):
        JSB().encode_file(tmp_path / "y.mid")


def test_voices_of_one_track_are_ordered_by_channel(tmp_path):
    grid = np.array([[72, 67, 60, 48], [72, 67, 60, 50], [72, 67, 62, 52], [72, 69, 64, 53]])  # the bass moves first
    changes = [(step, v) for step in range(5) for v in range(4) if step in (0, 4) or grid[step, v] != grid[step - 1, v]]
    track, at = mido.MidiTrack(), 0
    for step, voice in changes:
        for kind, row in (("note_off", step - 1), ("note_on", step)):
            if 0 <= row < 4:
                note = int(grid[row, voice])
                track.append(mido.Message(kind, channel=voice, note=note, time=120 * (step - at)))
                at = step
    file = mido.MidiFile(type=0, tracks=[track])
    file.save(tmp_path / "x.mid")
    assert JSB().encode_file(tmp_path / "x.mid").tolist() == JSB().encode(grid).tolist()


def test_names_of_voices_may_be_in_any_case(tmp_path):
    midi, grid = JSB().decode(JSB().encode(np.array([[72, 67, 60, 48]]))), np.array([[48, 60, 67, 72]])
    for instrument, name in zip(midi.instruments, ("BASS", "tenor", "Alto ", "soprano"), strict=True):
        instrument.name = name
    midi.write(str(tmp_path / "x.mid"))
    assert JSB().encode_file(tmp_path / "x.mid").tolist() == JSB().encode(grid).tolist()


def test_drums_are_no_voice(tmp_path):
    file = mido.MidiFile()
    for channel in (0, 1, 2, 9):
        on, off = (
            mido.Message("note_" + kind, channel=channel, note=60, time=time)
            for kind, time in (("on", 0), ("off", 480))
        )
        file.tracks.append(mido.MidiTrack([on, off]))
    file.save(tmp_path / "x.mid")
    with pytest.raises(UserError, match=r"x\.mid has 3 instruments: give four"):
        JSB().encode_file(tmp_path / "x.mid")
    file.tracks.append(mido.MidiTrack([message.copy(channel=3) for message in file.tracks[0]]))
    file.save(tmp_path / "x.mid")
    assert JSB().encode_file(tmp_path / "x.mid").tolist() == JSB().encode(np.full((4, 4), 60)).tolist()


@pytest.mark.parametrize(("channel", "ticks"), [(9, 480), (0, 30)])  # drums; a 16th has 120 ticks
def test_prompt_without_notes_on_the_grid_raises(tmp_path, channel, ticks):
    track = mido.MidiTrack([mido.MetaMessage("track_name", name="Soprano")])
    for kind, time in (("note_on", 960), ("note_off", ticks)):
        track.append(mido.Message(kind, channel=channel, note=60, time=time))
    mido.MidiFile(tracks=[track]).save(tmp_path / "x.mid")
    with pytest.raises(UserError, match=r"x\.mid has no notes of pitched instruments, or only notes"):
        JSB().encode_file(tmp_path / "x.mid")


def test_prompt_with_wrong_voices_or_pitches_raises(tmp_path):
    midi = pretty_midi.PrettyMIDI()
    midi.instruments = [pretty_midi.Instrument(0) for _ in range(2)]
    for instrument in midi.instruments:
        instrument.notes.append(pretty_midi.Note(90, 100, 0, 1))
    midi.write(str(tmp_path / "two.mid"))
    with pytest.raises(UserError, match="2 instruments"):
        JSB().encode_file(tmp_path / "two.mid")
    for instrument in midi.instruments:
        instrument.name = "Alto"
    midi.write(str(tmp_path / "twice.mid"))
    with pytest.raises(UserError, match="several instruments named Alto: give each voice a different name"):
        JSB().encode_file(tmp_path / "twice.mid")
    for instrument in midi.instruments:
        instrument.name = ""
    midi.instruments *= 2
    midi.write(str(tmp_path / "high.mid"))
    with pytest.raises(UserError, match=r"pitch 100, outside 30\.\.87"):
        JSB().encode_file(tmp_path / "high.mid")


def test_decode_accepts_any_ids():
    domain = JSB()
    assert notes(domain.decode([])) == {"Soprano": [], "Alto": [], "Tenor": [], "Bass": []}
    # Start tokens are skipped at any position; unknown ids and missing voices of the last step are rests.
    ids = [0, 44, 60, -5, 10**30, 0, 44, 2, 59]
    assert notes(domain.decode(ids)) == {
        "Soprano": [(72, 0, 0.375)],
        "Alto": [(30, 0.1875, 0.375)],
        "Tenor": [(87, 0.1875, 0.375)],
        "Bass": [],
    }
    assert notes(domain.decode(np.array(ids[5:], np.uint8)))["Tenor"] == [(87, 0, 0.1875)]


@pytest.mark.parametrize(("transpose", "allowed"), [(-1, "at least 0"), (7, "at most 6"), (100, "at most 6")])
def test_transposition_out_of_range_raises(transpose, allowed):
    with pytest.raises(ValueError, match=f"transpose={transpose}: it must be {allowed}"):
        JSB(transpose=transpose)


def test_unknown_source_raises():
    with pytest.raises(ValueError, match="source='midi': it should be 'music21' or 'separated16'"):
        JSB(source="midi")


@pytest.mark.parametrize("most", [1, 6])
def test_augment_draws_transpositions_uniformly(most):
    domain, random = JSB(transpose=most), np.random.default_rng(0)
    window = np.array([0, 8, 53, 1, 30, 1, 1, 1, 1], np.uint8)
    seen = {}
    for _ in range(200 * (2 * most + 1)):
        moved = domain.augment(window, random)
        assert moved.dtype == window.dtype
        shift = int(moved[1]) - 8
        assert moved.tolist() == [0, 8 + shift, 53 + shift, 1, 30 + shift, 1, 1, 1, 1]
        assert moved.min() >= 0
        assert moved.max() < domain.vocabulary
        seen[shift] = seen.get(shift, 0) + 1
    assert sorted(seen) == list(range(-most, most + 1))
    assert all(140 < times < 260 for times in seen.values())
    assert window.tolist() == [0, 8, 53, 1, 30, 1, 1, 1, 1]


def test_zero_transposition_changes_nothing():
    random = np.random.default_rng(0)
    before = random.bit_generator.state
    window = np.array([0, 8, 9, 10, 11])
    assert JSB(transpose=0).augment(window, random).tolist() == window.tolist()
    assert random.bit_generator.state == before


def test_default_configuration():
    domain = instantiate(OmegaConf.load(REPOSITORY / "configs" / "domain" / "jsb.yaml"))
    assert (domain.source, domain.path, domain.transpose) == ("music21", None, 3)
    assert domain.urls == list(JSB().urls)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return JSB("separated16", str(FILE)).prepare(tmp_path_factory.mktemp("published"))


@needs_file
def test_published_file_has_published_figures(published):
    counts = [
        (len(published.documents(part)), published.unit_counts(part)["step"], published.targets(part))
        for part in SPLITS
    ]
    assert counts == [(229, 55_228, 220_912), (76, 18_408, 73_632), (77, 18_900, 75_600)]
    used = np.unique(published.tokens)
    assert used[0] == 0  # the start token, in addition to the 47 values in the file
    assert len(used) - 1 == 47
    assert (used[1], used[2] + 28, used[-1] + 28) == (1, 36, 81)
    assert np.diff(published.offsets).max() - 1 == 2560


@needs_file
def test_published_pieces_round_trip(published):
    domain, pieces = JSB(), json.loads(FILE.read_text())
    for index in range(0, 382, 7):
        part, number = published.names[index].split("/")
        piece = np.array(pieces[part][int(number)])
        assert SPLITS[published.splits[index]] == part
        assert np.array_equal(roll(domain.decode(published.document(index)), len(piece)), piece)
        assert dict(zip(domain.units, published.units[index], strict=True)) == count(piece)


@needs_file
def test_shared_melodies_of_published_split_are_recorded(published):
    """Most test melodies are also in train, in other settings. No setting occurs twice."""
    assert published.manifest["melodies"] == 195
    assert published.manifest["melody_also_in_train"] == {"valid": 37, "test": 51}
    assert published.manifest["duplicates_kept"] == {}
    train, test = (published.documents(part) for part in ("train", "test"))
    seen = [published.names[i] for i in test if published.clusters[i] in set(published.clusters[train])]
    assert len(seen) == 51
    subset = {published.names[i]: JSB.subset(published.manifest["options"], published.names[i]) for i in test}
    assert [name for name, each in subset.items() if each == "melody also in training"] == seen
    assert {*subset.values()} == {"melody also in training", "new melody"}


@needs_file
def test_truncated_file_raises(tmp_path):
    path = tmp_path / "given.json"
    path.write_bytes(FILE.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"given\.json is not JSON .*: expected four voices on a 16th grid"):
        JSB("separated16", str(path)).prepare(tmp_path / "root")


@needs_file
def test_published_file_is_downloaded_from_mirrors(tmp_path, monkeypatch, published):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = partial(SimpleHTTPRequestHandler, directory=str(FILE.parent))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        store = JSB("separated16", urls=[f"{address}/none", f"{address}/{FILE.name}"]).prepare(tmp_path)
        server.shutdown()
    assert store.manifest == published.manifest
    assert (tmp_path / "jsb" / "downloads" / FILE.name).read_bytes() == FILE.read_bytes()


def test_offline_error_names_file_and_override(tmp_path):
    with pytest.raises(UserError, match=r"no URL.*domain\.path=/where/you/put/Jsb16thSeparated\.json"):
        JSB("separated16", urls=[]).prepare(tmp_path)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The whole corpus, read once for all test processes."""
    base = tmp_path_factory.getbasetemp()
    return JSB().prepare((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "corpus")


def test_corpus_is_complete_and_split(corpus):
    sizes = np.array([len(corpus.documents(part)) for part in SPLITS])
    assert sizes.sum() > 380
    assert np.abs(sizes / sizes.sum() - np.array([229, 76, 77]) / 382).max() < 0.01
    assert corpus.manifest["melody_also_in_train"] == {"valid": 0, "test": 0}
    for part in SPLITS[1:]:
        others = corpus.clusters[corpus.splits != SPLITS.index(part)]
        assert not set(corpus.clusters[corpus.documents(part)]) & set(others)
    used = np.unique(corpus.tokens)
    assert (used[2] + 28, used[-1] + 28) == (36, 81)
    assert len(set(corpus.names)) == len(corpus.names)


@pytest.mark.skipif(not version("music21").startswith("10."), reason="figures of music21 10's corpus")
def test_corpus_figures(corpus):
    assert [len(corpus.documents(part)) for part in SPLITS] == [239, 79, 80]
    assert [corpus.targets(part) for part in SPLITS] == [210_464, 75_536, 66_768]
    assert corpus.manifest["melodies"] == 186
    five_parts = {"bwv27.6", "bwv227.3"}
    interludes = {"bwv79.3", "bwv248.9-1", "bwv248.23-2", "bwv248.42-4", "bwv248.64-6"}
    assert set(corpus.manifest["rejected"]) == five_parts | interludes | {"bwv846"}
    assert corpus.manifest["duplicates_removed"] == {
        "bwv18.5-w": "bwv18.5-lz",
        "bwv190.7-inst": "bwv190.7",
        "bwv274": "bwv62.6",
        "bwv398": "bwv197.7-a",
    }


def test_bwv_269(corpus):
    """BWV 269, Aus meines Herzens Grunde: 21 bars of 3/4, upbeat in G major, first line of the soprano."""
    grid = corpus.document(corpus.names.index("bwv269"))[1:].reshape(-1, 4).astype(int) + 28
    assert len(grid) == 21 * 12
    assert grid[0].tolist() == [67, 62, 59, 43]
    soprano = grid[:40, 0]
    line = soprano[np.r_[True, soprano[1:] != soprano[:-1]]].tolist()
    assert line[:6] == [67, 74, 71, 69, 67, 69]


FAMOUS = {
    "O Haupt voll Blut und Wunden": "135.6 153.5 161.6 244.15 244.17 244.44 244.54 244.62 248.5 248.64-s 270 271",
    "Jesu, meine Freude": "64.8 81.7 87.7 227.1 227.7 227.11 358",
    "Was mein Gott will": "65.7 72.6 92.9 103.6 111.6 144.6 244.25",
    "Ein feste Burg": "80.8 302 303",
    "Werde munter, mein Gemuete": "55.5 146.8 154.3 244.40 359 360",
    "Wer nur den lieben Gott": "84.5 88.7 93.7 166.6 179.6 197.10 434",
}


def test_settings_of_one_melody_stay_together(corpus):
    found = {}
    for title, numbers in FAMOUS.items():
        places = [corpus.names.index(f"bwv{number}") for number in numbers.split()]
        found[title] = set(corpus.clusters[places].tolist())
        assert len(found[title]) == 1, title
        assert len(set(corpus.splits[places].tolist())) == 1, title
    assert len(set.union(*found.values())) == len(FAMOUS), "different melodies were joined"
