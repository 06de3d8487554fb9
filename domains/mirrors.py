"""Downloads one file from one mirror over HTTP: resumes interrupted transfers, rejects inconsistent responses."""

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
import urllib3

from ..core.errors import UserError

BLOCK = 1 << 15  # bytes per read; an interruption loses at most one block
REDIRECTS = 10
LENGTH = re.compile(r"[0-9]{1,18}")
RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")


class MirrorError(Exception):
    """A mirror failed. The text is a short reason."""


class CutError(Exception):
    """A request or transfer was interrupted and may be retried. The text is a short reason."""


@dataclass(frozen=True)
class Terms:
    """Limits of a download.

    Attributes:
        size: size of the file in bytes; None if unknown.
        limit: maximum bytes accepted if `size` is unknown.
        checked: whether the file is verified afterwards, so that a truncated transfer is detected.
        attempts: number of interruptions at the same byte after which a mirror that has responded is skipped.
        backoff: seconds to wait after an interruption; doubles while no new bytes arrive.
        timeout: seconds to connect, and between two pieces of data.
        patience: seconds for the headers, and for each BLOCK. A slow but steady mirror never reaches `timeout`.
    """

    size: int | None
    limit: int
    checked: bool
    attempts: int
    backoff: float
    timeout: float
    patience: float


def transfer(url: str, part: Path, terms: Terms, report: Callable[..., None]) -> None:
    """Append to `part` until the server has sent everything, resuming after each interruption.

    Raises:
        MirrorError: the mirror failed, or its headers contradict `terms`.
        UserError: there is not enough disk space for a file of known size.
    """
    farthest, failures, answered, validator, announced = -1, 0, False, None, terms.size
    call = Patient(terms.patience)
    try:
        while True:
            before = _length(part)
            try:
                response = call(_opened, url, _headers(before, validator), terms.timeout)
                try:
                    if response.status_code not in (200, 206, 416) or (response.status_code != 200 and not before):
                        raise MirrorError(f"HTTP {response.status_code}")
                    answered, validator = True, _validator(response)
                    span = _span(response, part, before, terms, announced)
                    if span is None:
                        part.unlink()
                        reason = "it sends the wrong part of the file"
                    else:
                        begin, announced = span
                        if _receive(partial(call, response.raw.read), part, begin, announced, terms, report):
                            return
                        reason = "connection cut"
                finally:
                    call.begin(response.close)
            except CutError as error:
                reason = str(error)
            done = _length(part)
            if not answered:
                raise MirrorError(reason)
            failures = failures + 1 if done <= farthest else 1
            farthest = max(farthest, done)
            if failures >= terms.attempts:
                raise MirrorError(f"{reason} after {done:,} bytes, {failures} times in a row")
            time.sleep(terms.backoff * 2 ** (failures - 1))
    finally:
        call.end()


class Patient:
    """Calls network functions in a thread, which is abandoned if a call takes too long."""

    def __init__(self, patience: float):
        self._patience, self._calls = patience, SimpleQueue()
        # A daemon thread, so that a hanging connection does not prevent the program from exiting.
        Thread(target=self._run, daemon=True).start()

    def __call__(self, function: Callable, *arguments: Any, **options: Any) -> Any:
        """Call a function and return its result.

        Raises:
            CutError: the function raised an exception.
            MirrorError: the function raised it, or took longer than `patience` seconds.
        """
        try:
            value, error = self.begin(partial(function, *arguments, **options)).get(timeout=self._patience)
        except Empty:
            raise MirrorError(f"too slow: less than {BLOCK:,} bytes in {self._patience:g} s") from None
        if isinstance(error, MirrorError):
            raise error
        if error is not None:
            raise CutError(_short(error)) from error
        return value

    def begin(self, function: Callable) -> SimpleQueue:
        """Schedule a call after earlier ones without waiting. The queue receives its result or exception."""
        answer: SimpleQueue = SimpleQueue()
        self._calls.put((function, answer))
        return answer

    def end(self) -> None:
        """Stop the thread after the scheduled calls."""
        self._calls.put(None)

    def _run(self) -> None:
        while (found := self._calls.get()) is not None:
            function, answer = found
            try:
                answer.put((function(), None))
            except Exception as error:  # requests, urllib3 and http.client have no common exception
                answer.put((None, error))


def _headers(offset: int, validator: str | None) -> dict[str, str]:
    headers = {"Accept-Encoding": "identity"}  # a compressed response has different lengths and ranges than the file
    if offset:
        headers["Range"] = f"bytes={offset}-"
        if validator:
            headers["If-Range"] = validator
    return headers


