"""Text: splits, trained tokenizers, options that determine the store, and rendered files."""

import gzip
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import DATA
from text_support import build, jsonl, pages, parquet, zst

from bearings.core.errors import UserError
from bearings.domains import documents
from bearings.domains.genome import Genome
from bearings.domains.store import SPLITS
from bearings.domains.text import Text
from bearings.domains.tokenization import BPE
from bearings.session.banner import overlap_text

WIKITEXT = DATA / "wikitext-2"
needs_wikitext = pytest.mark.data(WIKITEXT)


def sample(folder: Path) -> SimpleNamespace:
    """All formats in one folder, with a tokenizer trained on them."""
    folder.mkdir()
    texts = pages(70)
    parquet(folder / "a.parquet", texts[:20])
    (folder / "b.jsonl").write_bytes(jsonl(texts[20:40]))
    (folder / "c.jsonl.zst").write_bytes(zst(jsonl(texts[40:60])))
    for i in range(60, 69):
        (folder / f"{i}.txt").write_bytes(texts[i].encode())
    (folder / "last.TXT.gz").write_bytes(gzip.compress(texts[69].encode()))
    (folder / "notes.md").write_text("not read")
    (folder / ".hidden.txt").write_text("not read")
    names = [
        *(f"a.parquet:{i + 1}" for i in range(20)),
        *(f"b.jsonl:{i + 1}" for i in range(20)),
        *(f"c.jsonl.zst:{i + 1}" for i in range(20)),
        *(f"{i}.txt" for i in range(60, 69)),
        "last.TXT.gz",
    ]
    return SimpleNamespace(
        options={
            "path": str(folder),
            "tokenizer": "train",
            "vocabulary_size": 280,
            "valid_fraction": 0.2,
            "test_fraction": 0.2,
        },
        raw=dict(zip(names, texts, strict=True)),
        same=lambda decoded, text: decoded == text,
        units=lambda text: {"byte": len(text.encode())},
        source=folder / "c.jsonl.zst",
    )


def test_store_preserves_bytes(tmp_path):
    texts = [f"line {i}\r\n" for i in range(50)]
    (tmp_path / "crlf.txt").write_bytes("".join(texts).encode())
    store = build(tmp_path / "crlf.txt", tmp_path / "root", documents="line")
    kept = [Text(tokenizer="bytes").decode(store.document(i)) for i in range(50)]
    assert kept == texts
    document = store.document(0)
    assert document.tolist() == [256, *texts[0].encode(), 256]
    assert store.manifest["tokens_of_text"] == sum(map(len, texts))


def test_copies_share_a_split_and_fractions_hold(tmp_path):
    texts = pages(2000)
    (tmp_path / "x.jsonl").write_bytes(jsonl(texts + texts[:500]))
    store = build(tmp_path / "x.jsonl", tmp_path / "root", valid_fraction=0.2, test_fraction=0.1)
    assert store.splits[:500].tolist() == store.splits[2000:].tolist()
    assert store.clusters[:500].tolist() == store.clusters[2000:].tolist()
    shares = [len(store.documents(part)) / 2500 for part in SPLITS]
    assert np.abs(np.array(shares) - [0.7, 0.2, 0.1]).max() < 0.03
    shuffled = [texts[i] for i in np.random.default_rng(0).permutation(2000)]
    (tmp_path / "x.jsonl").write_bytes(jsonl(shuffled))
    other = build(tmp_path / "x.jsonl", tmp_path / "root", valid_fraction=0.2, test_fraction=0.1)
    where = dict(zip(shuffled, other.splits.tolist(), strict=True))
    assert [where[text] for text in texts] == store.splits[:2000].tolist()


@pytest.mark.parametrize("cut", ["line", "paragraph"])
def test_copies_share_a_split_whatever_blank_lines_follow(tmp_path, cut):
    """The refrains of a song: within a stanza, before the next one, and at the end of the file without a line end."""
    apart = "\n" if cut == "line" else "\n\n"
    refrains = [f"refrain {number}" for number in range(60)]
    copies = [[f"{one}{apart}", f"{one}{apart} \n\n"] for one in refrains]
    (tmp_path / "song.txt").write_text("".join(map("".join, copies)) + refrains[0])
    store = build(tmp_path / "song.txt", tmp_path / "root", documents=cut)
    assert len(store.splits) == 121
    for labels in (store.splits, store.clusters):
        assert labels[:120:2].tolist() == labels[1:120:2].tolist()
        assert labels[0] == labels[120]
    assert len({*store.clusters.tolist()}) == 60
    # The hash of a document with the usual end is that of its bytes, so that data prepared earlier keep their splits.
    drawn = [documents.drawn(first.encode(), 0.3, 0.3)[1] for first, _ in copies]
    assert [SPLITS[split] for split in store.splits[:120:2]] == drawn


