"""REMI: tokens on a time grid, and valid and invalid MIDI files."""

import io
from collections import Counter

import mido
import numpy as np
import pretty_midi
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from maestro_support import STEP, as_notes, content, midi_of, music, same, units

from bearings.core.errors import UserError
from bearings.domains import midi_files, remi
from bearings.domains.maestro import Maestro


def names_of(tokenizer: str, ids) -> list[str]:
    names = {number: token for token, number in remi.remi(tokenizer).miditok.vocab.items()}
    return [names[int(number)].removesuffix("_None") for number in ids]


notes_on_the_grid = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(1, 24), st.integers(21, 108), st.integers(1, 127)),
    min_size=1,
    max_size=40,
).map(lambda notes: sorted(notes, key=lambda note: (note[0], note[2], note[1])))


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


def test_vocabularies():
    kinds = {name: Counter(token.split("_")[0] for token in remi.remi(name).miditok.vocab) for name in remi.SETTINGS}
    special = {"PAD": 1, "BOS": 1, "EOS": 1, "MASK": 1, "Bar": 1, "Pitch": 88, "Velocity": 32}
    assert kinds["fine"] == special | {"Duration": 92, "Position": 96}
    assert kinds["pope"] == special | {"Duration": 64, "Position": 32, "Chord": 14, "Tempo": 32, "PitchDrum": 61}
    assert (Maestro().vocabulary, Maestro(tokenizer="pope").vocabulary) == (313, 328)
    for name in remi.SETTINGS:
        vocabulary = remi.remi(name).miditok.vocab
        assert (vocabulary["PAD_None"], vocabulary["BOS_None"], vocabulary["EOS_None"]) == (0, remi.START, remi.END)
        assert [vocabulary[f"Pitch_{pitch}"] for pitch in range(21, 109)] == remi.remi(name).pitch_ids.tolist()


@settings(max_examples=60)
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


@settings(max_examples=30)
@given(st.integers(0, 1000), st.sampled_from(["fine", "pope"]))
def test_written_file_round_trips(tmp_path_factory, seed, tokenizer):
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
    assert (score.name, picture.name) == ("sample-0.5.mid", "sample-0.5.svg")
    again = pretty_midi.PrettyMIDI(str(score))
    again.instruments[0].notes.sort(key=lambda note: (round(note.start / STEP), note.pitch))
    assert same(again, music(1))
    assert picture.read_text().startswith("<svg ")


@pytest.mark.parametrize(("tokenizer", "half"), [("fine", 1 / 96), ("pope", 1 / 32)])
def test_tempo_and_resolution_are_converted_to_seconds(tmp_path, tokenizer, half):
    """Onsets and releases are rounded to the nearest grid point, for any ticks per quarter and with tempo changes."""
    domain = Maestro(tokenizer=tokenizer)
    file = mido.MidiFile(ticks_per_beat=220)
    tempi, track = mido.MidiTrack(), mido.MidiTrack()
    tempi += [mido.MetaMessage("set_tempo", tempo=705_882), mido.MetaMessage("set_tempo", tempo=260_000, time=1000)]
    for n in range(60):  # a note every 77 ticks, 60 of them long
        track += [mido.Message("note_on", note=40 + n, velocity=70, time=17 if n else 0)]
        track += [mido.Message("note_on", note=40 + n, velocity=0, time=60)]
    file.tracks += [tempi, track]
    file.save(tmp_path / "x.mid")
    ticks = 77 * np.arange(60)[:, None] + [0, 60]
    expected = (np.minimum(ticks, 1000) * 0.705882 + np.maximum(ticks - 1000, 0) * 0.26) / 220
    notes = domain.decode(domain.encode_file(tmp_path / "x.mid")).instruments[0].notes
    error = np.abs(np.array([(note.start, note.end) for note in notes]) - expected).max(0)
    assert (error <= half + 1e-9).all()
    assert (error > half / 2).all()


def test_long_notes_are_cut_and_short_ones_kept():
    decoded = Maestro().decode(
        Maestro().codec.encode(remi.Notes(*np.array([[0, 0], [0.001, 9.5], [60, 61], [64, 64]])))
    )
    assert [note.end for note in decoded.instruments[0].notes] == pytest.approx([STEP, 6])


def test_decode_accepts_any_ids():
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


