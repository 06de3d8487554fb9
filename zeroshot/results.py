"""From log-likelihoods to per-item results and scores: acc, acc_norm and perplexity, as in lm-evaluation-harness."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..domains.items import Items
from .questions import Questions

COLUMNS = {"acc": "acc", "acc_norm": "acc_norm", "perplexity": "nats"}  # column that each metric is computed from


def items_of(questions: Questions, nats: np.ndarray, greedy: np.ndarray) -> Items:
    """Per-item results.

    Columns: `acc` is 1 if the right choice has the highest log-likelihood, `acc_norm` if it has the highest per
    character. `margin` is its log-likelihood minus that of the best other choice. Questions with a single choice have
    `nats` instead, and `acc` is 1 if greedy decoding gives the continuation.

    Args:
        nats: negative log-likelihood of each pair, in the order of `pairs_of`.
        greedy: whether each pair's continuation is what greedy decoding gives.
    """
    columns: dict[str, list[float]] = {}
    begin = 0
    for question in questions.items:
        here = slice(begin, begin := begin + len(question.pairs))
        for name, value in _results(-nats[here], bool(greedy[begin - 1]), question.gold, question.lengths).items():
            columns.setdefault(name, []).append(value)
    names, groups = (np.array([getattr(each, key) for each in questions.items]) for key in ("name", "group"))
    return Items(names, groups, {name: np.array(values) for name, values in columns.items()}, questions.source)


def _results(likelihoods: np.ndarray, greedy: bool, gold: int, lengths: Sequence[int]) -> dict[str, float]:
    if len(likelihoods) == 1:
        return {"acc": int(greedy), "nats": -float(likelihoods[0])}
    found: dict[str, float] = {"acc": int(np.argmax(likelihoods) == gold)}
    if lengths:
        with np.errstate(divide="ignore"):  # an empty choice
            found["acc_norm"] = int(np.argmax(likelihoods / np.array(lengths, float)) == gold)
    found["margin"] = float(likelihoods[gold] - np.delete(likelihoods, gold).max())
    return found


def scores_of(groups: np.ndarray, columns: Mapping[str, np.ndarray], metrics: Sequence[str]) -> dict[str, float]:
    """Scores of a benchmark by metric: means over the items of each group, averaged over the groups."""
    found = {}
    for metric in metrics:
        values = columns[COLUMNS[metric]]
        means = [_mean(values[groups == group]) for group in dict.fromkeys(groups.tolist())]
        mean = sum(means) / len(means)
        found[metric] = math.exp(mean) if metric == "perplexity" else mean
    return found


def _mean(values: np.ndarray) -> float:
    """The mean, summed from left to right as in lm-evaluation-harness, so that all digits agree."""
    return sum(values.tolist()) / len(values)
