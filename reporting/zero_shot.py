"""Tables of zero-shot benchmarks: the scores of one run, and of all models with differences from the reference."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..core.words import plural
from ..domains.items import Items
from ..zeroshot.benchmarks import BENCHMARKS
from ..zeroshot.results import COLUMNS, scores_of
from .statistics import FEWEST_CLUSTERS, by_cluster, difference
from .study import Comparison
from .tables import Row, Table, interval, with_sign

BLOCKS = 400  # maximum number of blocks of items that are resampled
MARGIN = 0.01  # of equivalence; required by `difference`, whose equivalence tests are not shown
PERPLEXITY = "perplexity"
BOTH, ITEMS = "seeds and items", "items only"  # what intervals cover
NAMES = {"acc": "accuracy, %", "acc_norm": "acc_norm, %", PERPLEXITY: "perplexity"}


def scores_table(found: Mapping[str, Items]) -> Table:
    """The scores of one model by benchmark."""
    rows = []
    for name, items in found.items():
        benchmark = BENCHMARKS[name]
        scores = scores_of(items.groups, items.columns, benchmark.metrics)
        rows.append({"benchmark": benchmark.title, "items": len(items.names), **scores, "chance": benchmark.chance})
    percent = "{:.2%}".format
    columns = {
        "benchmark": ("benchmark", str),
        "items": ("items", "{:,}".format),
        "acc": ("accuracy", percent),
        "acc_norm": ("acc_norm", percent),
        PERPLEXITY: ("perplexity", "{:,.4g}".format),
        "chance": ("guessing", "{:.0%}".format),
    }
    return Table("benchmarks", "zero-shot benchmarks", columns, rows, [])


def zero_shot_tables(comparison: Comparison, reference: str) -> list[Table]:
    """A table of accuracies and one of perplexities: each model's score and its difference from the reference.

    Benchmarks that no run of the comparison has scored are left out; without any, there are no tables.
    """
    accuracies, perplexities, notes = [], [], []
    for name, benchmark in BENCHMARKS.items():
        by_model, left_out = _results(comparison, reference, name)
        if not by_model:
            continue
        for metric in benchmark.metrics:
            rows = perplexities if metric == PERPLEXITY else accuracies
            rows += _rows(comparison, reference, by_model, name, metric)
        if left_out:
            models, first = ", ".join(left_out), next(iter(by_model))
            what = "other items or another task.prefix"
            notes.append(f"{benchmark.title}: runs of {models} with {what} than {first} are left out.")
    slug, title = f"{comparison.slug}-zero-shot", f"{comparison.name}: zero-shot benchmarks"
    tables = []
    if accuracies:
        explained = (
            "Differences are paired item by item, in percentage points. Their 95 % intervals cover other items, and "
            "with at least three seeds also other seeds. Units of resampling are BLiMP's paradigms and otherwise at "
            f"most {BLOCKS} blocks of consecutive items, which can share a source. There is no interval where models "
            f"differ in fewer than {FEWEST_CLUSTERS} of them. Intervals are not adjusted for the number of benchmarks."
        )
        columns = _columns("{:.2f}", "difference, points")
        tables.append(Table(slug, f"{title}, accuracy", columns, accuracies, [explained, *notes]))
    if perplexities:
        explained = (
            "Differences are paired item by item, in per cent of the reference's perplexity; intervals as above."
        )
        columns = _columns("{:,.5g}", "difference, %")
        tables.append(Table(f"{slug}-perplexity", f"{title}, perplexity", columns, perplexities, [explained]))
    return tables


def _columns(score: str, heading: str) -> dict:
    return {
        "benchmark": ("benchmark", str),
        "metric": ("metric", str),
        "model": ("model", str),
        "seeds": ("seeds", str),
        "items": ("items", "{:,}".format),
        "score": ("score", score.format),
        "chance": ("guessing", "{:.0f}".format),
        "against": ("reference", str),
        "difference": (heading, with_sign(2)),
        "difference_interval": ("95 % interval of the difference", interval(with_sign(2))),
        "difference_interval_of": ("interval covers", str),
    }


def _results(comparison: Comparison, reference: str, name: str) -> tuple[dict[str, dict[int, Items]], list[str]]:
    """Per-item results by label and seed, and the labels of models with runs that scored other items or lack a metric.

    The items are those of the reference, if it has any.
    """
    found: dict[str, dict[int, Items]] = {}
    other: dict[str, None] = {}
    needed, first = {COLUMNS[metric] for metric in BENCHMARKS[name].metrics}, None
    for contestant in sorted(comparison.contestants, key=lambda each: not each.called(reference)):
        for seed in sorted(contestant.runs):
            items = contestant.runs[seed].measured.items.get(name)
            if items is None:
                continue
            if needed <= items.columns.keys() and (first is None or items.are_of(first)):
                first = items
                found.setdefault(contestant.label, {})[seed] = items
            else:
                other[contestant.label] = None
    return found, [*other]


def _rows(
    comparison: Comparison, reference: str, found: Mapping[str, Mapping[int, Items]], name: str, metric: str
) -> list[Row]:
    """A row per model, best first."""
    benchmark, rows = BENCHMARKS[name], []
    for contestant in comparison.contestants:
        if (runs := found.get(contestant.label)) is None:
            continue
        seeds = [scores_of(items.groups, items.columns, [metric])[metric] for items in runs.values()]
        score = float(np.exp(np.mean(np.log(seeds)))) if metric == PERPLEXITY else 100 * float(np.mean(seeds))
        row: Row = {
            "benchmark": benchmark.title,
            "metric": NAMES[metric],
            "model": contestant.label,
            "seeds": len(runs),
            "items": len(next(iter(runs.values())).names),
            "score": score,
            "chance": None if metric == PERPLEXITY else 100 * benchmark.chance,
        }
        against = comparison.reference(contestant, reference)
        if against is not None and against is not contestant and against.label in found:
            theirs = found[against.label]
            if seeds := sorted(runs.keys() & theirs.keys()):
                row |= {"against": against.label, **_difference(runs, theirs, seeds, COLUMNS[metric])}
        rows.append(row)
    return sorted(rows, key=lambda row: row["score"], reverse=metric != PERPLEXITY)


def _difference(one: Mapping[int, Items], other: Mapping[int, Items], seeds: Sequence[int], column: str) -> Row:
    """The paired difference of a column in per cent, or of a perplexity if the column holds nats."""
    first = one[seeds[0]]
    clusters = clusters_of(first)
    sizes = np.bincount(clusters).astype(float)
    mine, theirs = (
        by_cluster(np.stack([runs[seed].columns[column] for seed in seeds]), clusters) for runs in (one, other)
    )
    if len(np.unique(first.groups)) > 1:  # groups count equally, as in the scores
        mine, theirs, sizes = mine / sizes, theirs / sizes, np.ones_like(sizes)
    paired = difference(mine, theirs, sizes, MARGIN)
    differing = np.count_nonzero((mine != theirs).any(0))
    ends = (paired.both or paired.clusters) if differing >= FEWEST_CLUSTERS else None
    shown = _percent_change if column == "nats" else lambda value: 100 * value
    return {
        "difference": shown(paired.value),
        "difference_interval": ends and (shown(ends[0]), shown(ends[1])),
        "difference_interval_of": (BOTH if paired.both else ITEMS) if ends else None,
        "pairs": plural(paired.pairs, "seed"),
    }


def _percent_change(nats: float) -> float:
    """The change of a perplexity in per cent for a difference of nats."""
    return 100 * float(np.expm1(nats))


def clusters_of(items: Items) -> np.ndarray:
    """Labels of the units that are resampled: groups if there are several, else blocks of consecutive items."""
    groups, labels = np.unique(items.groups, return_inverse=True)
    count = len(items.names)
    return labels if len(groups) > 1 else np.arange(count) * min(BLOCKS, count) // count
