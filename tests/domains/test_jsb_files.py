"""A user's own files for the chorales: JSON of four voices, and ambiguous MIDI files."""

import json

import mido
import pytest

from bearings.core.errors import UserError
from bearings.domains import chorales
from bearings.domains.jsb import JSB, SHA256
from bearings.domains.maestro import Maestro


def own_file(path, **changed):
    """Write a JSON file with one piece per split."""
    piece = [[72, 67, 64, 48]] * 8 + [[-1, 67, 65, 36]] * 4
    path.write_text(json.dumps({"train": [piece, piece[::-1]], "valid": [piece[2:]], "test": [piece[4:]], **changed}))
    return JSB("separated16", str(path))


def test_own_file_is_recorded(tmp_path):
    domain = own_file(tmp_path / "mine.json")
    store = domain.prepare(tmp_path / "stores")
    assert store.manifest["documents"] == {"train": 2, "valid": 1, "test": 1}
    assert store.manifest["splits_by"] == "mine.json, which is not the published Jsb16thSeparated.json"
    assert store.names[2] == "valid/000"
    first, options = store.document(0), domain.options()
    assert first.tolist() == domain.encode([[72, 67, 64, 48]] * 8 + [[-1, 67, 65, 36]] * 4).tolist()
    assert options["sha256"] != SHA256
    assert own_file(tmp_path / "mine.json", test=[[[60, 55, 52, 48]]]).options() != options


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"test": [[[60, 64], [60]]]}, "test piece 0 has a different format: expected four voices on a 16th grid"),
        ({"valid": [[[60, 64, 67]]]}, "valid piece 0 has a different format: expected four voices on a 16th grid"),
        ({"valid": [[[60.5, 64, 67, 48]]]}, "valid piece 0 has a different format"),
        ({"valid": [[]]}, "valid piece 0 has a different format"),
        ({"valid": None}, "has no list of pieces named valid: expected four voices on a 16th grid"),
        ({"train": [[[60, 64, 67, 12]]]}, "train piece 0 has pitch 12, outside 36..81"),
    ],
)
def test_wrong_format_raises(tmp_path, changed, message):
    domain = own_file(tmp_path / "mine.json", **changed)
    with pytest.raises(UserError) as caught:
        domain.prepare(tmp_path / "stores")
    assert str(caught.value).startswith(f"{tmp_path / 'mine.json'}")
    assert message in str(caught.value)


def test_ambiguous_midi_raises(tmp_path):
    file = mido.MidiFile(type=1)
    for name in chorales.VOICES:
        on, off = mido.Message("note_on", note=60), mido.Message("note_off", note=60, time=480)
        file.tracks.append(mido.MidiTrack([mido.MetaMessage("track_name", name=name), on, off]))
    file.save(tmp_path / "good.mid")
    assert len(JSB().encode_file(tmp_path / "good.mid")) == 17
    file.type = 2
    file.save(tmp_path / "two.mid")
    file.type = 1
    file.tracks[2].append(mido.Message("note_on", note=64))
    file.save(tmp_path / "open.mid")
    for domain in (JSB(), Maestro()):
        with pytest.raises(UserError, match=r"open\.mid .*1 of its 5 notes have no end or zero length"):
            domain.encode_file(tmp_path / "open.mid")
        with pytest.raises(UserError, match=r"two\.mid .*format 2, whose 4 tracks are separate pieces"):
            domain.encode_file(tmp_path / "two.mid")
