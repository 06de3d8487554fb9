"""Text by name: WikiText-2, data sets of the Hugging Face Hub, and columns of tables."""

import gzip
import hashlib
import io
import json
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import DATA
from mirror_support import head, serving
from text_support import build

from bearings.core.errors import UserError
from bearings.domains import hub, wikitext
from bearings.domains.hub import HubDataset
from bearings.domains.store import SPLITS
from bearings.domains.text import Text

ACIDS = "ACDEFGHIKLMNPQRSTVWY"
ARTICLES = {
    split: f" \n = {split} = \n \n Text of {split} . \n \n = Second {split} = \n \n More . \n" for split in SPLITS
}


def texts(domain, store):
    """Documents by name, with their splits."""
    found = zip(store.names, store.splits, range(len(store.names)), strict=True)
    return {name: (SPLITS[split], domain.decode(store.document(index))) for name, split, index in found}


@pytest.fixture
def archive(monkeypatch):
    """A small archive in the form of WikiText-2's."""
    files = {f"wiki.{split}.tokens": ARTICLES[split].encode() for split in sorted(SPLITS)}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as target:
        for name, text in files.items():
            target.writestr(f"wikitext-2/{name}", text)
    digests = {name: (len(text), hashlib.sha256(text).hexdigest()) for name, text in files.items()}
    monkeypatch.setattr(wikitext, "FILES", digests)
    monkeypatch.setattr(wikitext, "SHA256", hashlib.sha256(packed.getvalue()).hexdigest())
    return packed.getvalue()


def test_wikitext_2_is_downloaded_once_and_equals_its_folder(tmp_path, archive):
    with serving() as server:
        server.answers["good.zip"] = head(f"Content-Length: {len(archive)}") + archive
        domain = Text(source="wikitext2", tokenizer="bytes", urls=[server.url("404"), server.url("good.zip")])
        identity = domain.options()
        assert server.seen == []  # the source is identified before it is downloaded
        store = domain.prepare(tmp_path)
        assert [path for path, _ in server.seen] == ["404", "good.zip"]
    found = texts(domain, store)
    assert {split for split, _ in found.values()} == {*SPLITS}
    assert len(found) == 6
    assert found["wiki.test.tokens:1"] == ("test", ARTICLES["test"].partition(" = Second")[0])
    folder = tmp_path / "text" / "downloads" / "wikitext-2"
    same = Text(str(folder), tokenizer="bytes", documents="article", split="files")
    (folder / wikitext.ARCHIVE).unlink()
    assert same.options() == identity
    lines = Text(str(folder), source="wikitext2", tokenizer="bytes", documents="line").prepare(tmp_path)
    assert len(lines.names) > len(store.names)
    (folder / "wiki.test.tokens").write_text("changed")
    with pytest.raises(
        UserError, match=r"wiki\.test\.tokens is not the expected file .*delete it to download it again"
    ):
        wikitext.files(folder, [])


def test_errors_name_small_sources(tmp_path):
    with pytest.raises(UserError, match=r"domain\.path is not set: .*domain\.source=wikitext2 \(4 MB\)"):
        Text(tokenizer="bytes").prepare(tmp_path)
    with pytest.raises(UserError, match=r"wikitext-2-v1\.zip could not be downloaded .*get wikitext-2-v1\.zip from"):
        Text(source="wikitext2", tokenizer="bytes", urls=["http://127.0.0.1:9/a.zip"]).prepare(tmp_path)


@pytest.mark.data(DATA / "wikitext-2")
def test_wikitext_2_has_the_recorded_contents():
    for split in SPLITS:
        name = f"wiki.{split}.tokens"
        text = gzip.decompress((DATA / "wikitext-2" / f"{name}.gz").read_bytes())
        assert wikitext.FILES[name] == (len(text), hashlib.sha256(text).hexdigest())


ROWS = [(f"family {number // 4}", ACIDS[number % 20] * 5 + ACIDS[:9]) for number in range(80)]


