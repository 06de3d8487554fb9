"""task=prepare: build the token store and print its contents."""

from ..session.banner import overlap_text, print_lines, units_text
from ..session.session import Session
from ..session.task import Task


class Prepare(Task):
    """Download or read the sources and build the token store, unless it exists."""

    def __call__(self, session: Session) -> None:
        store = session.store()
        lines = {"store": str(store.directory), "sha256": store.manifest["sha256"]}
        for split in store.manifest["splits"]:
            documents, tokens = store.manifest["documents"][split], store.targets(split)
            lines[split] = f"{documents:,} documents, {tokens:,} tokens, {units_text(session, store, split)}"
        if by := store.manifest.get("splits_by"):
            lines["split by"] = by
        if overlap := overlap_text(store.manifest):
            lines["overlap"] = overlap
        if skipped := store.manifest.get("skipped"):
            first, why = next(iter(skipped.items()))
            lines["skipped"] = f"{len(skipped):,} files, for example {first} ({why})"
        print_lines(session, lines)
