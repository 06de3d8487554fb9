"""Bach's chorales: tokens, both sources, melodies and splits, and what a person sees and hears."""

import json
import os
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pretty_midi
import pytest
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from matplotlib.image import imread
from omegaconf import OmegaConf

from bearings.domains import chorales, melodies
from bearings.domains.jsb import JSB, SHA256
from bearings.domains.store import SPLITS
from bearings.errors import UserError

REPOSITORY = Path(__file__).parent.parent
DATA = Path(os.environ.get("BEARINGS_DATA", REPOSITORY.parent / "shared" / "data"))
FILE = DATA / "jsb-chorales" / "Jsb16thSeparated.json"
needs_file = pytest.mark.skipif(not FILE.exists(), reason=f"{FILE} is absent; set BEARINGS_DATA to its data folder")

pitches = st.one_of(st.just(-1), st.integers(chorales.LOWEST, chorales.HIGHEST))
grids = arrays.arrays(np.int16, st.tuples(st.integers(0, 40), st.just(4)), elements=pitches)


def roll(midi: pretty_midi.PrettyMIDI, steps: int) -> np.ndarray:
    """`[steps, 4]` pitches as heard at the middle of each 16th at 80 quarters a minute; -1 where a voice is silent."""
    grid = np.full((steps, 4), -1)
    moments = (np.arange(steps) + 0.5) * 60 / 80 / 4
    for voice, name in enumerate(("Soprano", "Alto", "Tenor", "Bass")):
        (instrument,) = [instrument for instrument in midi.instruments if instrument.name == name]
        for note in instrument.notes:
            grid[(note.start <= moments) & (moments < note.end), voice] = note.pitch
    return grid


def count(grid: np.ndarray) -> dict[str, float]:
    """Notes and steps of a grid, one cell at a time."""
    notes = 0
    for voice in range(4):
        sounding = -1
        for pitch in grid[:, voice]:
            notes += pitch not in (-1, sounding)
            sounding = pitch
    return {"note": notes, "step": len(grid)}


def musicxml(voices: dict[str, list]) -> str:
    """A one-measure score. Voices are lists of (pitch or chord or None, 16ths[, "start"/"stop" of a tie | "grace"])."""

    def note(pitch, length, mark=None):
        found = []
        for place, one in enumerate(pitch if isinstance(pitch, tuple) else (pitch,)):
            step = "CCDDEFFGGAAB"[one % 12] if one is not None else ""
            sound = (
                "<rest/>"
                if one is None
                else f"<pitch><step>{step}</step><alter>{one % 12 in (1, 3, 6, 8, 10):d}</alter>"
                f"<octave>{one // 12 - 1}</octave></pitch>"
            )
            duration = "" if mark == "grace" else f"<duration>{round(length * 4)}</duration>"
            tie = f'<tie type="{mark}"/>' if mark in ("start", "stop") else ""
            head = ("<grace/>" if mark == "grace" else "") + ("<chord/>" if place else "")
            found.append(f"<note>{head}{sound}{duration}{tie}</note>")
        return "".join(found)

    names = "".join(
        f'<score-part id="P{i}"><part-name>{name}</part-name></score-part>' for i, name in enumerate(voices)
    )
    parts = "".join(
        f'<part id="P{i}"><measure number="1"><attributes><divisions>16</divisions></attributes>'
        f"{''.join(note(*entry) for entry in voice)}</measure></part>"
        for i, voice in enumerate(voices.values())
    )
    return f'<score-partwise version="3.0"><part-list>{names}</part-list>{parts}</score-partwise>'


def runs(column: np.ndarray) -> list[tuple]:
    """A voice of a grid as notes of at most 4 sixteenths; what is longer is repeated, and every other time tied."""
    found = []
    for pitch in column.tolist():
        if found and found[-1][0] == pitch and found[-1][1] < 4:
            found[-1][1] += 1
        else:
            found.append([pitch, 1])
    notes = [(None if pitch < 0 else pitch, length) for pitch, length in found]
    for place in range(0, len(notes) - 1, 2):
        if notes[place][0] is not None and notes[place][0] == notes[place + 1][0]:
            notes[place], notes[place + 1] = (*notes[place], "start"), (*notes[place + 1], "stop")
    return notes