def test_where_text_files_are_cut_does_not_change_the_splits_of_tables(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(jsonl([f"{one}{end}" for one in pages(60) for end in ("", "\n")]))
    stores = [build(tmp_path / "x.jsonl", tmp_path / cut, documents=cut) for cut in ("file", "line", "paragraph")]
    assert len({*stores[0].clusters.tolist()}) == 120
    assert len({(store.splits.tobytes(), store.clusters.tobytes()) for store in stores}) == 1


def test_split_by_files(tmp_path):
    folder = tmp_path / "test-data"  # words in the name of the given folder do not count
    (folder / "valid").mkdir(parents=True)
    (folder / "wiki.train.txt").write_text("a")
    (folder / "valid" / "0.txt").write_text("b")
    (folder / "my_Test.txt").write_text("a")
    store = build(folder, tmp_path / "root", split="files")
    assert dict(zip(store.names, store.splits.tolist(), strict=True)) == {
        "wiki.train.txt": 0,
        "valid/0.txt": 1,
        "my_Test.txt": 2,
    }
    assert store.manifest["documents_also_in_train"] == {"valid": 0, "test": 1}
    assert overlap_text(store.manifest) == "1 of 1 test documents also occur in training"
    for name, message in {"contest.txt": "names no split", "train-test.txt": "names test and train"}.items():
        (folder / name).write_text("c")
        with pytest.raises(UserError, match=rf"{name} {message}: for domain.split=files, its name needs"):
            build(folder, tmp_path / "root", split="files")
        (folder / name).unlink()


def test_empty_split_raises(tmp_path):
    (tmp_path / "x.txt").write_text("only one")
    with pytest.raises(UserError, match=r"none of 1 document in .*x.txt is in .*: give at least three documents"):
        build(tmp_path / "x.txt", tmp_path / "root")
    (tmp_path / "x.txt").write_text("one\ntwo\nthree\n")
    with pytest.raises(UserError, match=r"none of 3 documents in .*x.txt is in .*: increase domain.valid_fraction"):
        build(tmp_path / "x.txt", tmp_path / "root", documents="line", valid_fraction=0.01, test_fraction=0.01)
    (tmp_path / "x.txt").write_text("the same line\n" * 4000)
    with pytest.raises(UserError, match=r"x.txt is in valid, test: it repeats itself"):
        build(tmp_path / "x.txt", tmp_path / "root")
    (tmp_path / "x.txt").rename(tmp_path / "train.txt")
    with pytest.raises(UserError, match=r"is in valid, test: name files after train, valid and test"):
        build(tmp_path / "train.txt", tmp_path / "root", split="files")


def test_tokenizer_is_trained_only_on_training_split(tmp_path):
    for name, text in {"train": "common common words ", "valid": "zebra zebra ", "test": "quagga quagga "}.items():
        (tmp_path / f"{name}.txt").write_text(text * 50)
    options = {"tokenizer": "train", "vocabulary_size": 266, "split": "files"}
    store = build(tmp_path, tmp_path / "root", **options)
    domain = Text(str(tmp_path), **options)
    learnt = [piece for piece in domain.codec.pieces if len(piece) > 1]
    assert b"common" in learnt
    assert not any(letter in b"".join(learnt) for letter in b"zbqug")
    (kept,) = (tmp_path / "root" / "text" / "tokenizers").glob("*.json")
    assert BPE.read(kept).digest == domain.codec.digest == store.manifest["tokenizer"]["sha256"]
    (tmp_path / "valid.txt").write_text("common " * 500)
    other = build(tmp_path, tmp_path / "root", **options)
    assert other.directory != store.directory
    assert other.manifest["tokenizer"]["sha256"] == domain.codec.digest
    with pytest.raises(
        UserError, match=r"domain.vocabulary_size=9000: the training split has pairs for only 26\d tokens"
    ):
        build(tmp_path, tmp_path / "root", **options | {"vocabulary_size": 9000})


def test_prepared_domain_reads_its_tokenizer(tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").write_bytes(jsonl(pages(60)))
    options = {"tokenizer": "train", "vocabulary_size": 280}
    build(tmp_path / "x.jsonl", tmp_path / "root", **options)
    monkeypatch.setattr(BPE, "train", None)
    domain = Text(str(tmp_path / "x.jsonl"), valid_fraction=0.3, test_fraction=0.3, **options)
    domain.prepare(tmp_path / "root")
    assert len(domain.codec.pieces) == 280


def test_changed_file_changes_the_store(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(jsonl(pages(60)))
    domain = Text(str(tmp_path), tokenizer="train", vocabulary_size=280, valid_fraction=0.3, test_fraction=0.3)
    before, digest = domain.prepare(tmp_path / "root"), domain.codec.digest
    assert domain.prepare(tmp_path / "root").directory == before.directory
    (tmp_path / "x.jsonl").write_bytes(jsonl(pages(70, seed=1)))
    after = domain.prepare(tmp_path / "root")
    assert len(after.names) == 70
    assert after.manifest["tokenizer"]["sha256"] == domain.codec.digest != digest


def test_changed_file_of_same_size_changes_the_store(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("one")
    domain = Text(str(path), tokenizer="bytes")
    before, state = domain.options(), path.stat()
    assert domain.options() == before
    path.write_text("two")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert domain.options() != before


def test_options_determine_the_store(tmp_path):
    (tmp_path / "x.txt").write_text("x")
    keys = [
        str(Text(str(tmp_path / "x.txt"), **options).options())
        for options in (
            {},
            {"field": "body"},
            {"documents": "line"},
            {"tokenizer": "bytes"},
            {"tokenizer": "train"},
            {"tokenizer": "train", "vocabulary_size": 300},
            {"split": "files"},
            {"valid_fraction": 0.1},
            {"test_fraction": 0.1},
        )
    ]
    assert len(set(keys)) == len(keys)
    (tmp_path / "x.txt").write_text("y")
    assert str(Text(str(tmp_path / "x.txt")).options()) != keys[0]
    assert Text(str(tmp_path), tokenizer_path="/elsewhere").options() == Text(str(tmp_path)).options()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"documents": "words"}, r"documents='words': it should be 'file', 'line'"),
        ({"tokenizer": "gpt4"}, r"tokenizer='gpt4': it should be 'gpt2'"),
        ({"split": "date"}, r"split='date': it should be 'hash' or 'files'"),
        ({"valid_fraction": 0.0}, r"valid_fraction=0.0: it must be in"),
        ({"valid_fraction": 0.5, "test_fraction": 0.5}, r"their sum must be below 1"),
        ({"vocabulary_size": 256}, r"vocabulary_size=256: it must be at least 257"),
    ],
)
def test_invalid_options_raise(options, message):
    with pytest.raises(ValueError, match=message):
        Text("x", **options)