def test_units_of_unusual_sequences():
    domain = Maestro()
    vocabulary = domain.codec.miditok.vocab
    late, early, bar = vocabulary["Position_90"], vocabulary["Position_5"], vocabulary["Bar_None"]
    weights = domain.unit_weights(np.array([1, bar, late, early, bar, early, 2, bar, 2]))["second"]
    assert (weights / STEP).round(9).tolist() == [0, 0, 90, 0, 6, 5, 0, 91, 0]
    for ids in ([1], [1, 2], [2, 2], [vocabulary["Pitch_60"], 2]):
        assert domain.unit_weights(np.array(ids))["second"].tolist() == [0] * len(ids)


def track(*events: bytes) -> bytes:
    body = b"".join(events) + b"\x00\xff\x2f\x00"
    return b"MTrk" + len(body).to_bytes(4) + body


def file_of(*tracks: bytes, division: int = 480, kind: int = 1) -> bytes:
    return b"MThd\x00\x00\x00\x06" + b"".join(n.to_bytes(2) for n in (kind, len(tracks), division)) + b"".join(tracks)


NOTE = b"\x00\x90\x3c\x40\x81\x70\x80\x3c\x40"


def test_note_on_count_matches_mido():
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
        assert midi_files.note_ons(buffer.getvalue()) == wanted


def test_running_status_and_unknown_chunks():
    running = track(b"\x00\x90\x3c\x40", b"\x0a\x3e\x40", b"\x0a\x3c\x00", b"\x00\xff\x01\x01x", b"\x0a\x3e\x00")
    notes, count = remi.read(file_of(b"XYZW\x00\x00\x00\x03abc" + running))
    assert (count, notes.pitch.tolist()) == (2, [60, 62])


def test_drums_do_not_count_and_tracks_are_merged():
    drums = track(NOTE.replace(b"\x90", b"\x99").replace(b"\x80", b"\x89"))
    high = track(NOTE.replace(b"\x3c", b"\x48"))
    notes, count = remi.read(file_of(drums, high, track(NOTE)))
    assert (count, sorted(notes.pitch.tolist())) == (2, [60, 72])
    with pytest.raises(ValueError, match="only drum notes"):
        remi.read(file_of(drums))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "an empty file"),
        (b"MThd", "no MIDI header"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "no MIDI header"),
        (b"RIFF" + file_of(track(NOTE)), "no MIDI header"),
        (file_of(track(NOTE))[:14], "cut short: 1 of its tracks are missing"),
        (file_of(track(NOTE), track(NOTE))[: -len(track(NOTE))], "cut short: 1 of its tracks"),
        (file_of(track(NOTE))[:-3], "cut short: a chunk that begins at byte 14 needs 3 bytes more"),
        (file_of(track(NOTE))[:18], "cut short: a chunk that begins at byte 14"),
        (file_of(track(NOTE)) + b"xx", "cut short: a chunk that begins at byte 35"),
        (file_of(track(NOTE), division=0xE728), "its time unit is 0xe728"),
        (file_of(track(NOTE), division=0), "its time unit is 0x0000"),
        (file_of(track(b"\x00\x40\x40")), "damaged: byte 23 belongs to no event"),
        (file_of(track(b"\x00\xff\x01\x7fx")), "damaged: an event runs over the end of its track"),
        (file_of(track(NOTE[:-1])), "damaged"),
        (file_of(track()), r"no notes(?! but)"),
        (file_of(track(NOTE.replace(b"\x3c", b"\x14"))), r"pitches 20\.\.20 are outside a piano's 21\.\.108"),
        (file_of(track(NOTE.replace(b"\x3c", b"\x6d"))), r"pitches 109\.\.109 are outside"),
        (file_of(track(b"\xff\xff\xff\x7f" + NOTE[1:]), division=24), "it lasts 1,553 hours, more than 24"),
    ],
)
def test_files_without_piano_music_raise(tmp_path, data, message):
    with pytest.raises(ValueError, match=message):
        remi.read(data)
    path = tmp_path / "x.mid"
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"x\.mid cannot be read as piano music \(" + message):
        Maestro().encode_file(path)


@settings(max_examples=200)
@given(st.data())
def test_damaged_file_is_read_or_raises_value_error(data):
    whole = bytearray(content(midi_of(music(4, 10))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        notes, _ = remi.read(bytes(whole))
    except ValueError:
        return
    assert notes.pitch.min() >= 21


def test_invalid_prompt_paths_raise(tmp_path):
    with pytest.raises(UserError, match=r"y\.mid does not exist"):
        Maestro().encode_file(tmp_path / "y.mid")
    with pytest.raises(UserError, match="cannot be read as piano music"):
        Maestro().encode_file(tmp_path)
