"""`fetch` from a local server: resuming, verification, mirrors in order, and one-line errors."""

import errno
import hashlib
import os
import shutil
import socket
import threading
from types import SimpleNamespace

import pytest
from mirror_support import DATA, HINT, SHA, get, leftovers, serving

from bearings.core.errors import UserError
from bearings.domains import fetch
from bearings.domains.fetch import verify


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as server:
        yield server


@pytest.fixture
def refused():
    """A URL that refuses connections."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{reserved.getsockname()[1]}/good"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "downloads" / "file.bin"


def spans(mirror):
    return [span for _, span in mirror.seen]


@pytest.mark.parametrize("path", ["good", "no-ranges", "no-length", "redirect"])
def test_downloads(mirror, target, path):
    assert get(target, mirror.url(path)) == target
    assert target.read_bytes() == DATA
    assert leftovers(target) == ["file.bin"]
    assert mirror.headers_seen[0]["Accept-Encoding"] == "identity"


def test_existing_file_needs_no_network(target, refused):
    target.parent.mkdir()
    target.write_bytes(DATA)
    assert get(target, refused).read_bytes() == DATA


def test_existing_file_in_a_read_only_folder_needs_no_lock(target, refused, monkeypatch):
    target.parent.mkdir()
    target.write_bytes(DATA)

    def lock(path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(fetch, "FileLock", lock)
    assert get(target, refused).read_bytes() == DATA


def test_wrong_existing_file_raises_and_is_kept(mirror, target):
    target.parent.mkdir()
    target.write_bytes(b"mine")
    with pytest.raises(UserError, match=r"file\.bin is not the expected file"):
        get(target, mirror.url("good"))
    assert target.read_bytes() == b"mine"
    assert mirror.seen == []


def test_interrupted_transfer_resumes(mirror, target):
    get(target, mirror.url("cut"))
    assert target.read_bytes() == DATA
    assert spans(mirror) == [None, f"bytes={mirror.cut_after}-"]


def test_ignored_range_restarts(mirror, target):
    get(target, mirror.url("cut-no-ranges"))
    assert target.read_bytes() == DATA
    assert spans(mirror) == [None, f"bytes={mirror.cut_after}-"]


def test_wrong_range_restarts(mirror, target):
    get(target, mirror.url("other-range"), sha256=None)
    assert target.read_bytes() == DATA
    assert spans(mirror) == [None, f"bytes={mirror.cut_after}-", None]


def test_frequent_interruptions_with_progress_succeed(mirror, target):
    get(target, mirror.url("drip"))
    assert target.read_bytes() == DATA
    assert len(mirror.seen) > 10


def test_shrunken_file_restarts(mirror, target):
    get(target, mirror.url("shrinking"), sha256=None)
    assert target.read_bytes() == DATA[:1000]


def test_truncation_detected_by_size(mirror, target):
    get(target, mirror.url("cut-no-length"), sha256=None, size=len(DATA))
    assert target.read_bytes() == DATA
    assert spans(mirror) == [None, f"bytes={mirror.cut_after}-"]


def test_endless_response_is_aborted(mirror, target):
    with pytest.raises(UserError, match="wrong contents, deleted"):
        get(target, mirror.url("endless"), size=len(DATA))
    assert mirror.sent < 40 * len(DATA)
    assert leftovers(target) == []


def test_next_mirror_continues_partial_file(mirror, target):
    get(target, mirror.url("cut-always"), mirror.url("good"))
    assert target.read_bytes() == DATA
    assert [path for path, _ in mirror.seen] == ["cut-always"] * 3 + ["good"]
    assert spans(mirror)[-1] == f"bytes={mirror.cut_after}-"


def test_later_call_resumes(mirror, target):
    with pytest.raises(UserError, match="connection cut after 294,912 bytes, 3 times"):
        get(target, mirror.url("cut-always"))
    assert leftovers(target) == ["file.bin.part"]
    get(target, mirror.url("good"))
    assert target.read_bytes() == DATA
    assert leftovers(target) == ["file.bin"]
    assert mirror.seen[-1] == ("good", f"bytes={mirror.cut_after}-")


def test_complete_partial_file_needs_no_network(target, refused):
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(DATA)
    assert get(target, refused).read_bytes() == DATA
    assert leftovers(target) == ["file.bin"]


@pytest.mark.parametrize("rubbish", [b"y" * 1000, b"y" * len(DATA), DATA + b"y"])
def test_invalid_partial_file_is_replaced(mirror, target, rubbish):
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(rubbish)
    get(target, mirror.url("good"))
    assert target.read_bytes() == DATA
    assert leftovers(target) == ["file.bin"]


def test_no_splicing_without_checksum(mirror, target):
    target.parent.mkdir()
    target.with_name("file.bin.part").write_bytes(b"y" * 1000)
    get(target, mirror.url("cut-always"), mirror.url("good"), sha256=None)
    assert target.read_bytes() == DATA
    assert spans(mirror)[0] is None
    assert mirror.seen[-1] == ("good", None)


def test_changed_file_is_not_spliced(mirror, target):
    get(target, mirror.url("changing"), sha256=None)
    assert target.read_bytes() == DATA
    assert mirror.headers_seen[1]["If-Range"] == '"old"'


def test_wrong_contents_are_deleted(mirror, target):
    with pytest.raises(UserError) as caught:
        get(target, mirror.url("wrong"))
    assert "wrong contents, deleted" in str(caught.value)
    assert SHA[:12] in str(caught.value)
    assert leftovers(target) == []


def test_short_file_is_detected_by_size(mirror, target):
    with pytest.raises(UserError, match="1,000 bytes instead of 1,024,000"):
        get(target, mirror.url("short"), size=len(DATA))
    assert leftovers(target) == []


def test_mirrors_in_order(mirror, target, refused):
    get(target, refused, mirror.url("404"), mirror.url("500"), mirror.url("wrong"), mirror.url("good"))
    assert target.read_bytes() == DATA
    assert [path for path, _ in mirror.seen] == ["404", "500", "wrong", "good"]


@pytest.mark.parametrize(
    ("path", "reason"), [("404", "HTTP 404"), ("500", "HTTP 500"), (None, "connection refused"), ("", "no URL")]
)
def test_error_when_all_mirrors_fail(mirror, target, refused, path, reason):
    urls = {"": (), None: (refused,)}.get(path) if not path else (mirror.url(path),)
    with pytest.raises(UserError) as caught:
        get(target, *urls)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith("file.bin could not be downloaded (")
    assert reason in line
    assert line.endswith(HINT)
    assert leftovers(target) == []


def test_unknown_host_is_reported_as_offline(target):
    with pytest.raises(UserError, match=r"nowhere\.invalid: (name not resolved|the proxy)"):
        get(target, "http://nowhere.invalid/file.bin")


def test_silent_server_times_out(target, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(UserError, match="timed out"):
        get(target, f"http://127.0.0.1:{silent.getsockname()[1]}/x", timeout=0.3)


def test_full_disk_is_detected_before_writing(mirror, target, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match=r"file\.bin needs 1,024,000 more bytes but .* has 1,000 free"):
        get(target, mirror.url("good"))
    assert leftovers(target) == []


def test_unwritable_folder_raises(mirror, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="cannot be written"):
        get(tmp_path / "file" / "file.bin", mirror.url("good"))


def test_concurrent_calls_download_once(mirror, target):
    threads = [threading.Thread(target=get, args=(target, mirror.url("good"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_bytes() == DATA
    assert len(mirror.seen) == 1


class TestVerify:
    @pytest.fixture
    def path(self, tmp_path):
        (tmp_path / "file.bin").write_bytes(DATA)
        return tmp_path / "file.bin"

    def test_accepts_the_right_file(self, path):
        assert verify(path, SHA.upper(), len(DATA)) == path
        assert verify(path, None) == path

    def test_names_file_digests_and_sizes(self, path):
        path.write_bytes(DATA[:500])
        with pytest.raises(UserError) as caught:
            verify(path, SHA, len(DATA))
        found = hashlib.sha256(DATA[:500]).hexdigest()[:12]
        for part in (str(path), found, SHA[:12], "500 bytes", "1,024,000", "download it again"):
            assert part in str(caught.value)

    def test_a_size_alone_is_checked(self, path):
        with pytest.raises(UserError, match="1,024,000 bytes instead of 5"):
            verify(path, None, 5)

    def test_missing_and_folder(self, path):
        with pytest.raises(UserError, match="is missing"):
            verify(path.with_name("none"), SHA)
        with pytest.raises(UserError, match="is a folder"):
            verify(path.parent, SHA)
