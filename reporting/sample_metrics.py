"""Metrics of samples against the test split, from `sample_metrics/*.csv` as a table."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ..core.checked_files import DAMAGE, NAME, figure, read_csv, whole, why
from ..core.errors import UserError
from ..domains.base import Measures
from .intervals import Bootstrap, effective, mean_interval
from .statistics import FEWEST_CLUSTERS, FEWEST_SEEDS, Estimate, by_cluster
from .study import Comparison
from .tables import Row, Table, interval, with_sign, write_csv

SAMPLE, TEST = "sample", "test"
PLACE = ("origin", "piece", "cluster", "segment")
TEST_SPLIT = "test split"
LARGEST = 1e6  # absolute value of a metric


def measured(origin: str, pieces: Iterable[tuple[str, int, np.ndarray]], names: Sequence[str]) -> list[Row]:
    """Rows of pieces: name, cluster, and metrics `[segments, len(names)]` of each."""
    return [
        {"origin": origin, "piece": piece, "cluster": cluster, "segment": segment}
        | {name: None if math.isnan(value) else float(f"{value:.6g}") for name, value in zip(names, each, strict=True)}
        for piece, cluster, values in pieces
        for segment, each in enumerate(values.tolist())
    ]


def write_metrics(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(path, rows)


def read_metrics(path: Path) -> list[Row]:
    """Rows of a `sample_metrics/*.csv`. Raises UserError if it is damaged."""
    try:
        if not NAME.fullmatch(path.stem):
            raise ValueError("its name may only have letters, digits and ._-")
        rows = [_parsed(row) for row in read_csv(path, PLACE)]
        places = {(row["origin"], row["piece"], row["segment"]) for row in rows}
        if not rows or len(places) < len(rows):
            raise ValueError("it has two results for one segment" if rows else "it has no results")
        if {row["origin"] for row in rows} != {SAMPLE, TEST}:
            raise ValueError(f"its origins are not {SAMPLE} and {TEST}")
        return rows
    except DAMAGE as error:
        raise UserError(f"{path} is damaged ({why(error)}): delete it and run task=generate again") from error


def _parsed(row: Mapping[str, str]) -> Row:
    names = [name for name in row if name not in PLACE]
    if not names:
        raise ValueError("it has no metrics")
    place = {"origin": row["origin"], "piece": row["piece"]} | {key: whole(row[key]) for key in ("cluster", "segment")}
    values = {name: figure(row[name]) if row[name] else None for name in names}
    if large := [name for name, value in values.items() if value is not None and abs(value) > LARGEST]:
        raise ValueError(f"{large[0]} is {values[large[0]]}, which is too large")
    return place | values


def metrics_of(comparison: Comparison) -> dict[str, dict[str, list[Sequence[Row]]]]:
    """By sampling settings and contestant, the rows of each seed that task=generate has measured."""
    found: dict[str, dict[str, list[Sequence[Row]]]] = {}
    for contestant in comparison.contestants:
        for _, run in sorted(contestant.runs.items()):
            for settings, rows in run.measured.samples.items():
                found.setdefault(settings, {}).setdefault(contestant.label, []).append(rows)
    return dict(sorted(found.items()))


def metrics_table(
    found: Mapping[str, Sequence[Sequence[Row]]], measures: Measures | None, title: str, slug: str = "samples"
) -> Table:
    """A row per metric and model, and one of the test split.

    Args:
        found: by model, the rows of each seed.
        measures: the domain's metrics; None if its code no longer exists.
    """
    any_rows, rows = next(iter(found.values()))[0], []
    for name in metric_names(any_rows):
        test = _estimate([any_rows], TEST, name)
        pieces = _pieces([any_rows], TEST, name)
        rows.append(_row(name, TEST_SPLIT, pieces, test) if test else {"metric": name, "model": TEST_SPLIT})
        for model, seeds in found.items():
            sampled = _estimate(seeds, SAMPLE, name)
            row = {"metric": name, "model": model}
            if sampled and test:
                row = _row(name, model, _pieces(seeds, SAMPLE, name), sampled)
                row |= {"difference": sampled.value - test.value, "difference_interval": _apart(sampled, test)}
            rows.append(row)
    columns = {
        "metric": ("metric", partial(_heading, measures.headings if measures else {})),
        "model": ("model", str),
        "pieces": ("pieces", "{:,}".format),
        "value": ("mean", "{:.3f}".format),
        "interval": ("95 % interval", interval("{:.3f}".format)),
        "difference": ("difference from test", with_sign(3)),
        "difference_interval": ("its 95 % interval", interval(with_sign(3))),
    }
    segment = f"{measures.segment} each" if measures else "equal length"
    notes = [
        f"Means over segments of {segment}; an incomplete last segment is left out. Test pieces are cut to the number "
        "of tokens of a sample.",
        f"Intervals: over seeds with {FEWEST_SEEDS} or more of them, otherwise over samples; of the test split over "
        f"clusters of pieces. They need at least {FEWEST_CLUSTERS} samples that differ from the median: task=generate "
        "task.samples=64. The interval of a difference combines both (Zou and Donner, Stat. Med. 27, 2008).",
        *([measures.note] if measures else []),
    ]
    return Table(slug, title, columns, rows, notes, with_samples=True)


def _heading(headings: Mapping[str, str], name: str) -> str:
    return headings.get(name, name)


def _row(name: str, model: str, pieces: int, found: Estimate) -> Row:
    return {"metric": name, "model": model, "pieces": pieces, "value": found.value, "interval": found.seeds}


def metric_names(rows: Sequence[Row]) -> list[str]:
    return [name for name in rows[0] if name not in PLACE]


def _pieces(seeds: Sequence[Sequence[Row]], origin: str, name: str) -> int:
    return sum(len({row["piece"] for row in with_metric(rows, origin, name)}) for rows in seeds)


def with_metric(rows: Sequence[Row], origin: str, name: str) -> list[Row]:
    return [row for row in rows if row["origin"] == origin and row.get(name) is not None]


def _estimate(seeds: Sequence[Sequence[Row]], origin: str, name: str) -> Estimate | None:
    """The mean over segments with its interval, over seeds if there are enough; None if it is never defined."""
    by_seed = [with_metric(rows, origin, name) for rows in seeds]
    if not all(by_seed):
        return None
    means = np.array([np.mean([row[name] for row in rows]) for rows in by_seed])
    if len(seeds) >= FEWEST_SEEDS:
        return Estimate(float(means.mean()), mean_interval(means))
    values = np.array([row[name] for rows in by_seed for row in rows])
    labels = np.array([(seed, row["cluster"]) for seed, rows in enumerate(by_seed) for row in rows])
    clusters = np.unique(labels, axis=0, return_inverse=True)[1].reshape(-1)
    sums, sizes = by_cluster(values, clusters), by_cluster(np.ones(len(values)), clusters)
    apart = np.count_nonzero(~np.isclose(sums / sizes, np.median(sums / sizes)))
    if min(effective(sizes), apart) < FEWEST_CLUSTERS:  # a resample could contain none of the few that differ
        return Estimate(float(values.mean()), None)
    low, high = Bootstrap.of(sums, sizes).interval()
    return Estimate(float(values.mean()), (float(low), float(high)))


def _apart(one: Estimate, other: Estimate) -> tuple[float, float] | None:
    """The interval of the difference of two independent estimates, from their own intervals."""
    if one.seeds is None or other.seeds is None:
        return None
    value = one.value - other.value
    below = math.hypot(one.value - one.seeds[0], other.seeds[1] - other.value)
    above = math.hypot(one.seeds[1] - one.value, other.value - other.seeds[0])
    return value - below, value + above
