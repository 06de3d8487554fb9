"""Genomes: documents and splits, arguments, the download, and real windows."""

import gzip
import hashlib
import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from genome_support import (
    BASES,
    SMALL,
    WINDOWS,
    both,
    cut,
    documents,
    draw,
    fasta,
    needs_data,
    plain,
    two_bit,
    writer,
)

from bearings.core.errors import UserError
from bearings.domains import sequences
from bearings.domains.genome import Genome
from bearings.domains.store import SPLITS


@pytest.fixture
def write(tmp_path):
    """A function that writes sequences to a file."""
    return writer(tmp_path)


def sample(folder: Path) -> SimpleNamespace:
    """Nine records for the tests of all domains; test_domain_laws.py describes the fields."""
    random = np.random.default_rng(3)
    records, raw = {}, {}
    for number, split in enumerate(["train"] * 5 + ["valid", "validation", "test", "test"]):
        kinds = ["ACGT", "ACGTacgt", "N", "RYKMnacgt", "ACGT"]
        sequence = "".join(draw(random, int(random.integers(1, 90)), kind) for kind in kinds)
        records[f"scaffold{number} split={split}"] = sequence
        raw |= cut(plain(sequence), 100, f"scaffold{number}")
    folder.mkdir()
    source = folder / "assembly.fa.gz"
    source.write_bytes(gzip.compress(fasta(records).encode(), mtime=0))
    return SimpleNamespace(
        options={"path": str(source), "split": "header", "chunk": 100, "soft_mask": True},
        raw=raw,
        same=lambda decoded, sequence: decoded == sequence,
        units=lambda sequence: {"base": sum(letter != "N" for letter in sequence)},
        source=source,
    )


def test_chunks_are_contiguous(write, tmp_path):
    path = write()
    expected = {}
    for name, sequence in write.three.items():
        expected |= cut(sequence, 64, name)
    assert documents(Genome(path, **SMALL, chunk=64), tmp_path) == expected
    whole = {f"{name}:0-150": sequence for name, sequence in write.three.items()}
    assert documents(Genome(path, **SMALL, chunk=None), tmp_path) == whole


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 22])
@pytest.mark.parametrize("n_runs", ["keep", "split", "drop"])
def test_runs_of_n(write, tmp_path, monkeypatch, n_runs, block):
    monkeypatch.setattr(sequences, "BLOCK", block)
    a = "N" * 25 + "ACGTACGTACGTA" + "N" * 22 + "CC"
    path = write({"a": a, "b": "ACGT", "c": "ACGT"})
    found = documents(Genome(path, **SMALL, chunk=10, n_runs=n_runs, tokenizer="base"), tmp_path)
    kept = cut(a, 10, "a")
    expected = {
        "keep": kept,
        "split": {"a:25-35": "ACGTACGTAC", "a:35-38": "GTA", "a:60-62": "CC"},
        "drop": {name: piece for name, piece in kept.items() if set(piece) != {"N"}},
    }[n_runs]
    assert found == {**expected, "b:0-4": "ACGT", "c:0-4": "ACGT"}


def test_case_and_ambiguity_codes_are_counted(write, tmp_path):
    path = write({"a": "ACgtRyNn", "b": "ACGT", "c": "acg"})
    store = Genome(path, **SMALL).prepare(tmp_path)
    assert documents(Genome(path, **SMALL), tmp_path) == {"a:0-8": "ACGTNNNN", "b:0-4": "ACGT", "c:0-3": "ACG"}
    assert store.manifest["soft_masked_bases"] == 7
    assert store.manifest["ambiguity_codes_read_as_n"] == 2
    assert store.unit_counts("train") == {"base": 4}


def test_clusters_are_blocks_of_a_record(write, tmp_path, monkeypatch):
    monkeypatch.setattr("bearings.domains.genome.CLUSTER", 40)
    store = Genome(write(), **SMALL, chunk=30).prepare(tmp_path)
    clusters = store.clusters.reshape(3, 5)  # begins 0, 30, 60, 90, 120
    assert [len(set(row.tolist())) for row in clusters] == [4, 4, 4]
    assert (clusters[:, 0] == clusters[:, 1]).all()
    assert len(set(clusters.ravel().tolist())) == 12


