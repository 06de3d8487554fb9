"""Whether the files of a run fit together, before figures are made of them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..core.checked_files import read_csv, whole
from ..domains.records import Records
from ..session.run_config import written
from ..session.run_directory import RunDirectory, identity


def difference(directory: RunDirectory, manifest: Mapping, records: Mapping[str, Records]) -> str | None:
    """How the files of a finished run contradict one another, in words; None where they do not."""
    try:
        made = _decided(manifest["config"])
    except (KeyError, TypeError, AttributeError):
        made = None
    if made != _decided(directory.config):
        return "config.yaml and manifest.json name different configurations"
    store = manifest["store"]
    for split, each in records.items():
        if each.store != store["sha256"]:
            return f"nll/{split}.npz was scored on other data than it was trained on"
        if len(each.documents) != store["documents"][split]:
            return f"nll/{split}.npz holds {len(each.documents)} of the split's {store['documents'][split]} documents"
        if list(each.unit_names) != store["units"]:
            return f"nll/{split}.npz counts {', '.join(each.unit_names)}, the data are in {', '.join(store['units'])}"
        if not np.isfinite(each.nats).all():
            return f"nll/{split}.npz holds a figure that is not finite"
    return None


def _decided(config: Mapping) -> tuple[Mapping, dict]:
    """What a configuration says, in the same form whether or not it was read from a file."""
    return config["names"], identity(written(config))


def baseline_difference(name: str, baseline: Records, records: Records) -> str | None:
    """How a baseline contradicts the records of the same split; None where it does not, or is of other data."""
    if baseline.store != records.store:
        return None
    for field in ("documents", "clusters", "tokens", "units"):
        if not np.array_equal(getattr(baseline, field), getattr(records, field)):
            return f"{name} is of other {field} than the run's own records"
    return None if np.isfinite(baseline.nats).all() else f"{name} holds a figure that is not finite"


def read_curve(path: Path) -> list[dict[str, float]]:
    """Rows of metrics.csv, empty cells left out; empty where there is none. A row that is being written is left out.

    Raises:
        ValueError: a row is cut, or holds anything but numbers.
    """
    if not path.exists():
        return []
    rows = read_csv(path, ["step"], growing=True)
    return [
        {key: float(whole(value)) if key == "step" else float(value) for key, value in row.items() if value}
        for row in rows
    ]