def test_render_and_encode_file(tmp_path):
    domain = Text(tokenizer="bytes")
    text = "Zwölf\r\n \0🎵"
    (path,) = domain.render(domain.decode([256, *text.encode(), 256]), tmp_path / "sample-0.5")
    assert path.name == "sample-0.5.txt"
    assert path.read_bytes() == text.encode()
    assert domain.encode_file(path).tolist() == [256, *text.encode()]
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"sample-0.5.txt line 1 is not UTF-8"):
        domain.encode_file(path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"sample-0.5.txt is empty"):
        domain.encode_file(path)
    with pytest.raises(UserError, match=r"none.txt cannot be read \(No such file"):
        domain.encode_file(tmp_path / "none.txt")
    for name in ("a.jsonl", "a.txt.gz", "a.parquet"):
        with pytest.raises(UserError, match=r"is text in another format: give a \.txt file"):
            domain.encode_file(tmp_path / name)


@needs_wikitext
def test_wikitext_2(tmp_path):
    options = {"split": "files", "documents": "article"}
    store = build(WIKITEXT, tmp_path, **options)
    parts = [store.documents(part) for part in SPLITS]
    assert [len(part) for part in parts] == [600, 60, 60]
    assert [store.unit_counts(part)["byte"] for part in SPLITS] == [10_797_148, 1_121_681, 1_256_449]
    domain = Text(tokenizer="bytes")
    for part, expected in zip(parts[1:], (217_646, 245_569), strict=True):
        words = 0
        for i in part:
            text = domain.decode(store.document(i))
            assert re.match(r"( \n)? = (?!= ).+ = \n \n", text)
            # The published count includes one word per line end.
            words += len(text.split()) + text.count("\n")
        assert words == expected


