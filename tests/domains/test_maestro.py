"""MAESTRO: transposition, arguments, files that are left out, and the real performances."""

import io
import json
import shutil
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pretty_midi
import pytest
from conftest import REPOSITORY
from hydra.utils import instantiate
from maestro_support import RELEASE, as_notes, content, midi_of, music, needs_release, refusal, sample
from omegaconf import OmegaConf

from bearings.domains import maestro
from bearings.domains.maestro import Maestro
from bearings.domains.performances import Release
from bearings.domains.store import SPLITS


@pytest.fixture
def source(tmp_path):
    """A release of twelve performances, as a folder."""
    return Path(sample(tmp_path / "maestro-v3.0.0").options["path"])


@pytest.mark.parametrize(
    ("lowest", "highest", "allowed"),
    [(60, 64, range(-3, 4)), (21, 64, range(4)), (22, 107, range(-1, 2)), (60, 107, range(-3, 2)), (21, 108, [0])],
)
def test_augment_draws_valid_transpositions_uniformly(lowest, highest, allowed):
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


def test_zero_transposition_changes_nothing():
    random = np.random.default_rng(0)
    before = random.bit_generator.state
    window = np.array([1, 4, 5, 95, 130])
    assert Maestro(transpose=0).augment(window, random).tolist() == window.tolist()
    assert Maestro(transpose=3).augment(window[:2], random).tolist() == window[:2].tolist()
    assert random.bit_generator.state == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"transpose": -1}, "transpose=-1: it must be at least 0"),
        ({"transpose": 13}, "transpose=13: it must be at most 12"),
        ({"split": "paper"}, "split='paper': it should be 'official' or 'random'"),
        ({"tokenizer": "bpe"}, "tokenizer='bpe': it should be 'fine' or 'pope'"),
    ],
)
def test_arguments_out_of_range_raise(given, message):
    with pytest.raises(ValueError, match=message):
        Maestro(**given)


def test_default_configuration():
    domain = instantiate(OmegaConf.load(REPOSITORY / "configs" / "domain" / "maestro.yaml"))
    assert (domain.path, domain.split, domain.tokenizer, domain.transpose) == (None, "official", "fine", 3)
    assert not domain.skip_unreadable
    assert domain.urls == list(Maestro().urls)
    assert domain.options()["sha256"] == maestro.SHA256


def test_options_determine_contents(source):
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


def test_a_split_of_only_skipped_files_is_explained(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    test, valid, *train = sorted((f"{number:02d}.mid" for number in range(12)), key=maestro._place)
    for number, name in enumerate((test, valid, *train)):
        (mine / name).write_bytes(content(midi_of(music(number))))
    (mine / test).write_bytes(b"")
    line = f"no file is left in test, because {test} is skipped (an empty file): replace or remove it"
    assert line in refusal(mine, tmp_path / "stores", split="random", skip_unreadable=True)
    later = max(train)
    assert later > valid  # copies of an earlier file are left out
    (mine / later).write_bytes((mine / valid).read_bytes())
    assert line in refusal(mine, tmp_path / "stores", split="random", skip_unreadable=True)
    for name in train[:-1]:
        (mine / name).write_bytes(b"")
    line = refusal(mine, tmp_path / "stores", split="random", skip_unreadable=True)
    assert "mine has 12 files, but only " in line
    assert "cannot be used: an empty file), and train, valid, test need one each: give more files" in line


@pytest.fixture(scope="module")
def some():
    """The first performance and three others from the first sixth of the release, as MIDI bytes."""
    return [data for _, data in islice(Release(RELEASE).read(), 0, 200, 50)]


@needs_release
@pytest.mark.parametrize(("tokenizer", "half"), [("fine", 1 / 96), ("pope", 1 / 32)])
def test_performances_round_trip_within_grid(some, tokenizer, half):
    domain = Maestro(tokenizer=tokenizer)
    assert len(some) == 4
    for data in some:
        midi = pretty_midi.PrettyMIDI(io.BytesIO(data))
        played = midi.instruments[0].notes
        tokens, note_ons = maestro.document(data, tokenizer, 0.0)
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
def test_release_has_published_figures():
    listed = Release(RELEASE).performances
    assert Counter(row.split for row in listed) == {"train": 962, "valid": 137, "test": 177}
    hours = {part: sum(row.seconds for row in listed if row.split == part) / 3600 for part in SPLITS}
    assert {part: round(hour, 2) for part, hour in hours.items()} == {"train": 159.24, "valid": 19.43, "test": 19.98}
    titles: dict[str, set] = {}
    for row in listed:
        titles.setdefault(row.composition, set()).add(row.split)
    assert (len(titles), sum(len(parts) > 1 for parts in titles.values())) == (777, 5)


@needs_release
def test_test_performances_of_the_random_split_are_divided_by_whether_their_composition_is_in_train():
    listed = Release(RELEASE).performances
    splits = Maestro(split="random")._splits(listed)
    test = [row for row in listed if splits[row.file] == "test"]
    train = {row.composition for row in listed if splits[row.file] == "train"}
    names = {True: "composition also in training", False: "new composition"}
    published = Maestro(str(RELEASE), split="random").content()
    assert [Maestro.subset(published, row.file) for row in test] == [names[row.composition in train] for row in test]
    assert Counter(row.composition in train for row in test) == {True: 33, False: 31}
    for other in ({**published, "split": "official"}, {**published, "sha256": "0" * 64}):
        assert {Maestro.subset(other, row.file) for row in test} == {None}


@needs_release
@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["fine", "pope"])
def test_whole_release(tmp_path, tokenizer):
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