def random_grid(random: np.random.Generator, steps: int) -> np.ndarray:
    """Four voices of held notes and an occasional rest; the last step sounds, so that the length shows."""
    grid = np.full((steps, 4), -1)
    for voice, (low, high) in enumerate([(60, 81), (53, 74), (48, 69), (36, 64)]):
        step = 0
        while step < steps:
            length = int(random.integers(1, 9))
            grid[step : step + length, voice] = -1 if random.random() < 0.1 else random.integers(low, high + 1)
            step += length
        grid[-1, voice] = low
    return grid


def sample(folder: Path) -> SimpleNamespace:
    """Twelve small scores for the laws of every domain (test_domain_laws.py says what the fields are)."""
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


# ---- tokens


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


@settings(max_examples=20, deadline=None)
@given(grids)
def test_the_midi_file_holds_the_same_music(tmp_path_factory, grid):
    path = tmp_path_factory.mktemp("midi") / "piece.mid"
    JSB().decode(JSB().encode(grid)).write(str(path))
    again = pretty_midi.PrettyMIDI(str(path))
    silent = {"Soprano", "Alto", "Tenor", "Bass"} - {instrument.name for instrument in again.instruments}
    again.instruments += [pretty_midi.Instrument(0, name=name) for name in silent]
    assert np.array_equal(roll(again, len(grid)), grid)


def notes(midi):
    return {i.name: [(note.pitch, note.start, note.end) for note in i.notes] for i in midi.instruments}


@settings(max_examples=30, deadline=None)
@given(grids)
def test_a_rendered_file_is_a_prompt_that_encodes_back(tmp_path_factory, grid):
    domain, folder = JSB(), tmp_path_factory.mktemp("prompt")
    (score, _) = domain.render(domain.decode(domain.encode(grid)), folder / "piece")
    again = domain.encode_file(score)
    sounding = len(grid) - int((grid[::-1] != -1).any(1).argmax()) if (grid != -1).any() else 0
    assert again.tolist() == domain.encode(grid[:sounding]).tolist()


@pytest.mark.parametrize("text", [b"", b"MThd", b"hello, this is no music at all"])
def test_a_prompt_that_is_no_midi_is_refused(tmp_path, text):
    (tmp_path / "x.mid").write_bytes(text)
    with pytest.raises(UserError, match=r"x\.mid cannot be read as MIDI"):
        JSB().encode_file(tmp_path / "x.mid")
    with pytest.raises(UserError, match="is not there"):
        JSB().encode_file(tmp_path / "y.mid")


def test_a_prompt_of_two_voices_or_unknown_pitches_is_refused(tmp_path):
    midi = pretty_midi.PrettyMIDI()
    midi.instruments = [pretty_midi.Instrument(0) for _ in range(2)]
    for instrument in midi.instruments:
        instrument.notes.append(pretty_midi.Note(90, 100, 0, 1))
    midi.write(str(tmp_path / "two.mid"))
    with pytest.raises(UserError, match="2 instruments"):
        JSB().encode_file(tmp_path / "two.mid")
    midi.instruments *= 2
    midi.write(str(tmp_path / "high.mid"))
    with pytest.raises(UserError, match=r"pitch 100: 30\.\.87"):
        JSB().encode_file(tmp_path / "high.mid")


