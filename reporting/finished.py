"""A run as reports read it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..core.packed_paths import AnyPath
from ..domains.base import Domain
from ..domains.items import Items
from ..domains.records import Records
from ..domains.store_checks import dtype_of
from ..session.identity import STAGES
from ..session.run_directory import RunDirectory
from ..session.trust import GoneError, located
from .losses import Curve
from .tables import Row

COMPILED = " (compiled)"  # ends the name of a device
# Settings that may differ between encodings in a fair comparison: MLP size for equal cost, tuned learning rate, and how
# a pretrained model was converted.
MLP, RATE = "model.mlp_hidden", "optimizer.learning_rate"
CONTROLS = (MLP, RATE, *STAGES)


@dataclass(frozen=True)
class Listed:
    """The entries of the `study.yaml` that a run belongs to; empty if it belongs to none.

    Attributes:
        place: the study's folder.
        published: results reported by others, by split and encoding.
        variants: setting keys under which the study repeats the test of one hypothesis.
        searched: setting keys whose values the study has chosen for each encoding, besides the learning rate.
        compare: setting keys whose values the study compares as it compares encodings.
        margin: the study's margin of equivalence in nats/token; None for the domain's.
    """

    place: Path | None = None
    published: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    variants: Sequence[str] = ()
    searched: Sequence[str] = ()
    compare: Sequence[str] = ()
    margin: float | None = None


@dataclass(frozen=True)
class Measured:
    """What tasks have measured of a trained model, each by the names of its files.

    Attributes:
        lengths: rows of task=extrapolate, as from `read_lengths`.
        mechanisms: columns of task=mechanisms, as from `read_mechanism`.
        samples: rows of task=generate, as from `read_metrics`.
        items: per-item results of task=benchmark and task=variants.
    """

    lengths: Mapping[str, Sequence[Row]]
    mechanisms: Mapping[str, Mapping[str, np.ndarray]]
    samples: Mapping[str, Sequence[Row]]
    items: Mapping[str, Items]


@dataclass(frozen=True)
class Run:
    """A finished run, or one whose training diverged, which has no records.

    Attributes:
        facts: everything that determines the results, by dotted key: configuration, data and units. Null values are
            left out, because runs made before a key was introduced lack it.
        records: by split, including validation.
        baselines: by split and name, if the run has kept them.
        curve: columns of metrics.csv.
    """

    directory: RunDirectory
    manifest: Mapping
    facts: Mapping[str, Any]
    records: Mapping[str, Records]
    baselines: Mapping[str, Mapping[str, Records]]
    curve: Curve
    measured: Measured
    listed: Listed

    @property
    def path(self) -> AnyPath:
        return self.directory.path

    @property
    def config(self) -> Mapping:
        return self.directory.config

    @property
    def diverged(self) -> int | None:
        """The step at which its training diverged; None if it finished."""
        return None if self.manifest.get("finished") else self.manifest.get("diverged")

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def encoding(self) -> str:
        return self.config["names"]["encoding"]

    @property
    def controls(self) -> tuple[str, ...]:
        """Keys of settings that may differ between the models of one comparison."""
        return (*CONTROLS, *self.listed.searched, *self.listed.compare)

    @property
    def published(self) -> dict[str, str]:
        """Results that others report for such a run, by split."""
        found = self.listed.published.items()
        return {split: figures[self.encoding] for split, figures in found if self.encoding in figures}

    @property
    def devices(self) -> list[str]:
        """The devices it was trained on, with what else affects speed."""
        found = set()
        for session in self.manifest["sessions"]:
            several = f"{session['ranks']} x " if session.get("ranks", 1) > 1 else ""
            found.add(several + session["device"] + (COMPILED if session.get("compiled") else ""))
        return sorted(found)

    @property
    def tokens_per_s(self) -> float | None:
        """Median of the logged values except the first, which includes start-up.

        None if the manifest records that other jobs shared the device.
        """
        if any(session.get("beside") for session in self.manifest["sessions"]):
            return None
        return self._speed

    @property
    def training_minutes(self) -> float | None:
        """Minutes of the device that training took, estimated from the speed; None if no speed was logged.

        If other runs shared the device, only this run's share of the time is counted.
        """
        if self._speed is None:
            return None
        sharing = max(session.get("beside") or 0 for session in self.manifest["sessions"])
        rows = self.config["trainer"]["steps"] * self.config["data"]["batch_size"]
        return rows * self._tokens_per_row / self._speed / 60 / (1 + sharing)

    @property
    def _tokens_per_row(self) -> float:
        """Mean number of tokens in a training row, without padding, as if all documents had the same length."""
        data, store = self.config["data"], self.manifest["store"]
        examples = self.domain.solved is not None  # of generated domains, whose rows hold as many whole ones as fit
        if "bytes" not in store or (data["packed"] and not examples):
            return data["length"]
        tokens = store["bytes"]["tokens.bin"] / dtype_of(store["vocabulary"]).itemsize
        targets = max(1.0, tokens / max(1, sum(store["documents"].values())) - 1)  # of a document
        if examples:
            return targets * max(1, data["length"] // targets)
        return targets / math.ceil(targets / data["length"])

    @cached_property
    def domain(self) -> type[Domain]:
        """The class of its domain."""
        try:
            return located(self.config["domain"]["_target_"], "domain")
        except GoneError:  # the code of a kept run's domain may have been removed
            return Domain

    @property
    def _speed(self) -> float | None:
        logged = self.curve.get("tokens_per_s")
        return float(np.median(logged.values[1:])) if logged and len(logged.values) > 1 else None
