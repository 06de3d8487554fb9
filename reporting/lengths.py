"""Results of task=extrapolate: nats/token by context length and by position, and the length where a model fails."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..core.checked_files import DAMAGE, NAME, figure, read_csv, whole, why
from ..core.errors import UserError
from .intervals import mean_interval
from .naming import file_name, parenthesised
from .statistics import FEWEST_SEEDS
from .study import Comparison
from .tables import Row, Table, interval, with_sign

COLUMNS = ("stretch", "context", "trained", "beyond", "low", "high", "targets", "nats")
PLAIN = "none"  # the frequencies used in training
NOT_UP_TO = "not up to"  # a context: the loss does not rise so far, and longer contexts were not scored
MOST_CHANGES = 8  # models whose changes a sentence lists
FOLDED = 30  # rows above which the page shows only the title of the table
TOLERANCE = 0.01  # a model fails where nats/token exceed those at the trained length by more than this share


def read_lengths(path: Path) -> list[Row]:
    """Rows of an `extrapolation/<split>.csv`; empty if there is no such file. Raises UserError if it is damaged."""
    if not path.exists():
        return []
    try:
        rows = [_parsed(row) for row in read_csv(path, COLUMNS)]
        _check(rows)
        return rows
    except DAMAGE as error:
        raise UserError(f"{path} is damaged ({why(error)}): delete it and measure it again") from error


def _parsed(row: Mapping[str, str]) -> Row:
    if not NAME.fullmatch(row["stretch"]) or row["beyond"] not in ("True", "False"):
        raise ValueError(
            f"the row {','.join(row.values())[:60]} has an invalid stretch, or a `beyond` other than True or False"
        )
    counts = {key: whole(row[key]) for key in ("context", "trained", "low", "high", "targets")}
    return {**row, **counts, "nats": figure(row["nats"]), "beyond": row["beyond"] == "True"}


def _check(rows: Sequence[Row]) -> None:
    """Raise ValueError if rows are inconsistent: every context and stretch is scored on the same targets."""
    targets: dict[tuple[str, int], dict[bool, int]] = {}
    for row in rows:
        if not (0 < row["low"] <= row["high"] <= row["context"] and row["targets"] and row["trained"]):
            raise ValueError(f"it has {row['targets']} targets with {row['low']} to {row['high']} tokens before them")
        counts = targets.setdefault((row["stretch"], row["context"]), {False: 0, True: 0})
        counts[row["beyond"]] += row["targets"]
    if len({row["trained"] for row in rows}) != 1 or (PLAIN, rows[0]["trained"]) not in targets:
        raise ValueError("it has no results for the trained length")
    if len({(row["stretch"], row["context"], row["beyond"], row["low"]) for row in rows}) < len(rows):
        raise ValueError("it has two results for the same targets")
    if any(counts != targets[PLAIN, rows[0]["trained"]] for counts in targets.values()):
        raise ValueError("its contexts do not have the same number of targets")


def names_of(comparison: Comparison) -> list[str]:
    """Names of the results of task=extrapolate with task.files."""
    names = {name for run in comparison.runs for name in run.measured.lengths}
    return sorted(names - {"valid", *comparison.splits})


def lengths_of(comparison: Comparison, name: str) -> dict[str, list[Sequence[Row]]]:
    """The rows of each seed that task=extrapolate has scored on a split, or on files, by contestant."""
    found: dict[str, list[Sequence[Row]]] = {}
    for contestant in comparison.contestants:
        for _, run in sorted(contestant.runs.items()):
            if rows := run.measured.lengths.get(name):
                found.setdefault(contestant.label, []).append(rows)
    return found


def nats_by_context(rows: Sequence[Mapping[str, Any]], form: str) -> dict[int, float]:
    """Nats/token by context length, on the same targets: those after more than the trained length, if any, or all.

    Up to the trained length, frequencies are not stretched.
    """
    beyond = any(row["beyond"] for row in rows)
    sums: dict[int, np.ndarray] = {}
    for row in rows:
        right = row["stretch"] == (form if row["context"] > row["trained"] else PLAIN)
        if right and (row["beyond"] or not beyond):
            sums[row["context"]] = sums.get(row["context"], 0) + np.array([row["nats"], row["targets"]], float)
    return {context: float(nats / targets) for context, (nats, targets) in sorted(sums.items())}


def nats_by_position(rows: Sequence[Mapping[str, Any]], form: str, context: int) -> dict[tuple[int, int], float]:
    """Nats/token of all targets in contexts of length `context`, by the range of tokens before them."""
    sums: dict[tuple[int, int], np.ndarray] = {}
    for row in rows:
        if row["stretch"] == form and row["context"] == context:
            place = row["low"], row["high"]
            sums[place] = sums.get(place, 0) + np.array([row["nats"], row["targets"]], float)
    return {place: float(nats / targets) for place, (nats, targets) in sorted(sums.items())}


def trained_lengths(found: Mapping[str, Sequence[Sequence[Row]]]) -> list[int]:
    """The lengths that the models in `found`, as in `lengths_table`, were trained with."""
    return sorted({row["trained"] for seeds in found.values() for rows in seeds for row in rows})


def contexts_of(seeds: Sequence[Sequence[Row]], form: str) -> list[set[int]]:
    """The context lengths that each seed was scored with in `form`."""
    return [{row["context"] for row in rows if row["stretch"] == form} for rows in seeds]


def longest_context(found: Mapping[str, Sequence[Sequence[Row]]]) -> int:
    """The longest context that all models were scored with, in every form shown; 0 if they have none in common.

    `found` is as in `lengths_table`.
    """
    scored = (contexts_of(seeds, form) for seeds in found.values() for form in forms_of_all(seeds))
    return max(set.intersection(*chain.from_iterable(scored)), default=0)


def _change(changes: Sequence[float]) -> Row:
    """The mean of `changes`, with its interval over seeds if there are enough."""
    mean: Row = {"change": float(np.mean(changes))}
    return mean if len(changes) < FEWEST_SEEDS else mean | {"change_interval": mean_interval(changes)}


def holding(table: Table) -> str:
    """Which models in a `lengths_table` never fail without extensions, and how the loss changes.

    Changes are listed if there are at most MOST_CHANGES models. Otherwise the lowest and highest stand for those that
    fail, and also for those that never fail if these are more than MOST_CHANGES.
    """
    rows = [row for row in table.rows if row["stretch"] == PLAIN]
    if not any(row["beyond"] for row in rows):
        return "No context beyond the trained length was scored without extensions."
    few, holds = len(rows) <= MOST_CHANGES, [row for row in rows if row["fails"] == "never"]
    held = [parenthesised(row["model"]) for row in holds]
    never = f"Models whose loss never rises by more than {100 * TOLERANCE:g} % beyond the trained length"
    sentence = f"{never}, without extensions ({len(held)} of {len(rows)}): {', '.join(held) or 'none'}."
    first = [row for row in (rows if few else holds) if "change" in row]
    others = [row for row in rows if row not in first and "change" in row]
    changes = [_span(first)] if len(first) > MOST_CHANGES else [*map(_changed, first)]
    rest = "the others " if first else ""
    changes += [f"{rest}{_span(others)}"] if len(others) > 1 else map(_changed, others)
    if not changes:
        return sentence
    longest = max(int(key.removeprefix("at_")) for row in rows for key in row if key.startswith("at_"))
    return f"{sentence} Change at {longest:,} tokens: {', '.join(changes)}."


def _span(rows: Sequence[Row]) -> str:
    """The lowest and the highest change."""
    lowest, *_, highest = sorted(rows, key=lambda row: row["change"])
    return f"from {_changed(lowest)} to {_changed(highest)}"


def _changed(row: Row) -> str:
    return f"{parenthesised(row['model'])} {_in_words(row)}"


def _in_words(change: Row) -> str:
    """A `_change` in per cent."""
    percent = with_sign(1)
    ends = change.get("change_interval")
    return f"{percent(change['change'])} %" + ("" if ends is None else f" ({interval(percent)(ends)})")


def _reached(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each context, the share of the targets in `nats_by_context` that have at least half of it before them."""
    beyond = any(row["beyond"] for row in rows)
    counted: dict[int, np.ndarray] = {}
    for row in rows:
        if row["stretch"] == PLAIN and (row["beyond"] or not beyond):
            seen = row["targets"] * np.array([2 * row["low"] >= row["context"], 1])
            counted[row["context"]] = counted.get(row["context"], 0) + seen
    return [f"{100 * far / all_:.3g} % at {context:,}" for context, (far, all_) in sorted(counted.items())]