@pytest.mark.parametrize("kind", ["csv", "tsv.gz"])
def test_groups_of_a_table_share_split_and_cluster(tmp_path, kind):
    mark = "," if kind == "csv" else "\t"
    lines = [mark.join(("family", "sequence")), *map(mark.join, ROWS)]
    data = ("\ufeff" + "\r\n".join(lines) + "\r\n").encode()
    (tmp_path / f"proteins.{kind}").write_bytes(gzip.compress(data) if kind.endswith("gz") else data)
    given = {"field": "sequence", "group_field": "family", "tokenizer": "alphabet", "alphabet": ACIDS}
    domain = Text(str(tmp_path / f"proteins.{kind}"), **given, valid_fraction=0.3, test_fraction=0.3)
    store = domain.prepare(tmp_path / "stores")
    assert [text for _, text in texts(domain, store).values()] == [sequence for _, sequence in ROWS]
    assert domain.vocabulary == store.manifest["vocabulary"] == 21
    by_group = {}
    for index, (family, _) in enumerate(ROWS):
        by_group.setdefault(family, set()).add((store.splits[index], store.clusters[index]))
    assert all(len(each) == 1 for each in by_group.values())
    assert len({cluster for each in by_group.values() for _, cluster in each}) == 20
    assert store.unit_counts("train")["byte"] == 14 * len(store.documents("train"))
    other = Text(str(tmp_path / f"proteins.{kind}"), **given | {"alphabet": ACIDS + "X"})
    assert other.options() != domain.options()


