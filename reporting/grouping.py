"""Groups runs into comparisons: runs of the same task, of which each model has its own."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

import numpy as np

from ..domains.generated import GeneratedDomain
from ..session.run_directory import leaves
from .contestant import Contestant
from .finished import MLP, RATE, Run
from .naming import file_name, short, without_digests
from .study import Comparison, Trouble, differing, unusual

Models = dict[str, dict[int, Run]]  # runs by model, from `_keys`, and seed
DOCUMENTS = ("documents", "clusters", "tokens", "units")  # fields of records that all runs of a comparison share


def compare(runs: Sequence[Run], diverged: Sequence[Run]) -> tuple[list[Comparison], list[Trouble]]:
    """The comparisons of finished `runs`, and the runs that fit into none. Comparisons name the `diverged` ones."""
    troubles: list[Trouble] = []
    groups: dict[str, Models] = {}
    for run in runs:
        place, model = _keys(run)
        group = groups.setdefault(place, {})
        seeds = group.setdefault(model, {})
        first = next(iter(next(iter(group.values())).values()), run)
        if run.seed in seeds:
            troubles.append(Trouble(str(run.path), "duplicate", f"the same run as {seeds[run.seed].path}"))
        elif reason := _contradiction(run, first):
            troubles.append(Trouble(str(run.path), "unusable", reason))
        else:
            seeds[run.seed] = run
    lost: dict[str, Models] = {place: {} for place in groups}
    for run in diverged:
        place, model = _keys(run)
        if place in groups and run.seed not in groups[place].get(model, {}):  # it may have been trained again
            lost[place].setdefault(model, {}).setdefault(run.seed, run)
    models = [{model: seeds for model, seeds in group.items() if seeds} for group in groups.values()]
    found = [[*each.values()] for each in models]
    everywhere = [next(iter(group[0].values())) for group in found]
    domains = [run.config["names"]["domain"] for run in everywhere]
    facts = _all_facts(found)
    different, slugs = [], []
    for domain, here in zip(domains, facts, strict=True):
        different.append(unusual(here, [each for each, name in zip(facts, domains, strict=True) if name == domain]))
        digest = hashlib.sha256(_key(here).encode()).hexdigest()[:6]
        slugs.append(file_name(domain) + (f"-{digest}" if different[-1] else ""))
    different = _without_implied_digests(different, domains, everywhere)
    labels = [*map(_labels_of, models, lost.values())]
    contestants = map(_contestants, models, labels)
    cut_short = map(_diverged, lost.values(), labels)
    comparisons = sorted(
        map(Comparison, domains, numbered(slugs), facts, different, contestants, cut_short),
        key=lambda comparison: (comparison.title, comparison.slug),
    )
    # A domain's name alone would look like its usual settings next to names that list theirs.
    taken = sorted({comparison.domain for comparison in comparisons if comparison.full_name is not None})
    long = [comparison.domain for comparison in comparisons if comparison.full_name is None]
    numbers = iter(numbered([*taken, *long])[len(taken) :])
    names = numbered([comparison.full_name or next(numbers) for comparison in comparisons])
    return [replace(each, name=name) for each, name in zip(comparisons, names, strict=True)], troubles


def _without_implied_digests(
    different: Sequence[dict[str, Any]], domains: Sequence[str], runs: Sequence[Run]
) -> list[dict[str, Any]]:
    """What is different about each comparison, without digests of generated data if settings distinguish it.

    Args:
        different: the facts of each comparison that few share.
        domains: the name of the domain of each.
        runs: a run of each.
    """
    settings = [*map(without_digests, different)]
    named = [*zip(domains, settings, strict=True)]
    return [
        settings[at] if issubclass(run.domain, GeneratedDomain) and named.count(named[at]) == 1 else different[at]
        for at, run in enumerate(runs)
    ]


def _all_facts(found: Sequence[Sequence[Mapping[int, Run]]]) -> list[dict[str, Any]]:
    """The facts of each group of runs, and all values of a setting that is among the facts of another group."""
    kinds = [[next(iter(seeds.values())) for seeds in group] for group in found]
    facts = [_divided(runs[0])[0] for runs in kinds]
    shared = set().union(*facts)
    for here, runs in zip(facts, kinds, strict=True):
        for key in sorted(shared & {key for run in runs for key in _divided(run)[1]}):
            values = dict.fromkeys(short(run.facts.get(key)) for run in runs)
            here[key] = " or ".join(values) if len(values) > 1 else runs[0].facts.get(key)
    return facts


def _contestants(finished: Models, labels: Mapping[str, str]) -> list[Contestant]:
    contestants = [Contestant(labels[model], seeds) for model, seeds in finished.items()]
    return sorted(contestants, key=lambda contestant: contestant.label)


def _diverged(lost: Models, labels: Mapping[str, str]) -> dict[str, list[Run]]:
    """The runs that diverged, by seed, by the label of their model."""
    return dict(sorted((labels[model], [seeds[seed] for seed in sorted(seeds)]) for model, seeds in lost.items()))


def _labels_of(finished: Models, lost: Models) -> dict[str, str]:
    """The label of each model of a comparison: its encoding, and the settings that differ between those with the same.

    The learning rate, and with `match` the size of the MLP, were chosen for each model. They are left out if the other
    settings suffice.
    """
    models = {**finished, **{model: seeds for model, seeds in lost.items() if model not in finished}}
    kinds = [next(iter(seeds.values())) for seeds in models.values()]
    own = [{**_divided(run)[1], "match": run.config.get("match")} for run in kinds]
    labels = []
    for run, here in zip(kinds, own, strict=True):
        alike = [each for each, other in zip(own, kinds, strict=True) if other.encoding == run.encoding]
        values = dict(leaves(run.config))  # with those that facts leave out because they are defaults
        keys = [*differing(here, alike)]
        chosen = {MLP, RATE} if run.config.get("match") else {RATE}
        others = [key for key in keys if key not in chosen or key in run.listed.compare]
        if sum(all(each.get(key) == here.get(key) for key in others) for each in alike) == 1:
            keys = others
        given = [
            f"{key.split('.')[-1]}={short(values.get(key))}"
            for key in keys
            if values.get(key) is not None or key in run.listed.compare
        ]
        labels.append(", ".join(dict.fromkeys([run.encoding, *given])))
    return dict(zip(models, numbered(labels), strict=True))


def numbered(names: Sequence[str]) -> list[str]:
    """The names, made unique by a number at the end, because they are used as file names."""
    found: list[str] = []
    for name in names:
        ways = chain([name], (f"{name}-{number}" for number in count(2)))
        found.append(next(each for each in ways if each not in found))
    return found


def _keys(run: Run) -> tuple[str, str]:
    """What identifies the comparison of a run, and its model in that comparison."""
    shared, own = _divided(run)
    return _key([run.config["names"]["domain"], shared]), _key([run.encoding, own])


def _divided(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """The facts that all runs of a comparison share, and those that may differ between encodings."""
    own = {key for key in run.facts if key.startswith("encoding.") or key in run.controls}
    shared = {key: value for key, value in run.facts.items() if key not in own and key != "seed"}
    return shared, {key: run.facts[key] for key in run.facts if key in own}


def _contradiction(run: Run, first: Run) -> str | None:
    """Why the records of `run` cannot be compared with those of `first`; None if they can."""
    if run.records.keys() != first.records.keys():
        here, there = (", ".join(each.records) for each in (run, first))
        return f"its splits are {here}, but those of {first.path} are {there}"
    for split, records in run.records.items():
        theirs = first.records[split]
        for name in DOCUMENTS:
            if not np.array_equal(getattr(records, name), getattr(theirs, name)):
                return f"nll/{split}.npz has other documents than {first.path}"
    return None


def _key(value: Any) -> str:
    """The same text for all values that compare equal in Python, as in `differing`."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole else value
