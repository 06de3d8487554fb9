"""Melodies: clusters of settings, duplicates, and splits by cluster."""

import numpy as np

from bearings.domains import melodies, overlaps
from bearings.domains.store import SPLITS


def melody(*pitches, length=4):
    return np.repeat(np.stack([pitches, *[np.full(len(pitches), 48)] * 3], 1), length, axis=0)


ONE = (60, 62, 64, 65, 67, 69, 67, 65, 64, 62, 60, 67, 64, 60)
TWO = (72, 71, 72, 67, 69, 67, 65, 67, 60, 72, 65, 62, 71, 72)


def test_melody_in_different_key_metre_and_figuration():
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


def test_melodies_that_share_a_fifth_of_the_phrases_of_the_shorter_are_the_same():
    rest = np.random.default_rng(0).integers(50, 80, 60)
    assert len(melodies.phrases(melody(*ONE))) == len(ONE) - 1 - melodies.INTERVALS + 1

    def same(one, other):
        return len(set(melodies.clusters({"one": melody(*one), "other": melody(*other)}).values())) == 1

    assert same(ONE, (*ONE, *rest))
    ends = (65, 66, 65, 66), (68, 66, 68, 66)
    assert same(*((*ONE[:9], *end) for end in ends))  # one of five
    assert not same(*((*ONE[:9], *end, 70) for end in ends))  # one of six
    assert same((60, 62, 60), (65, 67, 65))  # shorter than a phrase


def test_clusters_are_transitive_and_joined_by_titles():
    pieces = {"a": melody(*ONE), "b": melody(*ONE, *TWO), "c": melody(*TWO), "d": melody(60, 61, 60)}
    assert set(melodies.clusters(pieces).values()) == {"a", "d"}
    late = {name: pieces[name] for name in "acb"}
    assert set(melodies.clusters(late).values()) == {"a"}, "b joins two clusters that were there already"
    assert set(melodies.clusters(pieces, {"d": "Lobt Gott", "c": "Lobt Gott"}).values()) == {"a"}
    assert set(melodies.clusters(pieces, {"d": "Lobt Gott", "c": "Nun lob"}).values()) == {"a", "d"}


def test_silent_and_held_sopranos_form_single_clusters():
    pieces = {"silent": np.full((16, 4), -1), "held": melody(60, 60), "held too": melody(60, 60)}
    assert len(set(melodies.clusters(pieces).values())) == 3
    assert melodies.duplicates(pieces) == {"held too": "held"}


def test_duplicates_ignore_key_and_outer_silence():
    piece = melody(*ONE)
    silence = np.full((8, 4), -1)
    variant = piece.copy()
    variant[9, 2] = 50
    begun = np.full((8, 4), -1)
    begun[:, 3] = 48
    pieces = {
        "first": piece,
        "higher": piece + 3,
        "late": np.concatenate([silence, piece, silence]),
        "broken": np.concatenate([piece[:16], silence, piece[16:]]),
        "variant": variant,
        "begun by one voice": np.concatenate([begun, piece]),
    }
    assert melodies.duplicates(pieces) == {"higher": "first", "late": "first"}


def test_clusters_are_split_whole_and_in_proportion():
    sizes = np.random.default_rng(0).integers(1, 6, 100)
    labels = {f"{cluster}.{i}": str(cluster) for cluster, size in enumerate(sizes) for i in range(size)}
    splits = melodies.split(labels, (3, 1, 1))
    assert len({(labels[name], part) for name, part in splits.items()}) == 100
    parts = np.array([list(splits.values()).count(part) for part in SPLITS]) / len(labels)
    assert np.abs(parts - [0.6, 0.2, 0.2]).max() < 0.02
    assert overlaps.shared(labels, splits) == {"valid": 0, "test": 0}
    assert overlaps.shared({"a": "x", "b": "x", "c": "y"}, {"a": "train", "b": "test", "c": "valid"}) == {
        "valid": 0,
        "test": 1,
    }
