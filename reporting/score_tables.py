"""The tables of scores: a row per model with its difference from the reference, per comparison and over all."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..core.words import plural
from ..domains.records import Records
from ..domains.unit_labels import unit_label
from .naming import parenthesised
from .scores import Score, scores
from .statistics import Difference
from .study import Comparison
from .tables import Column, Row, Table, interval, mebibytes, millions, p_value, percentages, with_sign, wrong

BASELINE = "baseline"
CLUSTERS = "clusters only"
BOTH = "seeds and clusters"
NOT_TESTED = "Differences on subsets are not tested."
MAIN = (
    *("domain", "split", "model", "seeds", "errors", "solved", "solve_rate", "nats_per_token", "difference", "against"),
    *("difference_interval", "difference_interval_of", "difference_percent", "holm_p", "verdict"),
)
SUBSETS = (
    *("model", "seeds", "nats_per_token", "difference", "against", "difference_percent", "difference_interval"),
    *("difference_interval_of", "interval"),
)
SOLVING = {
    "errors": ("error by seed, %", str),
    "solved": ("solved", str),
    "solve_rate": ("95 % interval of the solve rate", percentages),
    "take_off": ("take-off by seed", str),
}
COST = {
    "parameters": ("parameters", "{:,}".format),
    "flops_per_token": ("MFLOP/token", millions),
    "tokens_per_s": ("tokens/s", "{:,.0f}".format),
    "peak_memory_bytes": ("peak MiB", mebibytes),
}


def domain_table(found: Sequence[Score], baselines: Mapping[str, Records], notes: Sequence[str]) -> Table:
    """The main table of a comparison's split: models and baselines, best first."""
    comparison, split = found[0].comparison, found[0].split
    rows = [*map(_score_row, found), *(_baseline_row(name, each) for name, each in baselines.items())]
    rows.sort(key=lambda row: row["nats_per_token"])
    labels = {unit: unit_label(comparison.domain, unit) for unit in comparison.units}
    bits = {f"bits_per_{unit}": (f"bits/{label}", "{:.4f}".format) for unit, label in labels.items()}
    columns = _columns(found, rows, bits)
    title = f"{comparison.name}, {split} split"
    return Table(f"{comparison.slug}-{split}", title, columns, rows, [*notes, *_pairing_notes(found)], MAIN)


def across_table(found: Sequence[Score], baselines: Mapping[tuple[str, str], Mapping[str, Records]]) -> Table:
    """One table of all comparisons, with `baselines` by slug and split."""
    rows, places = [], {}
    for score in found:
        places.setdefault((score.comparison.slug, score.split, score.pooled), []).append(score)
    for (slug, split, pooled), here in places.items():
        unit = here[0].comparison.units[0]
        counted = {} if pooled else baselines.get((slug, split), {})
        place = [*map(_score_row, here), *(_baseline_row(*each) for each in counted.items())]
        for row in sorted(place, key=lambda row: row["nats_per_token"]):
            bits = {"unit": unit, "bits_per_unit": row.get(f"bits_per_{unit}")}
            row = {"domain": here[0].comparison.title, "split": split, **row, **bits}
            rows.append({key: value for key, value in row.items() if not key.startswith("bits_per_") or "unit" in key})
    # Files keep the full titles; pages and terminals have room for the short names only.
    names = {score.comparison.title: score.comparison.name for score in found}
    columns = {
        "domain": ("comparison", names.__getitem__),
        **({"split": ("split", str)} if len({score.split for score in found}) > 1 else {}),
        **_columns(found, rows, {"bits_per_unit": ("bits/unit", "{:.4f}".format), "unit": ("unit", str)}, percent=True),
    }
    main = [key for key in MAIN if key not in ("errors", "solve_rate")]
    return Table("across", "All comparisons", columns, rows, _pairing_notes(found), main)


def subsets_table(comparison: Comparison, split: str, reference: str) -> Table | None:
    """Scores on subsets of a test split (`Domain.subset`), compared with `reference`; None if it has no subsets."""
    run, rows, every = comparison.any_run, [], []
    names = np.array([run.domain.subset(run.config["content"], name) or "" for name in run.records[split].documents])
    for subset in sorted({*names.tolist()} - {""}):
        chosen = names == subset
        part = _restricted(comparison, split, chosen)
        found = [each for each in scores(part, split, reference, comparison.margin) if each.chosen]
        clusters = len(np.unique(part.any_run.records[split].clusters))
        sizes = {"subset": subset, "documents": int(chosen.sum()), "clusters": clusters}
        rows += [sizes | _score_row(each) for each in sorted(found, key=lambda each: each.nats.value)]
        every += found
    if not rows:
        return None
    columns = {
        "subset": ("subset", str),
        "documents": ("documents", "{:,}".format),
        "clusters": ("clusters", "{:,}".format),
        **{key: each for key, each in _columns(every, rows, {}, percent=True).items() if key in SUBSETS},
    }
    title = f"{comparison.name}, {split} split: subsets"
    rows = [{key: row.get(key) for key in columns} for row in rows]
    return Table(f"{comparison.slug}-{split}-subsets", title, columns, rows, [NOT_TESTED])