def test_groups_may_be_numbers(tmp_path):
    rows = [{"family": number // 4, "sequence": sequence} for number, (_, sequence) in enumerate(ROWS)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    given = {"field": "sequence", "group_field": "family", "tokenizer": "bytes"}
    stores = [
        Text(str(tmp_path / name), **given, valid_fraction=0.3, test_fraction=0.3).prepare(tmp_path / "stores")
        for name in ("a.jsonl", "a.parquet")
    ]
    assert stores[1].splits.tolist() == stores[0].splits.tolist()
    assert stores[1].clusters.tolist() == [number // 4 for number in range(80)]


@pytest.mark.parametrize("value", [None, 1.5, ["a"]])
def test_a_group_that_is_neither_text_nor_a_whole_number_is_refused(tmp_path, value):
    """Rows without a group would otherwise be one group, "None"."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"family": value, "text": "a"}) + "\n")
    with pytest.raises(UserError, match=rf"a\.jsonl line 1: 'family' has type {type(value).__name__}, not string"):
        build(tmp_path / "a.jsonl", tmp_path / "stores", group_field="family")


def test_documents_that_are_also_in_train_are_counted_by_their_text(tmp_path):
    rows = [
        ("train", 1, "a"),
        ("train", 2, "b"),
        ("valid", 3, "b"),
        ("test", 1, "c"),
        ("test", 4, "b"),
        ("test", 5, "b"),
    ]
    table = "".join(f"{split},{group},{text}\n" for split, group, text in rows)
    (tmp_path / "a.csv").write_text(f"split,group,text\n{table}")
    for group in (None, "group"):
        domain = Text(str(tmp_path / "a.csv"), tokenizer="bytes", split_field="split", group_field=group)
        manifest = domain.prepare(tmp_path / "stores").manifest
        assert manifest["documents_also_in_train"] == {"valid": 1, "test": 2}


def test_a_column_names_the_split(tmp_path):
    named = zip(("train", "Validation", "test"), ("a", 'b, "c"\nd', "e"), strict=True)
    rows = [{"set": split, "text": text} for split, text in named]
    quoted = "".join('"{}","{}"\n'.format(row["set"], row["text"].replace('"', '""')) for row in rows)
    (tmp_path / "a.csv").write_text(f"set,text\n\n{quoted}")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("a.csv", "a.jsonl"):
        domain = Text(str(tmp_path / name), tokenizer="bytes", split_field="set")
        found = texts(domain, domain.prepare(tmp_path / "stores"))
        assert [*found.values()] == [("train", "a"), ("valid", 'b, "c"\nd'), ("test", "e")]
        assert name in next(iter(found))
    assert [*found] == ["a.jsonl:1", "a.jsonl:2", "a.jsonl:3"]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,text\n1\n", {}, r"a\.csv line 2 has 1 column, but the header has 2"),
        ("a,b\n1,2\n", {}, r"a\.csv has no column 'text': set domain\.field to one of 'a', 'b'"),
        ("text,text\nx,y\n", {}, r"a\.csv has several columns 'text': rename or remove all but one"),
        ("text\nx\n", {"group_field": "g"}, r"has no column 'g': set domain\.group_field to one of 'text'"),
        ("text,s\nx,dev\n", {"split_field": "s"}, r"line 2: 's' is 'dev', not a split: allowed: train, valid, test"),
        ('text\n"x', {}, r"a\.csv line 2 is not CSV \(unexpected end of data\)"),
        ("", {}, r"a\.csv has no column 'text'"),
        ("text\n", {}, r"a\.csv has no rows"),
        (
            "text\nAJ\n",
            {"tokenizer": "alphabet", "alphabet": "AC"},
            "a.csv:2: character 2 is 'J', which domain.alphabet=AC",
        ),
    ],
)
def test_a_wrong_table_is_one_line(tmp_path, text, options, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        build(tmp_path / "a.csv", tmp_path / "stores", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["split_field", "group_field"])
def test_splits_and_groups_that_a_text_cannot_have_are_refused(tmp_path, option):
    (tmp_path / "a.txt").write_text("text\n")
    with pytest.raises(UserError, match=r"a\.txt has no fields, but domain\.split_field or domain\.group_field is set"):
        build(tmp_path / "a.txt", tmp_path / "stores", **{option: "s"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "alphabet"}, "tokenizer=alphabet: set alphabet=LETTERS, the letters of the text"),
        ({"tokenizer": "bytes", "alphabet": "AB"}, "alphabet=AB with tokenizer=bytes: set tokenizer=alphabet"),
        ({"tokenizer": "alphabet", "alphabet": "ABA"}, "it contains 'A' twice"),
        ({"split": "files", "split_field": "s"}, "use one of them"),
        ({"field": "s", "split_field": "s"}, "^field=s, split_field=s: name a different field for each"),
        ({"dataset": "a/b", "path": "x"}, "dataset=a/b with path=x: use one of them"),
        ({"dataset": "a/b/c"}, "give ORG/NAME, or a folder"),
        ({"dataset_rows": 3}, "dataset_rows=3 without dataset"),
        ({"dataset_split": "validation"}, "dataset_split=validation without dataset"),
    ],
)
def test_contradicting_options(options, message):
    with pytest.raises(ValueError, match=message):
        Text(**options)


def test_a_data_set_is_identified_by_its_commit(tmp_path, monkeypatch):
    pinned = Text(dataset="org/name", dataset_revision="a" * 40, dataset_rows=5, tokenizer="bytes")
    assert pinned.options()["dataset"] == {"name": "org/name", "commit": "a" * 40}
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="the package `datasets` is not installed: pip install -e"):
        Text(dataset="org/name").options()


def test_hidden_files_do_not_identify_a_data_set(tmp_path):
    """A download from the Hub keeps the times of its files in `.cache`."""
    (tmp_path / "set" / "data").mkdir(parents=True)
    (tmp_path / "set" / "data" / "train.csv").write_text("text\nx\n")
    before = HubDataset(str(tmp_path / "set"), None, None, None).identity()
    (tmp_path / "set" / ".cache" / "huggingface").mkdir(parents=True)
    (tmp_path / "set" / ".cache" / "huggingface" / "train.csv.metadata").write_text("1700000000")
    assert HubDataset(str(tmp_path / "set"), None, None, None).identity() == before


@pytest.fixture
def dataset(tmp_path):
    pytest.importorskip("datasets", minversion="4", reason="the package datasets is not installed")
    folder = tmp_path / "set"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        rows = [{"id": number, "body": f"{split} {number} öl"} for number in range(30)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_data_set_is_streamed(tmp_path, dataset):
    given = {"dataset": str(dataset), "field": "body", "tokenizer": "bytes"}
    domain = Text(**given, split="files", dataset_rows=20)
    found = texts(domain, domain.prepare(tmp_path / "stores"))
    expected = {"train": "train", "validation": "valid", "test": "test"}
    assert found == {f"{s}:{n + 1}": (ours, f"{s} {n} öl") for s, ours in expected.items() for n in range(20)}
    drawn = Text(**given, valid_fraction=0.3, test_fraction=0.3).prepare(tmp_path / "stores")
    assert drawn.names == [f"train:{number}" for number in range(1, 31)]
    before = Text(**given).options()
    (dataset / "train.jsonl").write_text("{}\n")
    assert Text(**given).options() != before


def test_a_wrong_data_set_is_one_line(tmp_path, dataset):
    given = {"dataset": str(dataset), "tokenizer": "bytes"}
    (dataset / "validation.jsonl").unlink()
    for options, message in (
        ({}, r"train has no column 'text': set domain\.field to one of 'id', 'body'"),
        ({"field": "id"}, "row 1: 'id' has type int, not string"),
        ({"dataset_split": "dev"}, r"has no split dev, only train, test: use domain\.split=hash"),
        ({"split": "files"}, r"has no split valid, only"),
        ({"dataset_config": "none"}, "cannot be read"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            Text(**given | options).prepare(tmp_path / "stores")
        assert "\n" not in str(caught.value)
    (dataset / "set.py").write_text("raise SystemExit('this code must not run')")
    with pytest.raises(UserError, match="cannot be read"):
        Text(**given, field="body").prepare(tmp_path / "stores")
