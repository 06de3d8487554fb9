"""A run's manifest.json: configuration, data, model, environment, and digests of its files and of itself."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.checked_files import NAME, SHA256, is_count, read_json
from ..core.legend_records import legends_of

DIGEST = "sha256"  # of the manifest's other keys


def read_manifest(file: Path) -> dict:
    """Read a manifest. Raises ValueError if it cannot be read or does not match its digest, if it has one."""
    manifest = read_json(file)
    if not isinstance(manifest, dict):
        raise ValueError("it is not a mapping")
    digest = manifest.pop(DIGEST, None)
    if digest is not None and digest != _digest(manifest):
        raise ValueError("it has changed since it was written")
    if manifest.keys() & {"store", "sessions", "finished"}:
        _check(manifest)
    return manifest


def manifest_text(facts: Mapping[str, Any], indent: int = 2) -> str:
    """The text of a manifest with `facts`."""
    return json.dumps({**facts, DIGEST: _digest(facts)}, indent=indent) + "\n"


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _check(manifest: Any) -> None:
    """Raise ValueError if a required entry of a started run's manifest is missing or has the wrong type."""

    def need(right: Any, place: str) -> None:
        if not right:
            raise ValueError(f"{place} is missing or invalid")

    json.dumps(manifest, ensure_ascii=False).encode()  # raises for lone surrogates, which no file can hold
    store, sessions = manifest.get("store"), manifest.get("sessions")
    need(isinstance(store, dict), "store")
    need(isinstance(store.get("sha256"), str) and SHA256.fullmatch(store["sha256"]), "store.sha256")
    need(_names(store.get("units")), "store.units")
    need(_names(store.get("splits")) and store["splits"][:2] == ["train", "valid"], "store.splits")
    documents = store.get("documents")
    need(isinstance(documents, dict) and documents.keys() == {*store["splits"]}, "store.documents")
    need(all(map(is_count, documents.values())), "store.documents")
    sizes = store.get("bytes", {"tokens.bin": 1})
    need(isinstance(sizes, dict) and is_count(sizes.get("tokens.bin")) and sizes["tokens.bin"] > 0, "store.bytes")
    need(is_count(store.get("vocabulary")) and 1 <= store["vocabulary"] <= 2**32, "store.vocabulary")
    need(_names([store.get("domain")]), "store.domain")
    need(isinstance(sessions, list) and sessions and all(isinstance(each, dict) for each in sessions), "sessions")
    for session in sessions:
        need(isinstance(session.get("device"), str), "sessions.device")
        need(is_count(session.get("ranks", 1)) and is_count(session.get("beside", 0)), "sessions.ranks")
        need(is_count(session.get("from_step", 0)), "sessions.from_step")
        code = session.get("code")
        need(code is None or (isinstance(code, dict) and {"commit", "dirty"} <= code.keys()), "sessions.code")
        need(all(isinstance(text, str | None) for text in (code or {}).values()), "sessions.code")
    files = manifest.get("files", {})
    need(isinstance(files, dict) and all(isinstance(digest, str) for digest in files.values()), "files")
    model = manifest.get("model", {})
    need(isinstance(model, dict) and isinstance(model.get("options", {}), dict), "model")
    need(is_count(model.get("parameters", 0)), "model.parameters")
    flops = model.get("flops_per_token", 0.0)
    need(isinstance(flops, float | int) and 0 <= flops < 1e18, "model.flops_per_token")
    need(is_count(manifest.get("peak_memory_bytes", 0)), "peak_memory_bytes")
    need(is_count(manifest.get("diverged") or 0), "diverged")
    legends_of(manifest)


def _names(value: Any) -> bool:
    right = isinstance(value, list) and all(isinstance(name, str) and NAME.fullmatch(name) for name in value)
    return right and 0 < len({*value}) == len(value)
