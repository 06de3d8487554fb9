"""Checks that the files of a run are consistent, before results are computed from them."""

from collections.abc import Mapping

import numpy as np

from ..domains.records import Records
from ..session.identity import identity
from ..session.run_config import written
from ..session.run_directory import RunDirectory


def difference(directory: RunDirectory, manifest: Mapping, records: Mapping[str, Records]) -> str | None:
    """How the files of a finished run contradict each other, as text; None if they are consistent."""
    try:
        made = _decided(manifest["config"])
    except (KeyError, TypeError, AttributeError):
        made = None
    if made != _decided(directory.config):
        return "config.yaml and manifest.json have different configurations"
    store = manifest["store"]
    for split, each in records.items():
        if each.store != store["sha256"]:
            return f"nll/{split}.npz was scored on other data than the run was trained on"
        if len(each.documents) != store["documents"][split]:
            return f"nll/{split}.npz has {len(each.documents)} of the split's {store['documents'][split]} documents"
        if list(each.unit_names) != store["units"]:
            return f"nll/{split}.npz counts {', '.join(each.unit_names)}, but the data has {', '.join(store['units'])}"
        if not np.isfinite(each.nats).all():
            return f"nll/{split}.npz has a value that is not finite"
    return None


def _decided(config: Mapping) -> tuple[Mapping, dict]:
    """A configuration in one form, whether or not it was read from a file."""
    return config["names"], identity(written(config))


def baseline_difference(name: str, baseline: Records, records: Records) -> str | None:
    """How a baseline contradicts the records of its split; None if it is consistent, or was computed on other data."""
    if baseline.store != records.store:
        return None
    for field in ("documents", "clusters", "tokens", "units"):
        if not np.array_equal(getattr(baseline, field), getattr(records, field)):
            return f"{name} and the run's records have different {field}"
    return None if np.isfinite(baseline.nats).all() else f"{name} has a value that is not finite"
