"""Questions of zero-shot benchmarks: texts whose continuations a model scores, and the right one."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

Pair = tuple[str, str]  # a context and its continuation


@dataclass(frozen=True)
class Question:
    """One question. Its answer is the pair whose continuation has the highest log-likelihood.

    Attributes:
        name: unique within its group.
        group: subset of the benchmark, such as a paradigm of BLiMP; empty without subsets.
        pairs: context and continuation of each choice. A single pair is right if greedy decoding gives it.
        gold: index of the right choice.
        lengths: characters of each choice without the delimiter before it, for acc_norm; empty if it is not defined.
    """

    name: str
    group: str
    pairs: tuple[Pair, ...]
    gold: int = 0
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Questions:
    """The questions of one benchmark, and a note on their text; the note is empty for the publisher's files."""

    items: Sequence[Question]
    note: str = ""

    @cached_property
    def source(self) -> str:
        """sha256 of all texts and right answers."""
        found = hashlib.sha256()
        for each in self.items:
            found.update(json.dumps([each.group, each.name, each.pairs, each.gold, each.lengths]).encode())
        return found.hexdigest()

    def limited(self, limit: int | None) -> "Questions":
        """The first `limit` questions of each group; all for None."""
        if limit is None:
            return self
        counts: dict[str, int] = {}
        kept = []
        for each in self.items:
            counts[each.group] = counts.get(each.group, 0) + 1
            if counts[each.group] <= limit:
                kept.append(each)
        return Questions(kept, self.note)


def pairs_of(questions: Iterable[Question]) -> list[Pair]:
    """The pairs of all questions in order."""
    return [pair for question in questions for pair in question.pairs]
