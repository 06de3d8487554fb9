"""Verified download: pinned sha256, progress bar, resume, mirrors in order, and one line when all of that fails."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import requests
from filelock import FileLock

from bearings.errors import UserError
from bearings.progress import shown

BLOCK = 1 << 15  # what a cut loses at most: a block that came in part is asked for again


class MirrorError(Exception):
    """Why one mirror gave nothing; the text is a few words."""


def fetch(
    urls: Sequence[str],
    sha256: str | None,
    target: Path,
    hint: str,
    *,
    size: int | None = None,
    attempts: int = 5,
    backoff: float = 0.5,
    timeout: float = 20.0,
) -> Path:
    """Return `target`, downloading it from the first of `urls` that has it. Processes that race download it once.

    Bytes gather in `target` + ".part" and move to `target` after verification, so nothing half-written bears the final
    name. A cut transfer resumes where it stopped, in this call and, when `sha256` is pinned, in a later one.

    Args:
        urls: mirrors, tried in order.
        sha256: hexadecimal digest the file must have; None where the publisher keeps none.
        target: final path. A file already there is verified and returned without touching the network.
        hint: ends the error: which file to get by hand, and which override then names it.
        size: bytes of the whole file where known; wins over what a server says of its length.
        attempts: cuts at one and the same byte before a mirror that had begun to answer is given up.
        backoff: seconds waited after a cut; doubles while no new byte comes.
        timeout: seconds to connect, and between two blocks.

    Raises:
        UserError: no mirror gave the right bytes, the disk is too small, or the file at `target` is another one.
    """
    target = Path(target)
    part = target.with_name(target.name + ".part")
    reasons = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(target.name + ".lock")):
            if target.exists():
                return verify(target, sha256, size, "delete it to have it downloaded again")
            for url in urls:
                if sha256 is None:
                    part.unlink(missing_ok=True)  # without a checksum nobody would notice two versions spliced
                try:
                    _from_mirror(url, part, sha256, size, attempts, backoff, timeout)
                except MirrorError as error:
                    reasons.append(f"{urlsplit(url).netloc or url}: {error}")
                    continue
                with open(part, "rb") as file:
                    os.fsync(file.fileno())
                os.replace(part, target)
                return target
    except OSError as error:
        raise UserError(
            f"{target} cannot be written ({error.strerror}): make room, or choose another folder"
        ) from error
    why = "; ".join(reasons) or "no URL is configured"
    raise UserError(f"{target.name} could not be downloaded ({why}): {hint}")


def verify(path: Path, sha256: str | None, size: int | None = None, remedy: str = "get it anew") -> Path:
    """Return `path` when its contents have the digest `sha256` (None accepts any) and `size` bytes (None: any).

    Raises:
        UserError: it is missing, not a file, or holds other bytes; names the file, both digests and both sizes.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} is {'a folder' if path.is_dir() else 'missing'}: give the path of the downloaded file")
    if (fault := _difference(path, sha256, size)) is not None:
        raise UserError(f"{path} is not the file expected: {fault}: {remedy}")
    return path


def digest_of(path: Path) -> str:
    """sha256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _difference(path: Path, sha256: str | None, size: int | None) -> str | None:
    """How `path` differs from the file with that digest and size, in a few words; None when it does not."""
    found = path.stat().st_size
    sizes = f"{found:,} bytes instead of {size:,}" if size is not None and found != size else f"{found:,} bytes"
    if sha256 is not None:
        digest = digest_of(path)
        if digest != sha256.lower():
            return f"sha256 {digest[:12]}... instead of {sha256[:12].lower()}..., {sizes}"
    return sizes if size is not None and found != size else None


def _from_mirror(
    url: str, part: Path, sha256: str | None, size: int | None, attempts: int, backoff: float, timeout: float
) -> None:
    """Fill `part` from `url` until it verifies. Raises MirrorError otherwise."""
    inherited = part.exists()
    if inherited and _difference(part, sha256, size) is None:
        return
    _transfer(url, part, size, attempts, backoff, timeout)
    fault = _difference(part, sha256, size)
    if fault is not None and inherited:
        part.unlink()  # the bytes found lying there may be at fault rather than this mirror's
        _transfer(url, part, size, attempts, backoff, timeout)
        fault = _difference(part, sha256, size)
    if fault is not None:
        part.unlink()
        raise MirrorError(f"wrong bytes, deleted ({fault})")


def _transfer(url: str, part: Path, size: int | None, attempts: int, backoff: float, timeout: float) -> None:
    """Append to `part` until the server has sent everything, resuming after each cut."""
    with shown(f"downloading {part.stem}", size, in_bytes=True) as report:
        farthest, failures, answered, validator = -1, 0, False, None
        while True:
            before = _length(part)
            try:
                with _ask(url, before, validator, timeout) as response:
                    answered, validator = True, _validator(response)
                    if _receive(response, part, size, report):
                        return
                reason = "connection cut"
            except requests.RequestException as error:
                reason = _short(error)
            done = _length(part)
            if not answered:
                raise MirrorError(reason)
            failures = failures + 1 if done <= farthest else 1
            farthest = max(farthest, done)
            if failures >= attempts:
                raise MirrorError(f"{reason} after {done:,} bytes, {failures} times in a row")
            time.sleep(backoff * 2 ** (failures - 1))


def _ask(url: str, offset: int, validator: str | None, timeout: float) -> requests.Response:
    """Open a streamed response for the bytes of `url` from `offset` on; the server may answer with all of them."""
    headers = {"Accept-Encoding": "identity"}  # a compressed answer has other lengths and ranges than the file
    if offset:
        headers["Range"] = f"bytes={offset}-"
        if validator:
            headers["If-Range"] = validator
    response = requests.get(url, headers=headers, stream=True, timeout=timeout)
    if response.status_code not in (200, 206, 416) or (response.status_code == 416 and not offset):
        response.close()
        raise MirrorError(f"HTTP {response.status_code}")
    return response


def _receive(response: requests.Response, part: Path, size: int | None, report: Callable) -> bool:
    """Write one response's body into `part`; True when the file is complete, False when it must be asked for again."""
    span = response.headers.get("Content-Range", "")
    if response.status_code == 416:
        if span == f"bytes */{_length(part)}":
            return True
        part.unlink()
        return False
    resumed = response.status_code == 206 and span.startswith(f"bytes {_length(part)}-")
    if response.status_code == 206 and not resumed:
        part.unlink()
        return False
    offset = _length(part) if resumed else 0
    length = response.headers.get("Content-Length")
    total = size if size is not None else offset + int(length) if length else None
    free = shutil.disk_usage(part.parent).free
    if total is not None and total - offset > free:
        raise UserError(
            f"{part.stem} needs {total - offset:,} more bytes but {part.parent} has {free:,} free: make room, "
            "or keep the data on another disk"
        )
    with open(part, "ab" if resumed else "wb") as file:
        for block in response.iter_content(BLOCK):
            file.write(block)
            offset += len(block)
            report(offset, total)
            if total is not None and offset > total:
                break
    return total is None or offset >= total


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _validator(response: requests.Response) -> str | None:
    """What If-Range may quote, so that a file changed meanwhile comes whole instead of spliced (RFC 9110, 13.1.5)."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified")


def _short(error: requests.RequestException) -> str:
    """A network error in a few words: the causes that requests wraps are what a person understands."""
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
    if isinstance(error, requests.ConnectionError | requests.exceptions.ChunkedEncodingError):
        return "connection cut"
    return type(error).__name__