def test_decode_takes_any_ids():
    domain = JSB()
    assert notes(domain.decode([])) == {"Soprano": [], "Alto": [], "Tenor": [], "Bass": []}
    # start tokens are skipped wherever they are; ids that mean nothing are rests, and so is what a ragged tail lacks
    ids = [0, 44, 60, -5, 10**30, 0, 44, 2, 59]
    assert notes(domain.decode(ids)) == {
        "Soprano": [(72, 0, 0.375)],
        "Alto": [(30, 0.1875, 0.375)],
        "Tenor": [(87, 0.1875, 0.375)],
        "Bass": [],
    }
    assert notes(domain.decode(np.array(ids[5:], np.uint8)))["Tenor"] == [(87, 0, 0.1875)]


@pytest.mark.parametrize("transpose", [-1, 7, 100])
def test_transposition_out_of_reach_is_refused(transpose):
    with pytest.raises(ValueError, match=f"transpose is {transpose}: 0 to 6"):
        JSB(transpose=transpose)


def test_an_unknown_source_is_refused():
    with pytest.raises(ValueError, match="music21 or separated16"):
        JSB(source="midi")


@pytest.mark.parametrize("most", [1, 6])
def test_augment_draws_every_transposition_evenly(most):
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


def test_no_transposition_changes_nothing_and_draws_nothing():
    random = np.random.default_rng(0)
    before = random.bit_generator.state
    window = np.array([0, 8, 9, 10, 11])
    assert JSB().augment(window, random).tolist() == window.tolist()
    assert random.bit_generator.state == before


def test_the_shipped_configuration():
    domain = instantiate(OmegaConf.load(REPOSITORY / "configs" / "domain" / "jsb.yaml"))
    assert (domain.source, domain.path, domain.transpose) == ("music21", None, 3)
    assert domain.urls == list(JSB().urls)


# ---- the published file


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return JSB("separated16", str(FILE)).prepare(tmp_path_factory.mktemp("published"))


@needs_file
def test_the_published_file_has_the_published_figures(published):
    counts = [
        (len(published.documents(part)), published.unit_counts(part)["step"], published.targets(part))
        for part in SPLITS
    ]
    assert counts == [(229, 55_228, 220_912), (76, 18_408, 73_632), (77, 18_900, 75_600)]
    used = np.unique(published.tokens)
    assert used[0] == 0  # the start token, beside the file's 47 values
    assert len(used) - 1 == 47
    assert (used[1], used[2] + 28, used[-1] + 28) == (1, 36, 81)
    assert np.diff(published.offsets).max() - 1 == 2560


@needs_file
def test_the_published_pieces_come_back_as_they_are(published):
    domain, pieces = JSB(), json.loads(FILE.read_text())
    for index in range(0, 382, 7):
        part, number = published.names[index].split("/")
        piece = np.array(pieces[part][int(number)])
        assert SPLITS[published.splits[index]] == part
        assert np.array_equal(roll(domain.decode(published.document(index)), len(piece)), piece)
        assert dict(zip(domain.units, published.units[index], strict=True)) == count(piece)


@needs_file
def test_what_the_published_split_shares_is_recorded(published):
    """Its test melodies mostly occur in train, set otherwise. No setting occurs twice."""
    assert published.manifest["melodies"] == 195
    assert published.manifest["melody_also_in_train"] == {"valid": 37, "test": 51}
    assert published.manifest["duplicates_kept"] == {}
    train = set(published.clusters[published.documents("train")])
    assert sum(label in train for label in published.clusters[published.documents("test")]) == 51


@needs_file
@pytest.mark.parametrize("change", ["truncate", "flip", "empty"])
def test_another_file_is_refused(tmp_path, change):
    data = FILE.read_bytes()
    path = tmp_path / "given.json"
    path.write_bytes({"truncate": data[:-9], "flip": data[:500] + b"7" + data[501:], "empty": b""}[change])
    with pytest.raises(UserError) as caught:
        JSB("separated16", str(path)).prepare(tmp_path / "root")
    assert str(path) in str(caught.value)
    assert SHA256[:12] in str(caught.value)
    assert [found.suffix for found in (tmp_path / "root" / "jsb").iterdir()] == [".lock"]


@needs_file
def test_the_published_file_is_downloaded_from_its_mirrors(tmp_path, monkeypatch, published):
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


