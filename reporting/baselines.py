"""Unigram, Markov and xz beside a comparison: as a run keeps them, or counted from the token store."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.errors import UserError
from ..core.progress import shown
from ..domains.baseline_records import baselines, read_baselines, shared_baselines
from ..domains.records import Records
from ..domains.store import Store
from ..session.configuration import build
from .study import Comparison, Run


def baselines_of(
    comparison: Comparison, split: str, runs: Sequence[Run], stores: Path
) -> tuple[dict[str, Records], str | None]:
    """The baselines by name, and a line that says why some are absent, or None.

    `runs` are where they may be kept: one of all that share a store has them.
    """
    sha256, manifest = comparison.facts["store.sha256"], comparison.any_run.manifest["store"]
    for run in runs:
        kept = read_baselines(run.directory.baselines(split))
        if kept and all(records.store == sha256 for records in kept.values()):
            return kept, _without_xz(kept)
    useless = []
    for found in sorted((stores / manifest["domain"]).glob("*/manifest.json")):
        try:
            store = Store.open(found.parent)
            if store.manifest["sha256"] == sha256:
                kept = read_baselines(shared_baselines(store, split))
                if not kept:
                    with shown(f"counting the baselines of {comparison.title}, {split}"):
                        kept = baselines(build(comparison.any_run.config["domain"], "domain"), store, split)
                return kept, _without_xz(kept)
        except (UserError, OSError) as error:
            useless.append(f"; one there is of no use ({error})")
    return {}, (
        f"No baselines: no run keeps them, and the token store {sha256[:12]} is not under {stores} "
        f"(stores=DIRECTORY){''.join(useless)}."
    )


def _without_xz(found: Mapping[str, Records]) -> str | None:
    there = any(name.startswith("xz") for name in found)
    return None if there else "No xz: it would compress tokens too that are context only."