@pytest.mark.parametrize("name", ["book.txt", "book.tokens.gz"])
@pytest.mark.parametrize("ends", ["\n", " ", ""])
def test_single_document_is_cut_into_blocks(tmp_path, name, ends):
    words = [f"wörd{i}{ends}" for i in range(4000)]
    raw = "".join(words).encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    store = Text(str(tmp_path / name), tokenizer="bytes").prepare(tmp_path / "root")
    documents = [store.document(i) for i in range(len(store.names))]
    assert bytes(token for document in documents for token in document if token < 256) == raw
    assert all(document[0] == 256 and 256 not in document[1:] for document in documents)
    if ends:
        assert all(bytes(document[1:].tolist()).endswith(ends.encode()) for document in documents)
    assert store.splits.tolist() == sorted(store.splits)
    assert store.manifest["documents"] == {"train": len(documents) - 4, "valid": 2, "test": 2}
    assert len(set(store.clusters)) == len(documents) == len(set(store.names))
    assert store.manifest["splits_by"] == "position in the only document (train, valid, test)"


def test_no_block_is_in_two_splits(tmp_path):
    others = [f"line {i} is another\n" for i in range(400)]
    (tmp_path / "x.txt").write_text(
        "a line\n" * 4000 + "".join(others[:200]) + "a line\n" * 400 + "".join(others[200:])
    )
    store = Text(str(tmp_path / "x.txt"), tokenizer="bytes", valid_fraction=0.1).prepare(tmp_path / "root")
    parts = [set(store.clusters[store.documents(split)].tolist()) for split in SPLITS]
    assert all(parts)
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert int(store.names[-1].rpartition(":")[2]) > len(store.names)  # copies are skipped


@pytest.mark.parametrize(
    ("valid_fraction", "test_fraction", "sizes"),
    [(0.5, 0.49, (1, 10, 9)), (0.97, 0.02, (1, 18, 1)), (0.02, 0.97, (1, 1, 18))],
)
def test_large_held_out_fractions_leave_a_block_for_each_split(tmp_path, valid_fraction, test_fraction, sizes):
    (tmp_path / "x.txt").write_text("".join(f"word {i} " for i in range(150)))
    given = {"valid_fraction": valid_fraction, "test_fraction": test_fraction}
    store = build(tmp_path / "x.txt", tmp_path / "root", **given)
    assert tuple(store.manifest["documents"].values()) == sizes


def test_a_table_with_only_a_header_has_no_rows(tmp_path):
    (tmp_path / "x.csv").write_text("text,author\n")
    with pytest.raises(UserError, match=r"x\.csv has no rows: leave it out"):
        build(tmp_path, tmp_path / "stores")


def test_error_names_all_damaged_files(tmp_path):
    for number in range(14):
        (tmp_path / f"{number:02d}.txt").write_bytes(b"" if 2 <= number < 5 else b"some text\n")
    with pytest.raises(UserError) as raised:
        build(tmp_path, tmp_path / "stores", documents="line")
    assert str(raised.value) == "; ".join(f"{tmp_path}/{n:02d}.txt is empty: leave it out" for n in (2, 3, 4))
    for number in range(14):
        (tmp_path / f"{number:02d}.txt").write_bytes(b"")
    with pytest.raises(UserError, match=r"09.txt is empty: leave it out; \.\.\.$"):
        build(tmp_path, tmp_path / "stores", documents="line")


@pytest.mark.parametrize("domain", [Text, Genome])
def test_files_that_change_while_they_are_read_give_no_store(tmp_path, monkeypatch, domain):
    folder = tmp_path / "files"
    folder.mkdir()
    name, given = {Text: ("a.txt", {"tokenizer": "bytes"}), Genome: ("a.fa", {"tokenizer": "base", "split": "header"})}[
        domain
    ]
    (folder / name).write_text(">a\nACGT")
    monkeypatch.setattr(domain, "build", lambda self, writer: (folder / name).write_text(">a\nACGA"))
    with pytest.raises(UserError, match=r"^the source of domain .* changed while it was read: rerun the same command$"):
        domain(path=str(folder), **given).prepare(tmp_path / "stores")
    assert not [path for path in (tmp_path / "stores").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_data_set_in_a_folder_that_changes_is_noticed(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    domain = Text(dataset=str(tmp_path), tokenizer="bytes")
    before = dict(domain.options())
    assert dict(domain.options_again()) == before
    (tmp_path / "a.txt").write_text("two")
    assert dict(domain.options()) == before  # remembered, because it may take long
    assert dict(domain.options_again()) != before
