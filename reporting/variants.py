"""AUROC of variant effects from the per-item results of task=variants, by group of variants."""

from collections.abc import Mapping

import numpy as np
import scipy

from ..domains.items import Items
from ..domains.variants import ALL
from .intervals import TAIL, mean_interval
from .statistics import FEWEST_SEEDS, by_cluster
from .study import Comparison
from .tables import Row, Table, interval, with_sign

NATS, LABEL = "nats", "label"  # columns of the items
METHODS = {"cadd": "CADD", "phylop": "phyloP"}
# Published for exactly these variants and labels, by their digest: BRCA1 (Findlay et al., Nature 562, 2018).
BRCA1 = "881ff4f51bab1008c769c4f528c3cd10c6e302ddd5821f860c045a2014a628d2"
PUBLISHED = {BRCA1: {"Evo 2 1B (published)": 0.729}}
FEWEST = 10  # variants of each kind in a group


def auroc(scores: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Area under the ROC curve, ties counting half, and the influence of each item on it, `[items]`.

    The influences sum to 0; the sum of their squares is the variance by DeLong et al. (Biometrics 44, 1988), up to
    factors of n / (n - 1). Summed by cluster first, it is that of Obuchowski (Biometrics 53, 1997).

    Args:
        scores: higher for positive items, `[items]`.
        labels: whether an item is positive, `[items]` bool; some are and some are not.
    """
    ranks, influence = scipy.stats.rankdata(scores), np.zeros(len(scores))
    positive, negative = int(labels.sum()), int((~labels).sum())
    above = (ranks[labels] - scipy.stats.rankdata(scores[labels])) / negative  # share of negatives below a positive
    below = 1 - (ranks[~labels] - scipy.stats.rankdata(scores[~labels])) / positive
    value = float(above.mean())
    influence[labels], influence[~labels] = (above - value) / positive, (below - value) / negative
    return value, influence


def spread(influence: np.ndarray, clusters: np.ndarray) -> float:
    """The standard error of a value from influences `[items]`; items of a cluster are dependent."""
    sums = by_cluster(influence, clusters)
    return float(np.sqrt((sums**2).sum() * len(sums) / (len(sums) - 1))) if len(sums) > 1 else 0.0


def variants_of(comparison: Comparison) -> dict[str, dict[str, dict[int, Items]]]:
    """Results by table, contestant and seed."""
    found: dict[str, dict[str, dict[int, Items]]] = {}
    for contestant in comparison.contestants:
        for seed, run in sorted(contestant.runs.items()):
            for name, items in run.measured.items.items():
                if "-w" in name and {NATS, LABEL} <= items.columns.keys():  # TABLE-wWINDOW
                    found.setdefault(name, {}).setdefault(contestant.label, {})[seed] = items
    return dict(sorted(found.items()))


def variants_table(
    found: Mapping[str, Mapping[int, Items]], reference: str | None, title: str, slug: str = "variants"
) -> Table:
    """A row per group and model, and one for each other method.

    Args:
        found: by model, the results of each seed.
        reference: the model with which the others are compared; None for no comparison.
    """
    first = next(iter(next(iter(found.values())).values()))
    left_out = sorted(
        {model for model, seeds in found.items() if any(not _alike(items, first) for items in seeds.values())}
    )
    found = {model: seeds for model, seeds in found.items() if model not in left_out}
    rows: list[Row] = []
    groups, few = _groups(first)
    for group, here in groups.items():
        labels = first.columns[LABEL][here] == 1
        clusters = np.unique([name.rpartition(":")[0] for name in first.names[here].tolist()], return_inverse=True)[1]
        counted = {"group": group, "variants": len(labels), "damaging": int(labels.sum())}
        scored = {
            model: {seed: auroc(items.columns[NATS][here], labels) for seed, items in seeds.items()}
            for model, seeds in found.items()
        }
        for model, seeds in scored.items():
            row = counted | {"model": model, "seeds": len(seeds)} | _estimate(seeds, clusters)
            if reference in scored and model != reference:
                common = {
                    seed: (seeds[seed][0] - value, seeds[seed][1] - influence)
                    for seed, (value, influence) in scored[reference].items()
                    if seed in seeds
                }
                if common:
                    change = _estimate(common, clusters, limits=(-1.0, 1.0))
                    row |= {f"difference_{key}": value for key, value in change.items()}
            rows.append(row)
        for key, name in METHODS.items():
            if key in first.columns:
                value = {0: auroc(first.columns[key][here], labels)}
                rows.append(counted | {"model": name} | _estimate(value, clusters))
        published = PUBLISHED.get(first.source, {}) if group == ALL else {}
        rows += [counted | {"model": name, "auroc": value} for name, value in published.items()]
    columns = {
        "group": ("variants", str),
        "model": ("model", str),
        "variants": ("number", "{:,}".format),
        "damaging": ("damaging", "{:,}".format),
        "seeds": ("seeds", str),
        "auroc": ("AUROC", "{:.3f}".format),
        "over_variants": ("95 % over variants", interval("{:.3f}".format)),
        "over_seeds": ("95 % over seeds", interval("{:.3f}".format)),
        "difference_auroc": (f"difference from {reference}", with_sign(3)),
        "difference_over_variants": ("its 95 % over variants", interval(with_sign(3))),
        "difference_over_seeds": ("its 95 % over seeds", interval(with_sign(3))),
    }
    notes = _explanations(first) if rows else [f"No group has {FEWEST} variants of each kind, so there is no AUROC."]
    if few:
        notes.append(
            f"Left out, with fewer than {FEWEST} variants that are damaging or that are not: {', '.join(few)}."
        )
    if left_out:
        notes.append(f"Left out because they scored other variants: {', '.join(left_out)}.")
    return Table(slug, title, columns, rows, notes)


def _explanations(items: Items) -> list[str]:
    """What the columns of a table mean."""
    intervals = "Intervals over variants: DeLong et al. (1988), with the variants of a position as a cluster."
    if len({*items.groups.tolist()}) > 1:
        intervals += " Groups are never pooled, because labels follow from the consequence of a variant."
    return [
        "AUROC: probability that a damaging variant has a higher score than another one; 0.5 is chance. Score: nats of "
        "the alternative allele minus those of the reference, mean of both strands, without training on labels.",
        intervals,
    ]


def _groups(items: Items) -> tuple[dict[str, np.ndarray], list[str]]:
    """Masks of the groups with enough variants of both kinds, the best balanced first; and the others."""
    found, few = {}, []
    for group in dict.fromkeys(items.groups.tolist()):
        here = items.groups == group
        damaging = int((items.columns[LABEL][here] == 1).sum())
        if (smaller := min(damaging, int(here.sum()) - damaging)) >= FEWEST:
            found[group] = (-smaller, here)
        else:
            few.append(f"{group} ({damaging} of {here.sum():,})")
    return {group: here for group, (_, here) in sorted(found.items(), key=lambda each: (each[1][0], each[0]))}, few


def _alike(items: Items, other: Items) -> bool:
    return items.are_of(other) and np.array_equal(items.columns[LABEL], other.columns[LABEL])


def _estimate(
    seeds: Mapping[int, tuple[float, np.ndarray]],
    clusters: np.ndarray,
    limits: tuple[float, float] = (0.0, 1.0),
) -> Row:
    """Mean over seeds of a value with its influences, and its intervals, which end at the `limits`."""
    values = np.array([value for value, _ in seeds.values()])
    row: Row = {"auroc": float(values.mean())}
    error = spread(np.mean([influence for _, influence in seeds.values()], 0), clusters)
    reach = -scipy.special.ndtri(TAIL) * error
    ends = [("over_variants", (values.mean() - reach, values.mean() + reach))]
    if len(values) >= FEWEST_SEEDS:
        ends.append(("over_seeds", mean_interval(values)))
    return row | {key: (float(max(low, limits[0])), float(min(high, limits[1]))) for key, (low, high) in ends}
