"""Counts documents that have something in common with a document in train."""

from collections.abc import Hashable, Mapping

from .store import SPLITS


def shared(labels: Mapping[str, Hashable], splits: Mapping[str, str]) -> dict[str, int]:
    """Number of documents in valid and in test whose label is also that of a document in train.

    Args:
        labels: by document, such as its melody.
        splits: by document; it may have other documents too.
    """
    train = {label for name, label in labels.items() if splits[name] == "train"}
    return {part: sum(label in train for name, label in labels.items() if splits[name] == part) for part in SPLITS[1:]}