def _opened(url: str, headers: dict[str, str], timeout: float) -> requests.Response:
    """Open a streamed response. Redirects are followed without reading their bodies, which may be endless."""
    for _ in range(REDIRECTS + 1):
        response = requests.get(url, headers=headers, stream=True, timeout=timeout, allow_redirects=False)
        if response.status_code not in (301, 302, 303, 307, 308):
            return response
        response.close()
        location = response.headers.get("Location")
        if not location:
            raise MirrorError(f"HTTP {response.status_code} without a Location")
        before, url = urlsplit(url).scheme, urljoin(url, location)
        scheme = urlsplit(url).scheme
        if scheme != "https" and (before == "https" or scheme != "http"):
            raise MirrorError(f"a redirect from {before} to {scheme[:20]}")
    raise MirrorError(f"more than {REDIRECTS} redirects")


def _span(
    response: requests.Response, part: Path, held: int, terms: Terms, announced: int | None
) -> tuple[int, int | None] | None:
    """First byte of the body, and size of the file if announced; None if the download must restart."""
    if response.status_code == 416:
        span = response.headers.get("Content-Range", "")
        return (held, held) if span == f"bytes */{held}" and announced in (None, held) else None
    if (encoding := response.headers.get("Content-Encoding", "identity").strip().lower()) not in ("", "identity"):
        raise MirrorError(f"Content-Encoding {encoding[:40]!r}, which was not requested")
    chunked = "chunked" in response.headers.get("Transfer-Encoding", "").lower()
    length = None if chunked else response.headers.get("Content-Length")
    if length is not None and not LENGTH.fullmatch(length):
        raise MirrorError(f"Content-Length {length[:40]!r}")
    begin, total = 0, int(length) if length else None
    if response.status_code == 206:
        span = response.headers.get("Content-Range", "")
        if (match := RANGE.fullmatch(span)) is None or int(match[1]) != held:
            return None
        begin, end = held, int(match[2]) + 1
        if end <= begin or total not in (None, end - begin) or (match[3] != "*" and int(match[3]) < end):
            raise MirrorError(f"Content-Range {span!r} with Content-Length {length}")
        total = end if match[3] == "*" else int(match[3])
        if terms.size is None and announced not in (None, total):
            return None  # the file has changed in the meantime
    if terms.size is not None and total not in (None, terms.size):
        raise MirrorError(f"{total:,} bytes instead of {terms.size:,}")
    if total is None and not chunked and not terms.checked:
        raise MirrorError("it announces no length, so a truncated file would not be detected")
    if terms.size is None and total is not None and total > terms.limit:
        raise MirrorError(f"it announces {total:,} bytes, more than the {terms.limit:,} allowed")
    free, whole = shutil.disk_usage(part.parent).free, terms.size if terms.size is not None else total
    if whole is not None and whole - begin > free:
        lack = f"{part.stem} needs {whole - begin:,} more bytes but {part.parent} has {free:,} free"
        if terms.size is None:  # announced only by the mirror
            raise MirrorError(lack)
        raise UserError(f"{lack}: free disk space or use another disk")
    return begin, whole


def _receive(
    read: Callable[..., bytes], part: Path, offset: int, total: int | None, terms: Terms, report: Callable[..., None]
) -> bool:
    """Write the body of a response to `part`. Returns True if the file is complete, False if it must be retried."""
    most = terms.limit if total is None else total
    with open(part, "ab" if offset else "wb") as file:
        while offset <= most and (block := read(BLOCK, decode_content=False)):
            file.write(block)
            offset += len(block)
            report(offset, total)
    if terms.size is None and offset > most:
        part.unlink()
        raise MirrorError(f"more than {most:,} bytes")
    if not offset:
        raise MirrorError("an empty body")
    return total is None or offset >= total


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _validator(response: requests.Response) -> str | None:
    """Value for If-Range, so that a changed file is sent from its beginning (RFC 9110, section 13.1.5)."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified")


def _short(error: Exception) -> str:
    """A short description of a network error, from the underlying cause that requests wraps."""
    text = repr(error)
    if isinstance(error, requests.exceptions.SSLError):
        return "its TLS certificate was not accepted"
    if isinstance(error, requests.exceptions.ProxyError):
        return "the proxy did not answer"
    if isinstance(error, requests.Timeout) or "timed out" in text:
        return "timed out"
    if "NameResolution" in text or "getaddrinfo" in text:
        return "name not resolved (offline?)"
    if "refused" in text:
        return "connection refused"
    if "unreachable" in text:
        return "network unreachable (offline?)"
    if isinstance(error, requests.ConnectionError | urllib3.exceptions.ProtocolError):
        return "connection cut"
    if isinstance(error, urllib3.exceptions.LocationParseError) or "URL" in text:
        return "its URL, or one that it redirects to, is invalid"
    return type(error).__name__
