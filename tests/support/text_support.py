"""What the tests of text share: pages, and files of every kind that hold them."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import DATA

from bearings.domains.text import Text

GPT2 = DATA / "gpt2-bpe" / "tokenizer.json"
needs_gpt2 = pytest.mark.data(GPT2)
WORDS = ["the", "sea", "the", "öl", "音楽", "naïve", "🎵", "a\r\nb", "1234", "don't", "<|endoftext|>", "", "a\tb"]


def pages(count: int, seed: int = 0) -> list[str]:
    """Documents that no two are alike, with every kind of white space and letter."""
    random = np.random.default_rng(seed)
    return [f"{i} " + " ".join(random.choice(WORDS, random.integers(5, 60))) + "\n" for i in range(count)]


def zst(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def jsonl(texts, field="text") -> bytes:
    return "".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(texts)).encode()


def parquet(path: Path, texts, field="text") -> None:
    pq.write_table(pa.table({"id": range(len(texts)), field: texts}), path, row_group_size=7)


def build(path, root, **options):
    given = {"tokenizer": "bytes", "valid_fraction": 0.3, "test_fraction": 0.3}
    return Text(str(path), **given | options).prepare(root)
