"""A real HTTP server on the loopback interface that misbehaves in every way a mirror can, and downloads from it."""

import hashlib
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from bearings.domains.fetch import fetch
from bearings.domains.mirrors import BLOCK

DATA = bytes(range(256)) * 4000  # about 1 MB: several blocks
SHA = hashlib.sha256(DATA).hexdigest()
HINT = "get file.bin and set domain.path=/where/you/put/file.bin"


def head(*lines, status="200 OK"):
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("latin1")


class Mirror(ThreadingHTTPServer):
    """Serves DATA in the way the path asks for; `seen` lists the (path, Range header) of every request.

    `answers` gives what else it sends, by path, byte for byte.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, str | None]] = []
        self.headers_seen: list[dict] = []
        self.cut_after = 9 * BLOCK
        self.sent = 0
        self.ended = threading.Event()
        self.answers: dict[str, bytes] = {}

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        path, span = self.path.strip("/"), self.headers.get("Range")
        self.server.seen.append((path, span))
        self.server.headers_seen.append(dict(self.headers))
        begin = int(span.removeprefix("bytes=").rstrip("-")) if span else 0
        first = sum(seen == path for seen, _ in self.server.seen) == 1
        match path:
            case "good":
                self.answer(DATA, begin)
            case "cut":
                self.answer(DATA, begin, stop=self.server.cut_after if first else None)
            case "cut-always":
                self.answer(DATA, 0, stop=self.server.cut_after)
            case "cut-no-ranges":
                self.answer(DATA, 0, stop=self.server.cut_after if first else None)
            case "no-ranges":
                self.answer(DATA, 0)
            case "no-length":
                self.answer(DATA, 0, length=False)
            case "other-range":
                self.answer(DATA, 0, lie=begin + 7 if span else None, stop=self.server.cut_after if first else None)
            case "drip":
                self.answer(DATA, begin, stop=begin + 2 * BLOCK)
            case "shrinking":
                self.answer(DATA if first else DATA[:1000], begin, stop=self.server.cut_after if first else None)
            case "cut-no-length":
                self.answer(DATA, begin, length=False, stop=self.server.cut_after if first else None)
            case "endless":
                self.send_response(200)
                self.end_headers()
                while self.server.sent < 50 * len(DATA):
                    self.server.sent += self.wfile.write(DATA)
            case "wrong":
                self.answer(b"x" * len(DATA), begin)
            case "short":
                self.answer(DATA[:1000], begin)
            case "redirect":
                self.send_response(302)
                self.send_header("Location", "/good")
                self.end_headers()
            case "changing":
                old = first or self.headers.get("If-Range") == '"new"'
                self.answer(
                    DATA[::-1] if first else DATA,
                    begin if old else 0,
                    stop=self.server.cut_after if first else None,
                    tag=first,
                )
            case "trickling-headers":
                self.trickle(b"HTTP/1.1 100 Continue\r\n\r\n")
            case "trickling-body":
                self.wfile.write(head(f"Content-Length: {len(DATA)}"))
                self.trickle(DATA[:1])
            case path if path in self.server.answers:
                self.wfile.write(self.server.answers[path])
            case status:
                self.send_error(int(status))

    def trickle(self, data):
        with suppress(OSError):
            while not self.server.ended.wait(0.02):
                self.wfile.write(data)

    def answer(self, data, begin, stop=None, length=True, lie=None, tag=None):
        if begin >= len(data):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        shown = lie if lie is not None else begin
        self.send_response(206 if shown else 200)
        if shown:
            self.send_header("Content-Range", f"bytes {shown}-{len(data) - 1}/{len(data)}")
        if length:
            self.send_header("Content-Length", str(len(data) - begin))
        if tag is not None:
            self.send_header("ETag", '"old"' if tag else '"new"')
        self.end_headers()
        self.wfile.write(data[begin:stop])


@contextmanager
def serving():
    server = Mirror()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.ended.set()
    server.shutdown()
    server.server_close()
    thread.join()


def get(target, *urls, sha256=SHA, **options):
    return fetch(urls, sha256, target, HINT, **{"backoff": 0.01, "attempts": 3, "timeout": 5, **options})


def leftovers(target):
    return sorted(path.name for path in target.parent.iterdir() if not path.name.endswith(".lock"))
