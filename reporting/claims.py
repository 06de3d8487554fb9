"""Claims about encodings, of papers or a study's own hypothesis, and whether its records show or refute them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..core.errors import shortened
from ..core.options import Count, Options
from .contestant import Contestant
from .intervals import mean_interval
from .lengths import PLAIN, TOLERANCE, nats_by_context
from .scores import ALPHA
from .solving import rates_p, solving
from .statistics import FEWEST_SEEDS
from .study import Comparison, Study
from .tables import Row, Table, interval, p_value, with_sign

PER_CENT = 100.0
MOST_LISTED = 4  # claims with a sentence each; if there are more, their verdicts are counted


@dataclass(frozen=True)
class Claim(Options):
    """An entry of `claims` in a study's list.

    Attributes:
        claim: the claim, with its source and figures.
        model: the encoding that is claimed to have the lower loss, or to solve the task with more seeds.
        than: the other encoding; null if the loss of `model` is claimed not to rise beyond the trained length.
        split: the split that is scored; null for `context` or `times`.
        context: the context length in tokens with which the first split is scored; null for `split` or `times`.
        times: a context length as a multiple of the trained one. The loss is claimed to rise less up to it than that of
            `than`. Null for `split` or `context`.
        published: the difference that others report, in the unit of the table, below 0 if `model` has the lower loss;
            null if they report none.
    """

    claim: str
    model: str
    than: str | None = None
    split: str | None = None
    context: Count | None = None
    times: Count | None = None
    published: float | None = None

    def check_together(self) -> None:
        if [self.split, self.context, self.times].count(None) != 2 or (self.than is None and self.context is None):
            raise ValueError(f"claims, {self.model}: give context, or than with one of split, context and times")
        if self.times == 1:
            raise ValueError(f"claims, {self.model}: times=1 is the trained length: give a larger number")
        if self.than is not None and self.published is not None and not self.published < 0:
            raise ValueError(
                f"claims, {self.model}: published={self.published}: give the loss of {self.model} minus that of "
                f"{self.than}, which is below 0 if the claim is true"
            )


def read_claims(given: Any) -> list[Claim]:
    """The claims in a study's list. Raises TypeError or ValueError if they are not of this form."""
    if not isinstance(given, list) or not all(isinstance(each, Mapping) for each in given):
        example = "{claim: TEXT, model: pope, than: rope, split: test}"
        raise TypeError(f"claims: {shortened(given)} must be a list of entries such as {example}")
    allowed = [field.name for field in fields(Claim)]
    for each in given:
        if unknown := [key for key in each if key not in allowed]:
            raise TypeError(f"claims: unknown key {unknown[0]}; allowed: {', '.join(allowed)}")
    return [Claim(**each) for each in given]


def claims_table(study: Study, claims: Sequence[Claim]) -> Table | None:
    """A row for each claim and each comparison of `study` with scores of its models; None without claims."""
    rows: list[Row] = [
        {"domain": comparison.name, **row}
        for comparison in study.comparisons
        for claim in claims
        if (row := _row(comparison, claim)) is not None
    ]
    several = len({row["domain"] for row in rows}) > 1
    judged = {row["claim"] for row in rows}
    rows += [{"claim": each.claim, "verdict": "no scores"} for each in claims if each.claim not in judged]
    if not rows:
        return None
    columns = {
        "claim": ("claim", str),
        **({"domain": ("comparison", str)} if several else {}),
        "measured": ("measured", str),
        "interval": ("95 % interval", str),
        "seeds": ("seeds", str),
        "verdict": ("verdict", str),
    }
    notes, about = [], [comparison.solved is not None for comparison in study.comparisons]
    if not all(about):
        notes = [
            "Measured: the difference, paired by seed; or how much the loss rises from the trained length to the "
            "context, or the difference of two such rises in points. Intervals are Student's t over seeds, not "
            "adjusted for the number of claims.",
            f"Shown: the whole interval is below 0, or below {PER_CENT * TOLERANCE:g} % where no rise is claimed. "
            "Refuted: all of it is above that. Smaller than published: neither, but the interval excludes the "
            "published difference.",
        ]
    if any(about):
        notes.append(
            "Solved: by the seeds of the first and of the second model. Shown: the first solves the task more often, "
            "with p < 0.05 by Boschloo's exact test, not adjusted for the number of claims. Refuted: the second does."
        )
    notes += _absent(study, claims)
    notes.append(
        "No scores: the models have none with the same seed, split or context. Verdicts are about models of this size, "
        "data and training only. The study's list says if claims were added to it after the runs."
    )
    return Table("claims", "Claims", columns, rows, notes)


def _absent(study: Study, claims: Sequence[Claim]) -> list[str]:
    """A note for each model of `claims` that has no run: tables may name its options, too."""
    labels = dict.fromkeys(each.label for comparison in study.comparisons for each in comparison.contestants)
    claimed = dict.fromkeys(name for each in claims for name in (each.model, each.than) if name is not None)
    notes = []
    for name in claimed:
        if name not in labels:
            same = [label for label in labels if label.partition(",")[0] == name.partition(",")[0]]
            instead = f": in claims, write {' or '.join(map(repr, same))}" if same else ""
            notes.append(f"No run is of a model named {name!r}{instead}.")
    return notes


