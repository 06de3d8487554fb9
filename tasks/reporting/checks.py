"""Whether the files of a run fit together, before figures are made of them."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bearings.checked_files import NAME, read_csv, whole
from bearings.lightning_modules.evaluation import Records
from bearings.tasks.run_directory import RunDirectory, identity


def check_manifest(manifest: Mapping) -> None:
    """Raise ValueError where what a report reads of a finished run's manifest is absent or of another type."""

    def need(right: Any, place: str) -> None:
        if not right:
            raise ValueError(f"manifest.json: {place} is absent, or of another kind than training writes")

    json.dumps(manifest, ensure_ascii=False).encode()  # raises for half a character, which no file can hold
    store, sessions = manifest.get("store"), manifest.get("sessions")
    need(isinstance(store, dict), "store")
    need(isinstance(store.get("sha256"), str) and re.fullmatch("[0-9a-f]{64}", store["sha256"]), "store.sha256")
    need(_names(store.get("units")), "store.units")
    need(_names(store.get("splits")) and store["splits"][:2] == ["train", "valid"], "store.splits")
    documents = store.get("documents")
    need(isinstance(documents, dict) and documents.keys() == {*store["splits"]}, "store.documents")
    need(all(map(_count, documents.values())), "store.documents")
    need(_count(store.get("vocabulary")) and 1 <= store["vocabulary"] <= 2**32, "store.vocabulary")
    need(_names([store.get("domain")]) and store["domain"].strip("."), "store.domain")
    need(isinstance(sessions, list) and sessions and all(isinstance(each, dict) for each in sessions), "sessions")
    for session in sessions:
        need(isinstance(session.get("device"), str), "sessions.device")
        need(_count(session.get("ranks", 1)) and _count(session.get("beside", 0)), "sessions.ranks")
        code = session.get("code")
        need(code is None or (isinstance(code, dict) and {"commit", "dirty"} <= code.keys()), "sessions.code")
        need(all(isinstance(text, str | None) for text in (code or {}).values()), "sessions.code")
    need(_count(manifest.get("peak_memory_bytes", 0)), "peak_memory_bytes")


def difference(directory: RunDirectory, manifest: Mapping, records: Mapping[str, Records]) -> str | None:
    """How the files of a finished run contradict one another, in words; None where they do not."""
    try:
        made = manifest["config"]["names"], identity(manifest["config"])
    except (KeyError, TypeError, AttributeError):
        made = None
    if made != (directory.config["names"], identity(directory.config)):
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


def _names(value: Any) -> bool:
    right = isinstance(value, list) and all(isinstance(name, str) and NAME.fullmatch(name) for name in value)
    return right and 0 < len({*value}) == len(value)


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63