def _restricted(comparison: Comparison, split: str, chosen: np.ndarray) -> Comparison:
    """The comparison with only the `chosen [documents]` of a split."""
    contestants = []
    for each in comparison.contestants:
        runs = {
            seed: replace(run, records={**run.records, split: run.records[split].where(chosen)})
            for seed, run in each.runs.items()
        }
        contestants.append(replace(each, runs=runs))
    return replace(comparison, contestants=contestants)


def _columns(
    found: Sequence[Score], rows: Sequence[Row], bits: Mapping[str, Column], percent: bool = False
) -> dict[str, Column]:
    """The columns of both tables: results first, then units and cost; differences in per cent on request."""
    return {
        "model": ("model", str),
        "seeds": ("seeds", str),
        **SOLVING,
        "nats_per_token": ("nats/token", "{:.4f}".format),
        "difference": (f"difference from {_reference_name(found)}", with_sign(4)),
        **_against(found),
        **({"difference_percent": ("difference, %", with_sign(2))} if percent else {}),
        "difference_interval": ("95 % interval of the difference", interval(with_sign(4))),
        **_basis_column("difference_interval_of", rows),
        "holm_p": ("Holm p", p_value),
        "verdict": ("verdict", str),
        "interval": ("95 % interval over seeds", interval("{:.4f}".format)),
        "published": ("published", str),
        **bits,
        **COST,
    }


def _score_row(score: Score) -> Row:
    contestant, solving = score.contestant, score.solving
    row = {
        "model": contestant.label,
        "seeds": len(contestant.runs),
        "each_seed": " ".join(map(str, sorted(contestant.runs))),
        "errors": solving and " ".join(map(wrong, solving.accuracies)),
        "solved": solving and "{} of {}".format(*solving.rate),
        "solve_rate": solving and solving.interval,
        "take_off": solving and " ".join("never" if at is None else f"{at / 1000:g}k" for at in solving.take_off),
        "nats_per_token": score.nats.value,
        # A t interval does not fit a mean over seeds of which some solve the task and others do not.
        "interval": None if solving else score.nats.seeds,
        "published": None if score.pooled else contestant.any_run.published.get(score.split),
    }
    for unit, each in score.bits.items():
        row |= {f"bits_per_{unit}": each.value, f"bits_per_{unit}_interval": None if solving else each.seeds}
    if score.tested_against is not None:
        row["against"] = score.tested_against.label
    if (difference := score.difference) is not None:
        row |= {
            "difference": difference.value,
            "difference_interval": difference.both or difference.clusters,
            "difference_interval_of": _basis(difference),
            "difference_percent": 100 * difference.value / difference.level,
        }
    row |= {"holm_p": score.holm_p, "verdict": score.verdict}
    if score.pooled:
        return row
    return row | {
        "parameters": contestant.parameters,
        "flops_per_token": contestant.flops_per_token,
        "tokens_per_s": contestant.tokens_per_s if score.comparison.speeds_comparable else None,
        "peak_memory_bytes": contestant.peak_memory,
    }


def _baseline_row(name: str, records: Records) -> Row:
    bits = {f"bits_per_{unit}": value for unit, value in records.bits_per_unit.items()}
    return {"model": name, "nats_per_token": records.nats_per_token, **bits, "verdict": BASELINE}


def _basis(difference: Difference) -> str | None:
    if difference.both:
        return BOTH
    return CLUSTERS if difference.clusters else None


def _basis_column(key: str, rows: Sequence[Row]) -> dict[str, Column]:
    """A column for what the intervals cover, if not all cover seeds and clusters."""
    return {} if {row.get(key) for row in rows} <= {BOTH, None} else {key: ("interval covers", str)}


def _against(found: Sequence[Score]) -> dict[str, Column]:
    """A column for the reference of each row, if a comparison has several references."""
    several = {}
    for score in found:
        if score.tested_against is not None:
            several.setdefault(id(score.comparison), set()).add(score.tested_against.label)
    return {"against": ("reference", str)} if any(len(labels) > 1 for labels in several.values()) else {}


def _pairing_notes(found: Sequence[Score]) -> list[str]:
    """A note that names the differences which use fewer seeds than the scores in their row."""
    several, parts = len({each.comparison.title for each in found}) > 1, []
    for each in found:
        if each.compared is None:
            continue
        against, pairs = each.compared[0], each.compared[1].pairs
        if pairs < max(len(model.runs) for model in (each.contestant, against)):
            place = f"{each.comparison.name}, " if several else ""
            less = f"{parenthesised(each.contestant.label)} less {parenthesised(against.label)}"
            parts.append(f"{place}{less}, {plural(pairs, 'seed')}")
    unique = "; ".join(dict.fromkeys(parts))
    return [f"Differences use only the seeds that both models have: {unique}."] if parts else []


def _reference_name(found: Sequence[Score]) -> str:
    labels = {score.against.label: score.against.encoding for score in found if score.against is not None}
    return next(iter(labels if len(labels) == 1 else labels.values()), "reference")