def failure_point(by_context: Mapping[int, float], trained: int) -> int | None:
    """The shortest context above `trained` where nats/token exceed those at `trained` by TOLERANCE, or None."""
    limit = by_context[trained] * (1 + TOLERANCE)
    return next((context for context in sorted(by_context) if context > trained and by_context[context] > limit), None)


def form_of(stretch: str) -> str:
    """The form of a stretch, whose name may end in a hash of its factors."""
    return stretch.partition("-")[0]


def forms_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The stretches that were scored, PLAIN first."""
    return list(dict.fromkeys(row["stretch"] for row in rows))


def forms_of_all(seeds: Sequence[Sequence[Row]]) -> list[str]:
    """The stretches that were scored for every seed, PLAIN first."""
    return [form for form in forms_of(seeds[0]) if all(form in forms_of(rows) for rows in seeds)]


def lengths_table(
    found: Mapping[str, Sequence[Sequence[Row]]], title: str, slug: str = "lengths", perplexity: bool = False
) -> Table:
    """A row per model and stretch: nats/token by context, mean over seeds, and the failure point of each seed.

    Args:
        found: by model, the rows of each seed's file.
        perplexity: show exp(nats/token) instead.
    """
    shape, quantity = ("{:.2f}", "Perplexity, exp(nats/token),") if perplexity else ("{:.4f}", "Nats/token")
    rows, contexts, left_out, curves_of = [], {}, [], []
    for model, seeds in found.items():
        shown = forms_of_all(seeds)
        left_out += [f"{model}, {form}" for form in forms_of([*chain(*seeds)]) if form not in shown]
        for form in shown:
            curves = [nats_by_context(seed, form) for seed in seeds]
            shared = sorted(set.intersection(*(set(curve) for curve in curves)))
            contexts |= dict.fromkeys(shared)
            if partly := set.union(*(each := contexts_of(seeds, form))) - set.intersection(*each):
                left_out.append(f"{model}, {form} in contexts of {', '.join(f'{at:,}' for at in sorted(partly))}")
            curves_of.append([{context: curve[context] for context in shared} for curve in curves])
            row = {"model": model, "stretch": form, "seeds": len(seeds)}
            means = {context: float(np.mean([curve[context] for curve in curves])) for context in shared}
            rows.append(row | {f"at_{at}": math.exp(mean) if perplexity else mean for at, mean in means.items()})
    longest = max(contexts)
    for row, curves in zip(rows, curves_of, strict=True):
        trained = found[row["model"]][0][0]["trained"]
        reached = max(curves[0])
        row["beyond"] = reached > trained
        held = "never" if reached == longest > trained else f"{NOT_UP_TO} {reached:,}"
        if held == "never":
            row |= _change([100 * (curve[longest] / curve[trained] - 1) for curve in curves])
        fails = {failure_point(curve, trained) for curve in curves}
        row["fails"] = ", ".join(f"{at:,}" if at else held for at in sorted(fails, key=lambda at: at or math.inf))
    columns = {
        "model": ("model", str),
        "stretch": ("stretch", str),
        "seeds": ("seeds", str),
        **{f"at_{context}": (f"{context:,}", shape.format) for context in sorted(contexts)},
        "change": ("change at the longest, %", with_sign(1)),
        "change_interval": ("95 % interval over seeds", interval(with_sign(1))),
        "fails": ("loss rises at", str),
    }
    tabled = [row for row in chain(*chain(*found.values())) if row["context"] in contexts]
    without = [model for model, seeds in found.items() if not any(row["beyond"] for row in chain(*seeds))]
    lengths = " or ".join(f"{length:,}" for length in trained_lengths(found))
    which = "all targets"
    if len(without) < len(found):
        which = f"the targets with more than {lengths} tokens before them"
        if " or " in lengths:
            which += ", the model's trained length"
        if without:
            which += f" ({', '.join(without)}: all targets, because none has so many)"
    notes = [
        f"{quantity} by context length in tokens; every column covers {which}. Each target sees at least half of the "
        f"context, or everything before it in its document. Trained at {lengths}.",
        f"Targets with at least half of the context before them: {', '.join(_reached(tabled))}.",
        f"Stretch: how the model was extended after training (task.stretches); {PLAIN} if it was not.",
        f"Loss rises at: the shortest context above the trained length where nats/token are {100 * TOLERANCE:g} % "
        "higher than at the trained length; several values if seeds differ.",
        "Change at the longest: of nats/token in the longest context, relative to the trained length.",
    ]
    if any(NOT_UP_TO in row["fails"] for row in rows):
        notes.append("Not up to: the loss does not rise so far, and longer contexts were not scored.")
    if any("never" in row["fails"] for row in rows):
        notes.append(f"Never: not up to {longest:,} tokens, the longest context in this table.")
    if left_out:
        notes.append(f"Left out because task=extrapolate has not scored every seed: {'; '.join(left_out)}.")
    return Table(slug, title, columns, rows, notes, folded=len(rows) > FOLDED)


def split_table(comparison: Comparison, split: str, found: Mapping[str, Sequence[Sequence[Row]]]) -> Table:
    """The `lengths_table` of a split."""
    title = f"{comparison.name}, {split} split: other context lengths"
    return lengths_table(found, title, f"{comparison.slug}-{split}-lengths")


def files_table(comparison: Comparison, name: str, found: Mapping[str, Sequence[Sequence[Row]]]) -> Table:
    """The `lengths_table` of files that were scored with task.files: perplexities, if the unit is the byte."""
    title = f"{comparison.name}, files {name}: other context lengths"
    slug, perplexity = f"{comparison.slug}-{file_name(name)}-lengths", comparison.units == ("byte",)
    table = lengths_table(found, title, slug, perplexity)
    note = f"{name}: files scored with task.files; the name ends in a hash of their content."
    return replace(table, notes=[*table.notes, note])
