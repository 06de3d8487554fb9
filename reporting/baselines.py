"""The unigram, Markov and xz baselines of a comparison, read from a run or computed from the token store."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.errors import UserError
from ..core.progress import shown
from ..domains.baseline_records import baselines, read_baselines, shared_baselines
from ..domains.records import Records
from ..domains.store import Store
from ..session.configuration import build
from .finished import Run
from .study import Comparison


def kept_baselines(comparison: Comparison, split: str, runs: Sequence[Run]) -> Mapping[str, Records]:
    """The baselines of the comparison's token store that one of `runs` has kept, by name; empty if none has."""
    sha256 = comparison.facts["store.sha256"]
    for run in runs:
        kept = run.baselines.get(split)
        if kept and all(records.store == sha256 for records in kept.values()):
            return kept
    return {}


def baselines_of(
    comparison: Comparison, split: str, runs: Sequence[Run], stores: Path
) -> tuple[Mapping[str, Records], str | None]:
    """The baselines by name, and a line that says why some are missing, or None.

    Args:
        runs: all runs of the report; in a study, one run per token store keeps the baselines.
        stores: folder of token stores, from which missing baselines are computed.
    """
    if kept := kept_baselines(comparison, split, runs):
        return kept, _without_xz(kept)
    sha256, manifest = comparison.facts["store.sha256"], comparison.any_run.manifest["store"]
    useless = []
    for found in sorted((stores / manifest["domain"]).glob("*/manifest.json")):
        try:
            store = Store.open(found.parent)
            if store.manifest["sha256"] == sha256:
                kept = read_baselines(shared_baselines(store, split))
                if not kept:
                    with shown(f"computing the baselines of {comparison.name}, {split}"):
                        kept = baselines(build(comparison.any_run.config["domain"], "domain"), store, split)
                return kept, _without_xz(kept)
        except (UserError, OSError) as error:
            useless.append(f"; a store there cannot be used ({error})")
    return {}, (
        f"Baselines are missing: no run has kept them, and the token store {sha256[:12]} is not in {stores} "
        f"(set stores=DIRECTORY){''.join(useless)}."
    )


def _without_xz(found: Mapping[str, Records]) -> str | None:
    has_xz = any(name.startswith("xz") for name in found)
    return None if has_xz else "There is no xz baseline, because xz would also compress tokens that are only context."
