"""OpenWebText: counts of the sample, shards and their download, and held-out pages."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from conftest import DATA, REPOSITORY
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from text_support import jsonl, pages, parquet, zst

from bearings.core.errors import UserError
from bearings.domains.openwebtext import OpenWebText
from bearings.domains.store import SPLITS
from bearings.domains.text import Text
from bearings.session.configuration import resolve

SAMPLE = DATA / "openwebtext-sample" / "owt10k_val500.jsonl.gz"
GPT2 = DATA / "gpt2-bpe" / "tokenizer.json"


def sample(folder: Path) -> SimpleNamespace:
    folder.mkdir()
    texts = pages(40)
    (folder / "pages.jsonl.zst").write_bytes(zst(jsonl(texts)))
    return SimpleNamespace(
        options={
            "path": str(folder / "pages.jsonl.zst"),
            "tokenizer": "bytes",
            "valid_fraction": 0.2,
            "test_fraction": 0.2,
        },
        raw={f"pages.jsonl.zst:{i + 1}": text for i, text in enumerate(texts)},
        same=lambda decoded, text: decoded == text,
        units=lambda text: {"byte": len(text.encode())},
        source=folder / "pages.jsonl.zst",
    )


@pytest.mark.data(SAMPLE, GPT2)
def test_tokens_and_documents_of_sample(tmp_path):
    domain = OpenWebText(str(SAMPLE), tokenizer_path=str(GPT2), valid_fraction=0.1, test_fraction=0.1)
    store = domain.prepare(tmp_path)
    assert len(store.names) == 500
    # The published 538,111 includes one end of text per document.
    assert sum(map(store.targets, SPLITS)) == 538_111
    assert store.manifest["tokens_of_text"] == 538_111 - 500
    assert store.manifest["vocabulary"] == 50257
    first, last = store.document(0), store.document(499)
    assert [first[0], first[-1], last[0], last[-1]] == [50256] * 4
    assert domain.decode(first).startswith("The women’s game has truly hit new heights.")


SHARDS = [pages(300, seed=number) for number in range(3)]


class Hub(BaseHTTPRequestHandler):
    """A server that reports the sha256 of files like the Hugging Face hub."""

    files: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    asked: list[str] = []

    def do_HEAD(self):
        self.send_response(302)
        self.send_header("X-Linked-ETag", f'"{self.digests[self.path]}"')
        self.end_headers()

    def do_GET(self):
        self.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.files[self.path])))
        self.end_headers()
        self.wfile.write(self.files[self.path])

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path):
    """URL pattern of a server with three shards; the third repeats a page."""
    texts = [*SHARDS[:2], [*SHARDS[2], *SHARDS[0]]]
    for number, shard in enumerate(texts):
        parquet(tmp_path / "shard.parquet", shard)
        data = (tmp_path / "shard.parquet").read_bytes()
        Hub.files[f"/{number:05d}"], Hub.digests[f"/{number:05d}"] = data, hashlib.sha256(data).hexdigest()
    Hub.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/{{shard:05d}}"
    server.shutdown()
    server.server_close()


def downloaded(hub: str, root: Path, shards: int):
    options = {"tokenizer": "bytes", "valid_fraction": 0.1, "test_fraction": 0.1}
    return OpenWebText(urls=[hub], shards=shards, **options).prepare(root)


def test_held_out_pages_do_not_depend_on_number_of_shards(hub, tmp_path):
    stores = [downloaded(hub, tmp_path / "root", shards) for shards in (1, 2, 3)]
    assert Hub.asked == ["/00000", "/00001", "/00002"]
    for part in ("valid", "test"):
        names = [[store.names[i] for i in store.documents(part)] for store in stores]
        assert len(names[0]) > 10
        assert names[0] == names[1] == names[2]
        assert all(name.startswith("00000.parquet:") for name in names[0])
    held_out = len(stores[0].documents("valid")) + len(stores[0].documents("test"))
    assert [len(store.names) for store in stores] == [300, 600, 1200 - held_out]
    assert len(stores[2].documents("train")) == 1200 - 2 * held_out
    assert not set(stores[2].clusters[stores[2].documents("test")]) & set(
        stores[2].clusters[stores[2].documents("train")]
    )


def test_pages_with_a_named_split_are_never_skipped(tmp_path):
    """Of a site with a page for validation in the first file, pages of later files are kept, in their own splits."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name, splits in (("0", ("train", "valid", "test")), ("1", ("train", "valid", "test", "test"))):
        rows = [{"text": f"{name} {i}", "set": split, "site": "a"} for i, split in enumerate(splits)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    domain = OpenWebText(str(folder), tokenizer="bytes", split_field="set", group_field="site")
    assert domain.prepare(tmp_path / "root").manifest["documents"] == {"train": 2, "valid": 2, "test": 3}


def test_wrong_shard_contents_raise(hub, tmp_path):
    Hub.digests["/00001"] = "0" * 64
    with pytest.raises(UserError, match=r"00001.parquet could not be downloaded \(.*wrong contents.*set domain.path="):
        downloaded(hub, tmp_path / "root", 2)
    kept = sorted(path.name for path in (tmp_path / "root").rglob("*") if path.suffix not in (".lock", ""))
    assert kept == ["00000.parquet"]


def test_offline_error_names_file(tmp_path, monkeypatch):
    def offline(*_, **__):
        raise requests.ConnectionError("NameResolution")

    monkeypatch.setattr(requests, "get", offline)
    monkeypatch.setattr(requests, "head", offline)
    with pytest.raises(UserError) as caught:
        OpenWebText(tokenizer="bytes").prepare(tmp_path)
    line = str(caught.value)
    assert "\n" not in line
    assert "name not resolved (offline?)" in line
    assert "Skylion007/openwebtext and set domain.path=/folder/you/put/its/parquet/files/in;" in line
    assert line.endswith("for a first try, domain=text domain.source=wikitext2 downloads 4 MB only")


def test_existing_shard_needs_no_network(hub, tmp_path, monkeypatch):
    downloaded(hub, tmp_path / "root", 1)
    monkeypatch.setattr(requests, "get", None)
    monkeypatch.setattr(requests, "head", None)
    options = {"tokenizer": "bytes", "valid_fraction": 0.2, "test_fraction": 0.2}
    assert len(OpenWebText(urls=[hub], shards=1, **options).prepare(tmp_path / "root").names) == 300


def test_sources_are_part_of_the_options(tmp_path):
    (tmp_path / "x.txt").write_text("x")
    found = [
        OpenWebText().options(),
        OpenWebText(shards=3).options(),
        OpenWebText(urls=["http://mirror/{shard}"]).options(),
        OpenWebText(str(tmp_path)).options(),
    ]
    assert len({json.dumps(options) for options in found}) == 4
    assert OpenWebText(shards=80).options() == found[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": 0}, r"shards=0: it must be at least 1, or null for all"),
        ({"shards": 81}, r"shards=81: it must be at most 80, or null for all"),
        ({"urls": ["http://mirror/0.parquet"]}, r"urls: http://mirror/0.parquet must contain \{shard:05d\}"),
        ({"urls": ["http://mirror/{}"]}, r"must contain \{shard:05d\}"),
        ({"urls": ["http://mirror/{name}"]}, r"must contain \{shard:05d\}"),
        ({"valid_fraction": 2.0}, r"valid_fraction=2.0"),
    ],
)
def test_invalid_options_raise(options, message):
    with pytest.raises(ValueError, match=message):
        OpenWebText(**options)