def claim_verdicts(table: Table) -> dict[str, list[str]]:
    """The verdicts in a `claims_table`, by claim; of a long table, how often each verdict occurs."""
    if len(table.rows) > MOST_LISTED:
        counted = Counter(row["verdict"] for row in table.rows).most_common()
        verdicts = ", ".join(f"{number} {verdict}" for verdict, number in counted)
        return {f"Of {len(table.rows)} claims, listed under Details": [verdicts]}
    found: dict[str, list[str]] = {}
    for row in table.rows:
        place = f"{row['domain']}: " if "domain" in table.columns and "domain" in row else ""
        measured = ", ".join(row[key] for key in ("measured", "interval") if key in row)
        found.setdefault(row["claim"], []).append(f"{place}{row['verdict']}{f' ({measured})' if measured else ''}")
    return found


def _row(comparison: Comparison, claim: Claim) -> Row | None:
    """The row of a claim; None without scores of both models with the same seed."""
    models = {each.label: each for each in comparison.contestants}
    if not {claim.model, claim.than or claim.model} <= models.keys():
        return None
    if comparison.solved is not None and claim.split is not None:
        return _by_solve_rates(comparison, claim, models[claim.model], models[claim.than or claim.model])
    mine = _scores(comparison, claim, models[claim.model])
    if claim.times is not None:
        theirs, unit = _scores(comparison, claim, models[str(claim.than)]), "points"
    elif claim.than is None:
        theirs, unit = _in_context(comparison, models[claim.model], None), "%"
    else:
        theirs, unit = _scores(comparison, claim, models[claim.than]), "nats/token"
    if not (seeds := sorted(mine.keys() & theirs.keys())):
        return None
    first, second = (np.array([each[seed] for seed in seeds]) for each in (mine, theirs))
    limit, found = 0.0, first - second
    if claim.than is None:
        limit, found = PER_CENT * TOLERANCE, PER_CENT * found / second
    shown = with_sign(4 if unit == "nats/token" else 2)
    row: Row = {"claim": claim.claim, "measured": f"{shown(found.mean())} {unit}", "seeds": len(seeds)}
    if len(seeds) < FEWEST_SEEDS:
        return row | {"verdict": "not enough seeds"}
    low, high = mean_interval(found)
    return row | {"interval": interval(shown)((low, high)), "verdict": verdict(low, high, limit, claim.published)}


def _by_solve_rates(comparison: Comparison, claim: Claim, one: Contestant, other: Contestant) -> Row | None:
    """The row of a claim about a task with right answers, whose means over seeds say little; see `Solving`."""
    if any(claim.split not in run.records for each in (one, other) for run in each.runs.values()):
        return None
    mine, theirs = (solving(comparison, str(claim.split), each) for each in (one, other))
    if mine is None or theirs is None:
        return None
    (first, seeds), (second, others) = mine.rate, theirs.rate
    p = rates_p(mine.rate, theirs.rate)
    row: Row = {
        "claim": claim.claim,
        "measured": f"solved by {first} of {seeds} and {second} of {others}, p {p_value(p)}",
        "seeds": seeds if seeds == others else f"{seeds} and {others}",
    }
    if min(seeds, others) < FEWEST_SEEDS:
        return row | {"verdict": "not enough seeds"}
    if p >= ALPHA:
        return row | {"verdict": "undecided"}
    return row | {"verdict": "shown" if first / seeds > second / others else "refuted"}


def verdict(low: float, high: float, limit: float = 0.0, published: float | None = None) -> str:
    """What an interval from `low` to `high` says of the claim that a value is below `limit`."""
    if high < limit:
        return "shown"
    if low > limit:
        return "refuted"
    return "smaller than published" if published is not None and low > published else "undecided"


def _scores(comparison: Comparison, claim: Claim, contestant: Contestant) -> dict[int, float]:
    """Nats per token by seed, or by how many per cent they rise."""
    if claim.times is not None:
        trained, longest = (_in_context(comparison, contestant, None, times) for times in (1, claim.times))
        shared = trained.keys() & longest.keys()
        return {seed: PER_CENT * (longest[seed] / trained[seed] - 1) for seed in sorted(shared)}
    if claim.split is None:
        return _in_context(comparison, contestant, claim.context, beyond=claim.than is None)
    runs = contestant.runs.items()
    return {seed: run.records[claim.split].nats_per_token for seed, run in runs if claim.split in run.records}


def _in_context(
    comparison: Comparison, contestant: Contestant, context: int | None, times: int = 1, beyond: bool = False
) -> dict[int, float]:
    """Nats per token of the first split in contexts of this length, or of `times` the trained length, by seed.

    Nothing if the context is to be `beyond` the trained length and is not.
    """
    found = {}
    for seed, run in contestant.runs.items():
        rows = run.measured.lengths.get(comparison.splits[0], ())
        by_context = nats_by_context(rows, PLAIN)
        trained = rows[0]["trained"] if rows else 0
        length = context or times * trained
        if length in by_context and (length > trained or not beyond):
            found[seed] = by_context[length]
    return found
