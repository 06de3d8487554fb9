"""`fetch` from mirrors with invalid responses: each is skipped with a reason."""

import hashlib
import io
import re
import shutil
from types import SimpleNamespace

import pytest
import requests
from mirror_support import DATA, SHA, get, head, leftovers, serving

from bearings.core.errors import UserError

# What a mirror sends, byte by byte, and how its failure is put.
FOREIGN = f"Content-Range: bytes 7-{len(DATA) - 1}/{len(DATA)}"
MISBEHAVIOUR = {
    "length-text": (head("Content-Length: abc") + DATA, "Content-Length 'abc'"),
    "length-negative": (head("Content-Length: -5") + DATA, "Content-Length '-5'"),
    "length-twice": (head("Content-Length: 5", "Content-Length: 7") + DATA, "Content-Length|InvalidHeader"),
    "length-endless": (head(f"Content-Length: {2**62}") + DATA, "Content-Length '4611686018427387904'"),
    "length-huge": (head(f"Content-Length: {2**50}") + DATA, "1,125,899,906,842,624 bytes instead of 1,024,000"),
    "length-other": (head(f"Content-Length: {len(DATA) + 1}") + DATA + b"x", "1,024,001 bytes instead of 1,024,000"),
    "unasked-206": (head(FOREIGN, "Content-Length: 5", status="206 Partial Content") + b"hello", "HTTP 206"),
    "bare-206": (head("Content-Length: 5", status="206 Partial Content") + b"hello", "HTTP 206"),
    "unasked-416": (head("Content-Range: bytes */5", "Content-Length: 0", status="416 No"), "HTTP 416"),
    "packed": (head("Content-Encoding: gzip", "Content-Length: 5") + b"hello", "Content-Encoding 'gzip'"),
    "nowhere": (head("Content-Length: 0", status="302 Found"), "HTTP 302 without a Location"),
    "in-circles": (head("Location: /in-circles", "Content-Length: 0", status="302 Found"), "more than 10 redirects"),
    "to-a-bad-host": (head("Location: http://a..b/", "Content-Length: 0", status="302 Found"), "invalid"),
    "to-a-bad-address": (head("Location: http://[::1/", "Content-Length: 0", status="302 Found"), "invalid"),
    "to-a-bad-port": (head("Location: http://127.0.0.1:9999999/", status="302 Found"), "invalid"),
    "to-a-file": (head("Location: file:///etc/passwd", status="302 Found"), "a redirect from http to file"),
    "bad-status": (b"HTTP/1.1 99999999999999999999 X\r\n\r\n", "cut"),
    "no-http": (b"\x00\xff\xfe" * 100, "cut"),
    "endless-header": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", "cut"),
    "many-headers": (head(*(f"X{n}: x" for n in range(200))) + DATA, "cut"),
    "bad-chunk": (head("Transfer-Encoding: chunked") + b"zz\r\nhello", "cut"),
    "huge-chunk": (head("Transfer-Encoding: chunked") + b"f" * 15 + b"\r\nhello", "cut"),
    "endless-chunk": (head("Transfer-Encoding: chunked") + b"5;" + b"x" * 70_000, "cut"),
    "empty": (head("Content-Length: 0"), "0 bytes instead of 1,024,000"),
}
# The same where neither digest nor size is known.
UNPINNED = {
    "empty-body": (head("Content-Length: 0"), "an empty body"),
    "no-bound": (head() + DATA, "it announces no length"),
    "too-long": (head("Content-Length: 2000001") + DATA, "it announces 2,000,001 bytes, more than the 2,000,000"),
    "endless-chunks": (
        head("Transfer-Encoding: chunked") + b"%x\r\n%s\r\n" % (len(DATA), DATA) * 5,
        "more than 2,000,000",
    ),
    "cut-short": (head(f"Content-Length: {len(DATA)}") + DATA[:-1], "connection cut after"),
    "cut-chunk": (head("Transfer-Encoding: chunked") + b"ff\r\n" + DATA[:9], "connection cut after"),
}


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as server:
        server.answers = {path: sent for path, (sent, _) in (MISBEHAVIOUR | UNPINNED).items()}
        yield server


@pytest.fixture
def target(tmp_path):
    return tmp_path / "downloads" / "file.bin"


def refusal(target, *urls, **options):
    with pytest.raises(UserError) as caught:
        get(target, *urls, **options)
    line = str(caught.value)
    assert "\n" not in line
    assert leftovers(target) in ([], ["file.bin.part"])
    return line


@pytest.mark.parametrize("path", MISBEHAVIOUR)
def test_failing_mirror_is_skipped(mirror, target, path):
    pinned = {"size": len(DATA), "attempts": 1}
    assert re.search(MISBEHAVIOUR[path][1], refusal(target, mirror.url(path), **pinned))
    get(target, mirror.url(path), mirror.url("good"), **pinned)
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("path", UNPINNED)
def test_announced_length_is_required_without_digest(mirror, target, path):
    unpinned = {"sha256": None, "limit": 2_000_000, "attempts": 1}
    assert UNPINNED[path][1] in refusal(target, mirror.url(path), **unpinned)
    get(target, mirror.url(path), mirror.url("good"), **unpinned)
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("path", ["trickling-headers", "trickling-body"])
def test_slow_mirror_is_skipped(mirror, target, path):
    get(target, mirror.url(path), mirror.url("good"), patience=0.2)
    assert target.read_bytes() == DATA
    target.unlink()
    assert "too slow: less than 32,768 bytes in 0.2 s" in refusal(target, mirror.url(path), patience=0.2)


@pytest.mark.parametrize(
    "url", ["http://[::1", "nonsense", "http://a b/", "ftp://127.0.0.1/x", "http://\udc80/", "http:///"]
)
def test_malformed_url_is_skipped(mirror, target, url):
    assert "file.bin could not be downloaded (" in refusal(target, url)
    get(target, url, mirror.url("good"))
    assert target.read_bytes() == DATA


def test_password_in_url_is_not_shown(mirror, target):
    assert "secret" not in refusal(target, mirror.url("404").replace("//", "//me:secret@"))


def test_redirect_to_http_is_rejected(mirror, target, monkeypatch):
    asked = []

    def answer(url, **_):
        asked.append(url)
        response = requests.Response()
        response.status_code, response.headers["Location"], response.raw = 302, mirror.url("good"), io.BytesIO()
        return response

    monkeypatch.setattr(requests, "get", answer)
    assert "(mirror.example: a redirect from https to http)" in refusal(target, "https://mirror.example/file.bin")
    assert asked == ["https://mirror.example/file.bin"]


def test_digest_from_mirror(mirror, target):
    digests = {mirror.url("wrong"): "0" * 64, mirror.url("good"): SHA}
    get(target, *digests, sha256=digests.get)
    assert target.read_bytes() == DATA
    get(target, mirror.url("404"), sha256=digests.get)
    assert len(mirror.seen) == 2


def test_md5_is_verified(mirror, target):
    md5 = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
    get(target, mirror.url("wrong"), mirror.url("cut"), sha256=None, md5=md5)
    assert target.read_bytes() == DATA
    target.unlink()
    assert "md5 " in refusal(target, mirror.url("wrong"), sha256=None, md5=md5)


def test_mirror_exceeding_disk_is_skipped(mirror, target, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * len(DATA)))
    get(target, mirror.url("length-huge"), mirror.url("good"), limit=2**60)
    assert target.read_bytes() == DATA