@pytest.mark.parametrize(("name", "domain"), [("text", Text), ("openwebtext", OpenWebText)])
def test_yaml_matches_constructor_defaults(name, domain):
    block = OmegaConf.to_container(OmegaConf.load(REPOSITORY / "configs" / "domain" / f"{name}.yaml"))
    assert block.pop("_target_").endswith(domain.__name__)
    assert vars(domain(**block)) == vars(domain())


@pytest.mark.parametrize("encoding", ["pope", "rope", "path"])
@pytest.mark.parametrize(
    ("size", "shape"), [("124m", (768, 12, 12)), ("253m", (1024, 16, 16)), ("774m", (1280, 36, 20))]
)
def test_configurations_of_the_paper(size, shape, encoding):
    with initialize_config_dir(str(REPOSITORY / "configs"), version_base="1.3"):
        composed = compose("config", [f"experiment=pope_openwebtext_{size}", f"encoding={encoding}"])
        config = resolve(composed, {"encoding": encoding})
    model, data, optimizer = config["model"], config["data"], config["optimizer"]
    assert config["domain"]["_target_"] == "bearings.domains.openwebtext.OpenWebText"
    assert (model["width"], model["layers"], model["heads"]) == shape
    assert model["width"] / model["heads"] == 64
    assert model["dropout"] == 0
    assert (data["batch_size"], data["length"]) == (64, 1024)
    assert (optimizer["learning_rate"], optimizer["betas"][1], optimizer["weight_decay"]) == (6e-4, 0.95, 0.01)
    assert (config["trainer"]["steps"], optimizer["warmup_steps"]) == (100_000, 1000)
