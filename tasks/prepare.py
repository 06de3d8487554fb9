"""task=prepare: make the token store, and say what is in it."""

from ..session.banner import print_facts
from ..session.session import Session
from ..session.task import Task


class Prepare(Task):
    """Download or read the sources and build the store; instant when it is there."""

    def __call__(self, session: Session) -> None:
        store = session.store()
        lines = {"store": str(store.directory), "sha256": store.manifest["sha256"]}
        for split in store.manifest["splits"]:
            units = ", ".join(f"{count:,.0f} {unit}s" for unit, count in store.unit_counts(split).items())
            lines[split] = f"{store.manifest['documents'][split]:,} documents, {store.targets(split):,} tokens, {units}"
        if by := store.manifest.get("splits_by"):
            lines["splits by"] = by
        if skipped := store.manifest.get("skipped"):
            first, why = next(iter(skipped.items()))
            lines["left out"] = f"{len(skipped):,} files, the first of them {first} ({why})"
        print_facts(session, lines)