def test_offline_says_which_file_and_which_override(tmp_path):
    with pytest.raises(UserError, match=r"no URL.*domain\.path=/where/you/put/Jsb16thSeparated\.json"):
        JSB("separated16", urls=[]).prepare(tmp_path)


# ---- music21's corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The whole corpus, read once however many test processes there are."""
    base = tmp_path_factory.getbasetemp()
    return JSB().prepare((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "corpus")


def test_the_corpus_is_whole_and_split_as_promised(corpus):
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
def test_the_corpus_has_these_figures(corpus):
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


def test_a_chorale_everybody_knows(corpus):
    """BWV 269, Aus meines Herzens Grunde: 21 bars of 3/4, upbeat on G major, the soprano's first line."""
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


def test_settings_of_one_famous_melody_stay_together(corpus):
    found = {}
    for title, numbers in FAMOUS.items():
        places = [corpus.names.index(f"bwv{number}") for number in numbers.split()]
        found[title] = set(corpus.clusters[places].tolist())
        assert len(found[title]) == 1, title
        assert len(set(corpus.splits[places].tolist())) == 1, title
    assert len(set.union(*found.values())) == len(FAMOUS), "different melodies were joined"


# ---- reading a score

LINE = [(67, 4), (69, 4), (71, 4), (72, 4)]
FOUR = {"Soprano": LINE, "Alto": [(64, 16)], "Tenor": [(60, 16)], "Bass": [(48, 16)]}


def read(folder, voices):
    (folder / "score.xml").write_text(musicxml(voices))
    return chorales.read(folder / "score.xml")


def test_ties_graces_and_notes_between_grid_points(tmp_path):
    voices = {
        "Soprano": [(67, 3, "start"), (67, 5, "stop"), (74, 0, "grace"), (69, 4), (None, 4)],
        "Alto": [(64, 0.5), (65, 0.25), (66, 0.25), (62, 15)],
        "Tenor": [(60, 1.5), (59, 14.5)],
        "Bass": [(48, 8), (36, 8)],
    }
    grid = read(tmp_path, voices)
    assert grid[:, 0].tolist() == [67] * 8 + [69] * 4 + [-1] * 4
    assert grid[:, 1].tolist() == [64] + [62] * 15  # 65 and 66 begin and end between two points
    assert grid[:, 2].tolist() == [60, 60] + [59] * 14
    assert grid[:, 3].tolist() == [48] * 8 + [36] * 8


def test_the_higher_of_two_notes_in_a_voice(tmp_path):
    assert read(tmp_path, FOUR | {"Alto": [((60, 64), 16)]})[:, 1].tolist() == [64] * 16


def test_instruments_and_the_order_of_parts_do_not_matter(tmp_path):
    plain = read(tmp_path, FOUR)
    named = {"Horn 1": LINE, "Bass Continuo": FOUR["Bass"], "Soprano Oboe 1": LINE}
    assert np.array_equal(plain, read(tmp_path, named | {"Alto": FOUR["Alto"], "Tenor": FOUR["Tenor"]}))


@pytest.mark.parametrize(
    ("voices", "reason"),
    [
        ({"Soprano 1": LINE, "Soprano 2": LINE, "Alto": LINE, "Tenor": LINE, "Bass": LINE}, "not one part each"),
        ({"Piano": LINE}, "not one part each"),
        ({name: [(None, 16)] for name in FOUR}, "no notes"),
        ({name: [(60, 6), (None, 6), (60, 4)] for name in FOUR}, "all voices rest for over 25%"),
        (FOUR | {"Bass": [(35, 16)]}, "pitches 35..72 leave 36..81"),
        (FOUR | {"Soprano": [(82, 16)]}, "pitches 48..82 leave 36..81"),
    ],
)
def test_scores_that_are_turned_down(tmp_path, voices, reason):
    assert reason in read(tmp_path, voices)


@pytest.mark.parametrize("text", ["<html><body/></html>", "hello", ""])
def test_what_is_no_score_is_an_error_with_a_place(tmp_path, text):
    (tmp_path / "score.xml").write_text(text)
    with pytest.raises(UserError, match=r"score\.xml cannot be read as a MusicXML score \(.+\)"):
        chorales.read(tmp_path / "score.xml")


def test_many_scores_are_read_in_parallel_and_in_order(tmp_path):
    paths = []
    for pitch in range(40, 80):
        path = tmp_path / f"bwv{pitch}.xml"
        path.write_text(musicxml(FOUR | {"Soprano": [(pitch, 16)]}))
        paths.append(path)
    assert [grid[0, 0] for grid in chorales.read_all(paths)] == list(range(40, 80))
    paths[30].write_text("nonsense")
    with pytest.raises(UserError, match=r"bwv70\.xml cannot be read"):
        chorales.read_all(paths)


def test_folders_that_do_not_serve(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        JSB(path=str(tmp_path / "none")).prepare(tmp_path / "root")
    (tmp_path / "readme.txt").write_text("no music")
    with pytest.raises(UserError, match="holds no score"):
        JSB(path=str(tmp_path)).prepare(tmp_path / "root")
    (tmp_path / "piano.xml").write_text(musicxml({"Piano": LINE}))
    with pytest.raises(UserError, match=r"none of 1 scores in .* can be used \(piano: not one part"):
        JSB(path=str(tmp_path)).prepare(tmp_path / "root")
    (tmp_path / "piano.musicxml").write_text(musicxml({"Piano": LINE}))
    with pytest.raises(UserError, match=r"piano\.\w+ and piano\.\w+ bear one name"):
        JSB(path=str(tmp_path)).prepare(tmp_path / "root")
    assert [path.suffix for path in (tmp_path / "root" / "jsb").iterdir()] == [".lock"]


def test_changed_scores_are_another_store(tmp_path):
    domain = JSB(path=str(tmp_path))
    (tmp_path / "piece.xml").write_text(musicxml(FOUR))
    before = domain.options()
    assert domain.options() == before
    (tmp_path / "piece.xml").write_text(musicxml(FOUR | {"Bass": [(47, 16)]}))
    assert domain.options() != before
    assert "music21" not in JSB("separated16").options()


def test_scores_come_in_the_order_of_their_numbers(tmp_path):
    names = ["bwv10.7", "bwv9.7", "bwv248.23-s", "bwv248.5", "bwv190.7-inst", "bwv190.7"]
    ordered = ["bwv9.7", "bwv10.7", "bwv190.7", "bwv190.7-inst", "bwv248.5", "bwv248.23-s"]
    for name in [*names, "readme"]:
        (tmp_path / f"{name}.{'txt' if name == 'readme' else 'mxl'}").touch()
    assert [path.stem for path in chorales.scores(tmp_path)] == ordered


# ---- melodies


def melody(*pitches, length=4):
    return np.repeat(np.stack([pitches, *[np.full(len(pitches), 48)] * 3], 1), length, axis=0)


ONE = (60, 62, 64, 65, 67, 69, 67, 65, 64, 62, 60, 67, 64, 60)
TWO = (72, 71, 72, 67, 69, 67, 65, 67, 60, 72, 65, 62, 71, 72)


def test_one_melody_in_another_key_metre_and_figuration():
    sung = melody(*ONE)
    figured = sung.copy()
    figured[2::8, 0] += 1  # passing notes off the beat
    again = {
        "sung": sung,
        "other": melody(*TWO),
        "higher": np.where(sung > 48, sung + 5, sung),
        "slower": melody(*ONE, length=8),
        "repeated": melody(*np.repeat(ONE, 3)),
        "figured": figured,
    }
    labels = melodies.clusters(again)
    assert labels == dict.fromkeys(again, "sung") | {"other": "other"}


def test_sameness_is_passed_on_and_titles_join():
    pieces = {"a": melody(*ONE), "b": melody(*ONE, *TWO), "c": melody(*TWO), "d": melody(60, 61, 60)}
    assert set(melodies.clusters(pieces).values()) == {"a", "d"}
    late = {name: pieces[name] for name in "acb"}
    assert set(melodies.clusters(late).values()) == {"a"}, "b joins two clusters that were there already"
    assert set(melodies.clusters(pieces, {"d": "Lobt Gott", "c": "Lobt Gott"}).values()) == {"a"}
    assert set(melodies.clusters(pieces, {"d": "Lobt Gott", "c": "Nun lob"}).values()) == {"a", "d"}


def test_silent_and_held_sopranos_are_alone():
    pieces = {"silent": np.full((16, 4), -1), "held": melody(60, 60), "held too": melody(60, 60)}
    assert len(set(melodies.clusters(pieces).values())) == 3
    assert melodies.duplicates(pieces) == {"held too": "held"}


def test_duplicates_up_to_key_and_outer_silence():
    piece = melody(*ONE)
    silence = np.full((8, 4), -1)
    variant = piece.copy()
    variant[9, 2] = 50
    pieces = {
        "first": piece,
        "higher": piece + 3,
        "late": np.concatenate([silence, piece, silence]),
        "broken": np.concatenate([piece[:16], silence, piece[16:]]),
        "variant": variant,
    }
    assert melodies.duplicates(pieces) == {"higher": "first", "late": "first"}


def test_clusters_are_split_whole_and_in_proportion():
    sizes = np.random.default_rng(0).integers(1, 6, 100)
    labels = {f"{cluster}.{i}": str(cluster) for cluster, size in enumerate(sizes) for i in range(size)}
    splits = melodies.split(labels, (3, 1, 1))
    assert len({(labels[name], part) for name, part in splits.items()}) == 100
    parts = np.array([list(splits.values()).count(part) for part in SPLITS]) / len(labels)
    assert np.abs(parts - [0.6, 0.2, 0.2]).max() < 0.02
    assert melodies.shared(labels, splits) == {"valid": 0, "test": 0}
    assert melodies.shared({"a": "x", "b": "x", "c": "y"}, {"a": "train", "b": "test", "c": "valid"}) == {
        "valid": 0,
        "test": 1,
    }


# ---- what a person opens


def render(folder, ids):
    score, picture = JSB().render(JSB().decode(ids), folder / "sample-0.5")
    assert (score.name, picture.name) == ("sample-0.5.mid", "sample-0.5.png")
    assert pretty_midi.PrettyMIDI(str(score)).resolution == 480
    return imread(picture)


def near(picture, colour):
    """Number of pixels of `colour` below the legend."""
    return (np.abs(picture[50:, :, :3] - np.array(colour) / 255).max(-1) < 0.02).sum()


SOPRANO, BASS = (213, 94, 0), (204, 121, 167)


def test_a_picture_shows_each_voice_in_its_colour(tmp_path):
    picture = render(tmp_path, JSB().encode(np.array([[72, -1, -1, 48]] * 8 + [[-1, -1, -1, 48]] * 8)))
    soprano, bass = near(picture, SOPRANO), near(picture, BASS)
    assert soprano > 1000
    assert bass > soprano  # twice as long, though drawn thinner
    assert near(picture, (0, 114, 178)) == 0


def test_music_of_any_length_makes_a_picture_of_a_sane_size(tmp_path):
    random = np.random.default_rng(0)
    assert near(render(tmp_path, []), SOPRANO) == 0
    for tokens in (3, 41, 2_560, 8_000):
        height, width, _ = render(tmp_path, random.integers(2, 60, tokens)).shape
        assert 200 < height < 5000
        assert 500 < width < 1500


def test_the_domain_loads_neither_torch_nor_music21_nor_global_plot_state():
    code = "import sys, bearings.domains.jsb; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "bearings.domains.pianoroll" in found
    assert not {"torch", "music21", "matplotlib.pyplot"} & set(found)
