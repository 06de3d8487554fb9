"""A model of a comparison: runs that differ only in their seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..session.run_directory import leaves
from .finished import Run
from .naming import parenthesised, settings_of, short
from .statistics import FEWEST_SEEDS


@dataclass(frozen=True)
class Contestant:
    """Runs that differ only in their seed; `runs` by seed."""

    label: str
    runs: Mapping[int, Run]

    @property
    def any_run(self) -> Run:
        return self.runs[min(self.runs)]

    @property
    def encoding(self) -> str:
        return self.any_run.encoding

    def called(self, name: str) -> bool:
        """Whether `name` is its encoding or its label, as of a study's `reference`.

        A label leaves out settings in which the runs so far do not differ; `name` may have them.
        """
        encoding, *settings = name.split(", ")
        if name in (self.encoding, self.label) or encoding != self.encoding or not settings:
            return name in (self.encoding, self.label)
        shown, own = self.label.split(", ")[1:], settings_of(dict(leaves(self.any_run.config)))
        return {*shown} <= {*settings} <= {*shown, *own}

    @property
    def controls(self) -> list[str]:
        """Keys of settings that may differ between models, in the studies of its runs."""
        return list(dict.fromkeys(key for run in self.runs.values() for key in run.controls))

    def value(self, key: str) -> Any:
        """The value of a setting; None if it is null."""
        return self.any_run.facts.get(key)

    @property
    def validation(self) -> float:
        """Mean nats/token on the validation split."""
        return self.validation_of(self.runs)

    def validation_of(self, seeds: Iterable[int]) -> float:
        """Mean nats/token of these seeds on the validation split."""
        return float(np.mean([self.runs[seed].records["valid"].nats_per_token for seed in seeds]))

    @property
    def testable(self) -> bool:
        """Whether it has enough seeds for a test."""
        return len(self.runs) >= FEWEST_SEEDS

    def document_mean(self, split: str) -> float:
        """Nats/token per document, averaged over documents with targets and over seeds."""
        records = [run.records[split] for run in self.runs.values()]
        return float(np.mean([(each.nats[each.tokens > 0] / each.tokens[each.tokens > 0]).mean() for each in records]))

    def nats(self, split: str, seeds: Iterable[int]) -> np.ndarray:
        """`[seeds, documents]`."""
        return np.stack([self.runs[seed].records[split].nats for seed in seeds])

    @property
    def model(self) -> Mapping[str, Any]:
        """The manifest's entry about the model; empty for runs made by earlier versions."""
        return self.any_run.manifest.get("model", {})

    @property
    def parameters(self) -> int | None:
        return self.model.get("parameters")

    @property
    def flops_per_token(self) -> float | None:
        """Training FLOPs per token, forward and backward."""
        return self.model.get("flops_per_token")

    @property
    def tokens_per_s(self) -> float | None:
        """Median over the runs; None if any run has no valid speed."""
        speeds = [speed for run in self.runs.values() if (speed := run.tokens_per_s) is not None]
        return float(np.median(speeds)) if len(speeds) == len(self.runs) else None

    @property
    def training_minutes(self) -> float:
        """Sum over all runs whose speed is known."""
        return sum(run.training_minutes or 0.0 for run in self.runs.values())

    @property
    def changed_options(self) -> str | None:
        """Options of the encoding that differ from its defaults; None if there are none."""
        options = [f"{key}={short(value)}" for key, value in self.model.get("options", {}).items()]
        return f"{parenthesised(self.label)} {', '.join(options)}" if options else None

    @property
    def peak_memory(self) -> int | None:
        """Peak GPU memory of training in bytes; None if not recorded."""
        peaks = [run.manifest["peak_memory_bytes"] for run in self.runs.values() if "peak_memory_bytes" in run.manifest]
        return max(peaks, default=None)


def best_of(contestants: Sequence[Contestant]) -> Contestant:
    """The best on validation, over the seeds that all of them have, or over all seeds if they share none.

    Those with too few seeds for a test take part only if all have too few: the mean of few seeds can be low by chance,
    or because training diverged with the others.
    """
    candidates = [each for each in contestants if each.testable] or contestants
    common = set.intersection(*({*each.runs} for each in candidates))
    return min(candidates, key=lambda each: each.validation_of(sorted(common) or each.runs))