@pytest.mark.parametrize(
    "options", [{}, {"train": None, "valid": None, "test": None}, {"valid": [], "test": [], "train": []}]
)
@pytest.mark.parametrize("name", ["phage", "chr21"])
def test_single_record_is_split_by_windows(write, tmp_path, options, name):
    sequence = draw(np.random.default_rng(0), 10_003)
    path = write({name: sequence})
    store = Genome(path, **options, chunk=30, tokenizer="base").prepare(tmp_path)
    covered, held = 0, dict.fromkeys(SPLITS, 0)
    for index, title in enumerate(store.names):  # windows of 30 bases, which is 1/400 rounded up to whole chunks
        begin, end = map(int, title.removeprefix(f"{name}:").split("-"))
        assert begin == covered
        covered = end
        split = {9: "valid", 19: "test"}.get(begin // 30 % 20, "train")
        assert SPLITS[store.splits[index]] == split
        held[split] += end - begin
    assert covered == 10_003
    assert held == {"train": 9_013, "valid": 17 * 30, "test": 16 * 30}  # of 334 windows
    parts = [set(store.clusters[store.documents(split)].tolist()) for split in SPLITS]
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert len(parts[1]) == len(store.documents("valid"))
    assert store.manifest["splits_by"] == "windows of 30 bases: of every 20 one for valid and one for test"


def test_unnamed_records_are_split_by_windows(write, tmp_path):
    path = write({"a": draw(np.random.default_rng(0), 90), "b": draw(np.random.default_rng(1), 150)})
    store = Genome(path, train=None, valid=[], test=[]).prepare(tmp_path)
    others = {"b:0-12": "train", "b:12-24": "valid", "b:24-132": "train", "b:132-144": "test", "b:144-150": "train"}
    names = dict(zip(store.names, (SPLITS[split] for split in store.splits), strict=True))
    assert names == {"a:0-90": "train", **others}


def test_records_without_split(write, tmp_path):
    path = write({**write.three, "d": "ACGT", "e": "ACGT"})
    store = Genome(path, **SMALL).prepare(tmp_path)
    assert store.manifest["left_out"] == ["d", "e"]
    assert store.manifest["records"] == {"train": 1, "valid": 1, "test": 1}
    others = Genome(path, train=None, valid=["b"], test=["c"]).prepare(tmp_path)
    assert others.manifest["records"] == {"train": 3, "valid": 1, "test": 1}


def test_bed_file_assigns_splits(write, tmp_path, monkeypatch):
    monkeypatch.setattr(sequences, "BLOCK", 32)
    bed = tmp_path / "splits.bed"
    bed.write_text(
        "# comment\ntrack name=x\na\t100\t140\ttest\na\t0\t70\ttrain\textra\r\n\nb\t10\t50\tval\nb 50 60 train\n"
    )
    genome = Genome(write(), split="bed", bed=str(bed), chunk=50)
    a, b = write.three["a"], write.three["b"]
    store = genome.prepare(tmp_path)
    found = {(name, SPLITS[store.splits[i]]): genome.decode(store.document(i)) for i, name in enumerate(store.names)}
    assert found == {
        ("a:0-50", "train"): a[:50],
        ("a:50-70", "train"): a[50:70],
        ("a:100-140", "test"): a[100:140],
        ("b:10-50", "valid"): b[10:50],
        ("b:50-60", "train"): b[50:60],
    }
    assert store.manifest["left_out"] == ["c"]
    parts = [set(store.clusters[store.documents(part)].tolist()) for part in SPLITS]
    assert sum(map(len, parts)) == len(set.union(*parts))
    before = genome.prepare(tmp_path).directory
    bed.write_text(bed.read_text().replace("140", "141"))
    assert Genome(genome.paths[0].as_posix(), split="bed", bed=str(bed), chunk=50).prepare(tmp_path).directory != before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a\t0\t10", "line 4: 'a\\t0\\t10' is not a BED line with record, start, end and split"),
        ("a\t0\tten\ttrain", "is not a BED line"),
        ("a\t10\t10\ttrain", "line 4: start 10 is not below end 10: correct the line"),
        ("a\t20\t30\ttrian", "line 4: 'trian' is not a split; did you mean train?"),
        ("a\t9\t20\ttest", "lines 1 and 4 overlap on a"),
        ("a\t100\t151\ttrain", "line 4: end 151 is beyond the end of a (150 bases): correct the line"),
        ("chrA\t100\t151\ttrain", "line 4: chrA is absent; "),
    ],
)
def test_invalid_bed_line_raises(write, tmp_path, line, message):
    bed = tmp_path / "splits.bed"
    bed.write_text("a\t0\t10\ttrain\nb\t0\t10\tvalid\nc\t0\t10\ttest\n" + line + "\n")
    with pytest.raises(UserError) as caught:
        Genome(write(), split="bed", bed=str(bed)).prepare(tmp_path / "stores")
    assert message in str(caught.value)
    assert str(bed) in str(caught.value)
    assert not [path for path in (tmp_path / "stores").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_only_whole_words_begin_lines_that_bed_files_skip(tmp_path):
    (tmp_path / "genome.fa").write_text("".join(f">{name}\n{'ACGT' * 5}\n" for name in ("tracked", "browser1", "c")))
    (tmp_path / "x.bed").write_text("browser hide all\ntracked\t0\t9\ttrain\nbrowser1\t0\t9\tvalid\nc\t0\t9\ttest\n")
    store = Genome(str(tmp_path / "genome.fa"), split="bed", bed=str(tmp_path / "x.bed")).prepare(tmp_path / "stores")
    assert store.names == ["tracked:0-9", "browser1:0-9", "c:0-9"]


def test_a_byte_order_mark_of_a_bed_file_is_left_out(tmp_path):
    (tmp_path / "genome.fa").write_text("".join(f">{name}\n{'ACGT' * 5}\n" for name in "abc"))
    (tmp_path / "x.bed").write_text("a\t0\t9\ttrain\nb\t0\t9\tvalid\nc\t0\t9\ttest\n", encoding="utf-8-sig")
    store = Genome(str(tmp_path / "genome.fa"), split="bed", bed=str(tmp_path / "x.bed")).prepare(tmp_path / "stores")
    assert store.names == ["a:0-9", "b:0-9", "c:0-9"]


def test_missing_bed_file_and_empty_split_raise(write, tmp_path):
    with pytest.raises(UserError, match=r"none\.bed cannot be read: No such file"):
        Genome(write(), split="bed", bed="none.bed").prepare(tmp_path)
    (tmp_path / "two.bed").write_text("a\t0\t10\ttrain\nb\t0\t10\tvalid\n")
    with pytest.raises(UserError, match=r"split=bed assigns no record to test: .*genome\.fa has a, b, c"):
        Genome(write(), split="bed", bed=str(tmp_path / "two.bed")).prepare(tmp_path)
    with pytest.raises(
        UserError, match=r"missing records: chr21 \(domain.valid\), chr22 \(.*genome\.fa has a, b, c: n"
    ):
        Genome(write(), train=None).prepare(tmp_path)
    with pytest.raises(UserError, match=r"missing records: chr1, .*or domain.train=null for all other records"):
        Genome(write()).prepare(tmp_path)
    with pytest.raises(UserError, match=r"the header of a has no split="):
        Genome(write(), split="header").prepare(tmp_path)
    with pytest.raises(UserError, match=r"header of a: 'exam' is not a split; .*allowed: train, valid, test"):
        Genome(write({"a split=exam": "ACGT"}), split="header").prepare(tmp_path)
    with pytest.raises(UserError, match="assigns no record to train"):
        Genome(write({"b": "A", "c": "A"}), train=None, valid=["b"], test=["c"]).prepare(tmp_path)


def test_several_files_and_folders_are_one_assembly(write, tmp_path):
    folder = Path(write({"b": "ACGT"}, "b.fna")).parent
    write({"c": "GGGG"}, "c.2bit")
    write(b"about", "README.txt")
    other = tmp_path / "other.fa"
    other.write_text(fasta({"a": "TTTT"}))
    found = documents(Genome([str(other), str(folder)], **SMALL), tmp_path / "stores")
    assert found == {"a:0-4": "TTTT", "b:0-4": "ACGT", "c:0-4": "GGGG"}
    write({"a": "ACGT"}, "z.fa")
    with pytest.raises(UserError, match=r"z\.fa: record a is also in .*other\.fa"):
        Genome([str(other), str(folder)], **SMALL).prepare(tmp_path / "stores")


@pytest.mark.parametrize("table", [False, True])
def test_documents_that_are_also_in_train_are_counted(write, tmp_path, table):
    records = {"a": ("train", "ACGTAC"), "b": ("valid", "GGGGGG"), "c": ("test", "acgtac"), "d": ("test", "ACGTAA")}
    if table:
        rows = "".join(f"{split},{bases}\n" for split, bases in records.values())
        path = write(f"split,sequence\n{rows}".encode(), "a.csv")
        domain = Genome(path, split_field="split")
    else:
        path = write({f"{name} split={split}": bases for name, (split, bases) in records.items()})
        domain = Genome(path, split="header")
    manifest = domain.prepare(tmp_path / "stores").manifest
    assert manifest["documents_also_in_train"] == {"valid": 0, "test": 1}


def test_missing_and_empty_paths_raise(tmp_path):
    with pytest.raises(UserError, match=r"none\.fa is missing"):
        Genome("none.fa").prepare(tmp_path)
    with pytest.raises(UserError, match=r"contains no sequence files: give a folder of \.2bit, \.fa,"):
        Genome(str(tmp_path)).prepare(tmp_path / "stores")


def test_arguments_are_checked():
    wrong = {
        "tokenizer='kmer': it should be 'kmer6' or 'base'": {"tokenizer": "kmer"},
        "n_runs='cut': it should be 'keep', 'split' or 'drop'": {"n_runs": "cut"},
        "split='page': it should be 'chromosome', 'bed' or 'header'": {"split": "page"},
        "chunk=0: it must be at least 1, or null for whole sequences": {"chunk": 0},
        "use split=bed together with bed=FILE": {"split": "bed"},
        "split=chromosome with bed=x.bed": {"bed": "x.bed"},
        "valid=['chr21'] and test=['chr21']: chr21 is named twice": {
            "train": ["chr1"],
            "valid": ["chr21"],
            "test": ["chr21"],
        },
        "all mirrors must have": {"urls": ["http://a/hg38.2bit", "http://b/hg19.2bit"]},
        "path='': it must be a file": {"path": ""},
        "path=[]: it must be a file": {"path": []},
        "split_field=s, group_field=s: name a different field for each": {"split_field": "s", "group_field": "s"},
    }
    for message, arguments in wrong.items():
        with pytest.raises(ValueError, match=re.escape(message)):
            Genome(**arguments)


def test_download_is_verified_and_kept(tmp_path):
    site, stores = tmp_path / "site", tmp_path / "stores"
    site.mkdir()
    content = two_bit(BASES)
    (site / "small.2bit").write_bytes(content)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        urls = [f"http://127.0.0.1:{server.server_port}/{place}small.2bit" for place in ("gone/", "")]
        with pytest.raises(
            UserError,
            match=r"small\.2bit could not be downloaded .*deleted \(md5 [0-9a-f]{12}\.\.\. instead of 00",
        ):
            Genome(urls=urls, md5="00", **SMALL).prepare(stores)
        right = Genome(urls=urls, md5=hashlib.md5(content, usedforsecurity=False).hexdigest(), **SMALL)
        store = right.prepare(stores)
    finally:
        server.shutdown()
        server.server_close()
    assert (stores / "genome" / "downloads" / "small.2bit").read_bytes() == content
    assert store.unit_counts("train") == {"base": 120}
    assert right.prepare(stores).directory == store.directory
    with pytest.raises(UserError, match=r"get small\.2bit from 127\.0\.0\.1:\d+ and set domain\.path="):
        Genome(urls=urls, md5=None, **SMALL).prepare(tmp_path / "offline")


@needs_data
@both
def test_windows_have_listed_splits_and_bases(tmp_path, tokenizer):
    store = Genome(str(WINDOWS), split="header", tokenizer=tokenizer).prepare(tmp_path)
    assert store.manifest["records"] == {"train": 63, "valid": 15, "test": 21}
    assert sum(store.unit_counts(split)["base"] for split in SPLITS) == 12_975_128
    assert store.manifest["documents"] == {"train": 63 * 22, "valid": 15 * 22, "test": 21 * 22}
    codes = np.concatenate([codes for _, codes in sequences.read([WINDOWS], sequences.Tally())])
    assert np.isin(codes, [1, 2]).sum() / 12_975_128 == pytest.approx(0.411, abs=0.0005)


def test_chr21_is_cut_into_blocks_with_gaps(tmp_path):
    letters = np.frombuffer(b"ACGT", np.uint8)[np.random.default_rng(0).integers(0, 4, 2_700_000)]
    (tmp_path / "chr21.fa").write_bytes(b">chr21\n" + b"N" * 520_000 + letters.tobytes())
    genome = Genome(str(tmp_path / "chr21.fa"), source="chr21", chunk=5000)
    store = genome.prepare(tmp_path / "stores")
    spans = {split: [] for split in SPLITS}
    for index, name in enumerate(store.names):
        begin, end = map(int, name.removeprefix("chr21:").split("-"))
        assert end - begin == 5000
        spans[SPLITS[store.splits[index]]].append(begin)
    block = 250_000  # blocks 0 and 1 have no known bases; the first of every 10 is block 2
    assert spans["valid"] == [*range(6 * block, 7 * block, 5000)]
    assert spans["test"] == [*range(11 * block, 12 * block, 5000)]
    train = np.array(spans["train"])
    assert train.min() == 2 * block
    for begin in (6 * block, 11 * block):
        distances = np.where(train < begin, begin - (train + 5000), train - (begin + block))
        assert distances.min() == 50_000
    assert len(train) == (3_220_000 - 4 * block - 4 * 50_000) // 5000
    assert store.manifest["splits_by"].startswith("blocks of 250,000 bases: of every 10 one for valid")
    clusters = [{*store.clusters[store.documents(split)]} for split in SPLITS]
    assert [len(each) for each in clusters] == [3, 1, 1]
    assert store.manifest["options"]["blocks"] == [250_000, 50_000, 10]


def test_chr21_is_identified_by_its_checksum_and_named_in_offline_errors(tmp_path):
    options = Genome(source="chr21").options()
    assert (options["download"], options["md5"]) == ("chr21.fa.gz", "184df2bd9b812b6e6b6da16c6021369e")
    assert Genome(source="chr21", chunk=7000).options()["blocks"] == [252_000, 56_000, 10]
    with pytest.raises(ValueError, match=r"source=chr21 is one record.* leave out train=, valid= and test="):
        Genome(source="chr21", test=["chr2a"])
    with pytest.raises(ValueError, match="leave out split=header"):
        Genome(source="chr21", split="header")
    with pytest.raises(UserError, match=r"hg38\.2bit could not be downloaded .*for a first try, domain\.source=chr21"):
        Genome(urls=["http://127.0.0.1:9/hg38.2bit"]).prepare(tmp_path)
    with pytest.raises(UserError, match=r"chr21\.fa\.gz could not be downloaded .*path=/where/you/put/chr21\.fa\.gz$"):
        Genome(source="chr21", urls=["http://127.0.0.1:9/chr21.fa.gz"]).prepare(tmp_path)


def test_sequences_in_a_column_of_a_table(tmp_path):
    random = np.random.default_rng(0)
    rows = [(f"gene {number // 3}", draw(random, 30).lower(), SPLITS[number % 3]) for number in range(150)]
    (tmp_path / "genes.csv").write_text("gene,dna,set\n" + "".join(",".join(row) + "\n" for row in rows))
    given = {"path": str(tmp_path / "genes.csv"), "field": "dna", "chunk": 20, "tokenizer": "base"}
    genome = Genome(**given, split_field="set")
    store = genome.prepare(tmp_path / "stores")
    assert store.names[:3] == ["genes.csv:2:0-20", "genes.csv:2:20-30", "genes.csv:3:0-20"]
    assert genome.decode(store.document(0)) == rows[0][1][:20].upper()
    assert [SPLITS[split] for split in store.splits[::2]] == [split for _, _, split in rows]
    assert store.manifest["documents"] == dict.fromkeys(SPLITS, 100)
    grouped = Genome(**given, group_field="gene").prepare(tmp_path / "stores")
    assert grouped.directory != store.directory
    for first in range(0, 300, 6):
        assert len({*grouped.splits[first : first + 6]}) == len({*grouped.clusters[first : first + 6]}) == 1
    assert grouped.manifest["splits_by"] == "hash of the group"
    (tmp_path / "genes.csv").write_text("dna\nACGT\nAC?\n")
    with pytest.raises(UserError, match=r"genes\.csv, 3: 'dna': character 3 is not a nucleotide"):
        Genome(**given).prepare(tmp_path / "stores")
    with pytest.raises(ValueError, match="tables and other files cannot be mixed"):
        Genome(path=["a.csv", "b.fa"])
    with pytest.raises(ValueError, match="leave them out for a table"):
        Genome(path="a.csv", split="header")
