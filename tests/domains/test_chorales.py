"""Scores of chorales: reading, rejected scores, and folders of scores."""

from pathlib import Path

import numpy as np
import pytest
from jsb_support import musicxml

from bearings.core.errors import UserError
from bearings.domains import chorales
from bearings.domains.jsb import JSB

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
    assert grid[:, 1].tolist() == [64] + [62] * 15  # 65 and 66 begin and end between two grid points
    assert grid[:, 2].tolist() == [60, 60] + [59] * 14
    assert grid[:, 3].tolist() == [48] * 8 + [36] * 8


def test_higher_of_two_notes_is_used(tmp_path):
    assert read(tmp_path, FOUR | {"Alto": [((60, 64), 16)]})[:, 1].tolist() == [64] * 16


def test_other_instruments_and_part_order_are_ignored(tmp_path):
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
        (FOUR | {"Bass": [(35, 16)]}, "pitches 35..72 are outside 36..81"),
        (FOUR | {"Soprano": [(82, 16)]}, "pitches 48..82 are outside 36..81"),
    ],
)
def test_rejected_scores(tmp_path, voices, reason):
    assert reason in read(tmp_path, voices)


@pytest.mark.parametrize("text", ["<html><body/></html>", "hello", ""])
def test_invalid_score_raises(tmp_path, text):
    (tmp_path / "score.xml").write_text(text)
    with pytest.raises(UserError, match=r"score\.xml cannot be read as a MusicXML score \(.+\)"):
        chorales.read(tmp_path / "score.xml")


def test_scores_are_read_in_parallel_and_in_order(tmp_path):
    paths = []
    for pitch in range(40, 80):
        path = tmp_path / f"bwv{pitch}.xml"
        path.write_text(musicxml(FOUR | {"Soprano": [(pitch, 16)]}))
        paths.append(path)
    assert [grid[0, 0] for grid in chorales.read_all(paths)] == list(range(40, 80))
    paths[30].write_text("nonsense")
    with pytest.raises(UserError, match=r"bwv70\.xml cannot be read"):
        chorales.read_all(paths)


def test_invalid_folders_raise(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        JSB(path=str(tmp_path / "none")).prepare(tmp_path / "root")
    (tmp_path / "readme.txt").write_text("no music")
    with pytest.raises(UserError, match="contains no scores"):
        JSB(path=str(tmp_path)).prepare(tmp_path / "root")
    (tmp_path / "piano.xml").write_text(musicxml({"Piano": LINE}))
    with pytest.raises(UserError, match=r"none of 1 scores in .* can be used \(piano: not one part"):
        JSB(path=str(tmp_path)).prepare(tmp_path / "root")
    (tmp_path / "piano.musicxml").write_text(musicxml({"Piano": LINE}))
    with pytest.raises(UserError, match=r"piano\.\w+ and piano\.\w+ have the same name"):
        JSB(path=str(tmp_path)).prepare(tmp_path / "root")
    assert [path.suffix for path in (tmp_path / "root" / "jsb").iterdir()] == [".lock"]


def test_changed_scores_change_the_store(tmp_path):
    domain = JSB(path=str(tmp_path))
    (tmp_path / "piece.xml").write_text(musicxml(FOUR))
    before = domain.options()
    assert domain.options() == before
    (tmp_path / "piece.xml").write_text(musicxml(FOUR | {"Bass": [(47, 16)]}))
    assert domain.options() != before
    assert "music21" not in JSB("separated16").options()


def test_scores_are_sorted_by_number(tmp_path):
    names = ["bwv10.7", "bwv9.7", "bwv248.23-s", "bwv248.5", "bwv190.7-inst", "bwv190.7"]
    ordered = ["bwv9.7", "bwv10.7", "bwv190.7", "bwv190.7-inst", "bwv248.5", "bwv248.23-s"]
    for name in [*names, "readme"]:
        (tmp_path / f"{name}.{'txt' if name == 'readme' else 'mxl'}").touch()
    assert [path.stem for path in chorales.scores(tmp_path)] == ordered


@pytest.mark.parametrize(("semitones", "octaves"), [(0, -1), (-2, 0)])
def test_transposed_parts_are_read_at_sounding_pitch(tmp_path, semitones, octaves):
    change = f"<chromatic>{semitones}</chromatic><octave-change>{octaves}</octave-change>"
    transpose = f"<transpose><diatonic>{semitones // 2}</diatonic>{change}</transpose></attributes>"
    before, tenor, after = musicxml(FOUR).partition('<part id="P2">')
    path = tmp_path / "x.musicxml"
    path.write_text(before + tenor + after)
    written = chorales.read(path)
    path.write_text(before + tenor + after.replace("</attributes>", transpose, 1))
    written[:, 2] += semitones + 12 * octaves
    assert np.array_equal(chorales.read(path), written)


def test_order_of_scores_does_not_depend_on_the_folder(tmp_path, monkeypatch):
    ordered = [tmp_path / name for name in ("bwv01.xml", "bwv1.xml", "bwv1².xml")]  # the first two are number 1
    for path in ordered:
        path.touch()
    for listed in (ordered, ordered[::-1]):
        monkeypatch.setattr(Path, "iterdir", lambda _, listed=listed: iter(listed))
        assert chorales.scores(tmp_path) == ordered
    listed = [tmp_path / name for name in ("bwv1.mxl", "bwv01.xml", "bwv1.xml")]
    listed[0].touch()
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(listed))
    with pytest.raises(UserError, match=r"bwv1\.mxl and bwv1\.xml have the same name without extension"):
        chorales.scores(tmp_path)
