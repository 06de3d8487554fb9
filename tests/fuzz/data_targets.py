"""Mutants of token stores and of data that a user brings: music, sequences and text."""

import hashlib
from pathlib import Path

import numpy as np

from .outcomes import FaultError

GENOME = {"chunk": 50, "tokenizer": "base", "train": ["a"], "valid": ["b"], "test": ["c"]}


def scored(store, period: int = 1) -> dict[str, object]:
    """Figures of a store under a model whose logits follow from the last token, and the names and clusters of it."""
    import torch

    from bearings.lightning_modules.evaluation import Evaluation

    class Bigram(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Parameter(torch.randn(60, 60, generator=torch.Generator().manual_seed(0)))

        def token_nats(self, tokens, targets):
            logits = self.table[tokens]
            nats = torch.nn.functional.cross_entropy(logits.mT, targets, ignore_index=-100, reduction="none")
            return nats, logits.argmax(-1) == targets

    found = {}
    for split in store.manifest["splits"]:
        records = Evaluation(32, "32-true", period=period).score(Bigram(), store, split)
        found |= {f"{split} nats": records.nats_per_token, f"{split} accuracy": records.accuracy}
        found |= {
            f"{split} {name}": value
            for name, value in (*records.bits_per_unit.items(), *records.group_nats_per_token.items())
        }
        found[f"{split} documents"] = f"{records.documents.tolist()} {records.clusters.tolist()}"
        found[f"{split} targets"] = store.targets(split)
    return found


def store_jsb(case: Path) -> dict[str, object]:
    from bearings.domains.jsb import JSB

    return scored(JSB("separated16", str(case.parent.parent / "chorales.json")).prepare(case / "data"), JSB.period)


def store_genome(case: Path) -> dict[str, object]:
    from bearings.domains.genome import Genome

    source = case.parent.parent / "fasta" / "a.fa"
    return scored(Genome(str(source), soft_mask=True, **GENOME).prepare(case / "data"))


def content(store) -> dict[str, object]:
    """Everything that a store holds, as one figure."""
    digest = hashlib.sha256(repr(store.names).encode())
    for array in (store.tokens, store.offsets, store.splits, store.units, store.clusters):
        digest.update(np.ascontiguousarray(array).tobytes())
    return {"content": digest.hexdigest(), "documents": len(store.names)}


def encoded(tokens) -> dict[str, object]:
    return {"tokens": hashlib.sha256(np.asarray(tokens, np.int64).tobytes()).hexdigest()}


def midi_jsb(case: Path) -> dict[str, object]:
    from bearings.domains.jsb import JSB

    return encoded(JSB().encode_file(case / "a.mid"))


def midi_maestro(case: Path) -> dict[str, object]:
    from bearings.domains.maestro import Maestro

    return encoded(Maestro().encode_file(case / "a.mid"))


def genome(case: Path) -> dict[str, object]:
    """The one sequence file of `case`, as a store and as documents to score; with its BED file where there is one."""
    from bearings.domains.genome import Genome

    path = next((path for path in sorted(case.iterdir()) if path.name != "a.bed"), case / "a.fa")
    given = {**GENOME, "split": "bed", "bed": str(case / "a.bed")} if (case / "a.bed").exists() else GENOME
    store = Genome(str(path), **given).prepare(case.parent / "out")
    for _, tokens in Genome(str(path), **given).encode_documents(path):
        encoded(tokens)
    return content(store)


def text(case: Path) -> dict[str, object]:
    from bearings.domains.text import Text

    path = next(case.iterdir(), case / "a.txt")
    given = {"tokenizer": "bytes", "valid_fraction": 0.3, "test_fraction": 0.3, "documents": "paragraph"}
    store = Text(str(path), **given).prepare(case.parent / "out")
    if path.suffix == ".parquet":
        import pyarrow.parquet

        promised = pyarrow.parquet.read_metadata(path).num_rows
        if promised != len(store.names):
            raise FaultError(f"rows: {len(store.names)} of {promised} rows that the footer promises")
    return content(store)


def chorales(case: Path) -> dict[str, object]:
    from bearings.domains.jsb import JSB

    return content(JSB("separated16", str(case / "chorales.json")).prepare(case.parent / "out"))


def musicxml(case: Path) -> dict[str, object]:
    from bearings.domains.jsb import JSB

    return content(JSB("music21", str(case / "scores")).prepare(case.parent / "out"))


def maestro(case: Path) -> dict[str, object]:
    from bearings.domains.maestro import Maestro

    (path,) = case.iterdir()
    return content(Maestro(str(path)).prepare(case.parent / "out"))


def tokenizer(case: Path) -> dict[str, object]:
    from bearings.domains.documents import Document
    from bearings.domains.tokenization import BPE

    found = BPE.read(case / "tokenizer.json")
    (ids,) = found.encode([Document("a", "the sea öl 音楽", "the sea öl 音楽".encode(), 0)])
    return {"ids": str(ids.tolist()), "text": found.decode([*ids, -1, 10**6])}


# Name, template, files, reader, pinned, weight.
TARGETS = (
    ("store-jsb", "store-jsb", ("data/jsb/*/*",), store_jsb, True, 9),
    ("store-genome", "store-genome", ("data/genome/*/*",), store_genome, True, 8),
    ("midi-jsb", "midi-jsb", ("*",), midi_jsb, False, 6),
    ("midi-maestro", "midi-maestro", ("*",), midi_maestro, False, 6),
    ("fasta", "fasta", ("*",), genome, False, 4),
    ("fasta-gz", "fasta-gz", ("*",), genome, False, 4),
    ("two-bit", "two-bit", ("*",), genome, False, 6),
    ("bed", "bed", ("*.bed",), genome, False, 2),
    ("jsonl", "jsonl", ("*",), text, False, 4),
    ("jsonl-gz", "jsonl-gz", ("*",), text, False, 3),
    ("jsonl-zst", "jsonl-zst", ("*",), text, False, 3),
    ("txt", "txt", ("*",), text, False, 3),
    ("parquet", "parquet", ("*",), text, False, 6),
    ("folder", "folder", ("texts/**/*",), text, False, 3),
    ("chorales", "chorales", ("*",), chorales, False, 4),
    ("musicxml", "musicxml", ("scores/*",), musicxml, False, 2),
    ("maestro", "maestro", ("maestro-v3.0.0/**/*",), maestro, False, 3),
    ("maestro-zip", "maestro-zip", ("*",), maestro, False, 3),
    ("maestro-tar", "maestro-tar", ("*",), maestro, False, 2),
    ("tokenizer", "tokenizer", ("*",), tokenizer, False, 4),
)
