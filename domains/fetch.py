"""Verified downloads with checksums, progress, resume, mirrors and one-line errors."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from filelock import FileLock

from ..core.checked_files import digest_of
from ..core.errors import UserError
from ..core.progress import shown
from .mirrors import MirrorError, Terms, transfer

LIMIT = 1 << 30  # bytes


def fetch(
    urls: Sequence[str],
    sha256: str | Callable[[str], str | None] | None,
    target: Path,
    hint: str,
    *,
    size: int | None = None,
    md5: str | None = None,
    limit: int = LIMIT,
    attempts: int = 5,
    backoff: float = 0.5,
    timeout: float = 20.0,
    patience: float = 60.0,
) -> Path:
    """Return `target`, downloading it from the first working URL. Concurrent processes download it only once.

    Data are written to `target` + ".part" and moved to `target` after verification, so `target` is never incomplete. An
    interrupted transfer resumes, within this call and, if a digest is known, in a later one. If a mirror fails for any
    reason, the next one is tried. Redirects from https to http are rejected.

    Args:
        urls: mirrors, tried in order.
        sha256: required hexadecimal digest, or a function that returns the digest for the URL of a mirror. None if the
            publisher provides none; then a mirror must announce a length and send that many bytes.
        target: final path. An existing file is verified and returned without network access.
        hint: end of the error message: which file to download manually, and which option to set to its path.
        size: size of the file in bytes, if known. Mirrors that announce a different size are skipped.
        md5: required hexadecimal digest, if the publisher provides no other.
        limit: maximum bytes accepted if `size` is not known.
        attempts: number of interruptions at the same byte after which a mirror that has responded is skipped.
        backoff: seconds to wait after an interruption; doubles while no new bytes arrive.
        timeout: seconds to connect, and between two blocks of data.
        patience: seconds for the headers, and for every 32 KiB. Slower mirrors are skipped.

    Raises:
        UserError: no mirror sent the right bytes, the disk is full, or the existing `target` is a different file.
    """
    target = Path(target)
    part = target.with_name(target.name + ".part")
    reasons = []
    existing = partial(
        verify, target, None if callable(sha256) else sha256, size, "delete it to download it again", md5
    )
    if target.exists():  # before the lock, which cannot be taken in a read-only folder
        return existing()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(target.name + ".lock")):
            if target.exists():  # downloaded by another process in the meantime
                return existing()
            for url in urls:
                try:
                    digest = sha256(url) if callable(sha256) else sha256
                    if digest is None and md5 is None:
                        part.unlink(missing_ok=True)  # without a digest, a mix of two versions would not be detected
                    checked = any(known is not None for known in (digest, md5, size))
                    terms = Terms(size, limit, checked, attempts, backoff, timeout, patience)
                    _from_mirror(url, part, digest, md5, terms)
                except MirrorError as error:
                    reasons.append(f"{_host(url)}: {error}")
                    continue
                with open(part, "rb") as file:
                    os.fsync(file.fileno())
                os.replace(part, target)
                return target
    except OSError as error:
        raise UserError(
            f"{target} cannot be written ({error.strerror}): free disk space or choose another folder"
        ) from error
    why = "; ".join(reasons) or "no URL is configured"
    raise UserError(f"{target.name} could not be downloaded ({why}): {hint}")


def verify(
    path: Path, sha256: str | None, size: int | None = None, remedy: str = "download it again", md5: str | None = None
) -> Path:
    """Return `path` if its contents have the given digests and size. None accepts any value.

    Raises:
        UserError: it is missing, not a file, or has different contents. The message names the file, digests and sizes.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} is {'a folder' if path.is_dir() else 'missing'}: give the path of the downloaded file")
    if (fault := _difference(path, sha256, size, md5)) is not None:
        raise UserError(f"{path} is not the expected file ({fault}): {remedy}")
    return path


def discarded(path: Path, error: UserError) -> UserError:
    """Delete an unusable download. Returns `error` with a note about the deletion."""
    path.unlink(missing_ok=True)
    return UserError(f"{error} (deleted: the next run downloads it again)")


def _difference(path: Path, sha256: str | None, size: int | None, md5: str | None) -> str | None:
    """A short description of how `path` differs from the given digests and size; None if it does not."""
    found = path.stat().st_size
    sizes = f"{found:,} bytes instead of {size:,}" if size is not None and found != size else f"{found:,} bytes"
    for kind, wanted in (("sha256", sha256), ("md5", md5)):
        if wanted is not None and (digest := digest_of(path, kind)) != wanted.lower():
            return f"{kind} {digest[:12]}... instead of {wanted[:12].lower()}..., {sizes}"
    return sizes if size is not None and found != size else None


def _from_mirror(url: str, part: Path, sha256: str | None, md5: str | None, terms: Terms) -> None:
    """Download `part` from `url` and verify it. Raises MirrorError on failure."""
    inherited = part.exists()
    if inherited and _difference(part, sha256, terms.size, md5) is None:
        return
    with shown(f"downloading {part.stem}", terms.size, in_bytes=True) as report:
        transfer(url, part, terms, report)
        fault = _difference(part, sha256, terms.size, md5)
        if fault is not None and inherited:
            part.unlink()  # the fault may be in bytes that were already in `part`
            transfer(url, part, terms, report)
            fault = _difference(part, sha256, terms.size, md5)
    if fault is not None:
        part.unlink()
        raise MirrorError(f"wrong contents, deleted ({fault})")


def _host(url: str) -> str:
    """The host of a possibly malformed URL, without credentials."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2] or url
