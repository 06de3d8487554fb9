"""Verified download: pinned sha256, progress bar, resume, mirrors in order, and one line when all of that fails."""

import os
from collections.abc import Callable, Sequence
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
    """Return `target`, downloading it from the first of `urls` that has it. Processes that race download it once.

    Bytes gather in `target` + ".part" and move to `target` after verification, so nothing half-written bears the final
    name. A cut transfer resumes where it stopped, in this call and, when a digest is known, in a later one. Whatever a
    mirror does wrong is its own failure: the next one is tried. Redirects from https to http are refused.

    Args:
        urls: mirrors, tried in order.
        sha256: hexadecimal digest the file must have; or a function that asks a mirror, by URL, for the digest of what
            it sends. None where the publisher keeps none: then a mirror must announce a length, and send as much.
        target: final path. A file already there is verified and returned without touching the network.
        hint: ends the error: which file to get by hand, and which override then names it.
        size: bytes of the whole file where known; a mirror that announces others is given up.
        md5: hexadecimal digest, where the publisher keeps no other.
        limit: most bytes accepted where `size` is not known.
        attempts: cuts at one and the same byte before a mirror that had begun to answer is given up.
        backoff: seconds waited after a cut; doubles while no new byte comes.
        timeout: seconds to connect, and between two pieces of data.
        patience: seconds for the headers, and for every 32 KiB: slower mirrors are given up.

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
                known = None if callable(sha256) else sha256
                return verify(target, known, size, "delete it to have it downloaded again", md5)
            for url in urls:
                try:
                    digest = sha256(url) if callable(sha256) else sha256
                    if digest is None and md5 is None:
                        part.unlink(missing_ok=True)  # without a digest nobody would notice two versions spliced
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
            f"{target} cannot be written ({error.strerror}): make room, or choose another folder"
        ) from error
    why = "; ".join(reasons) or "no URL is configured"
    raise UserError(f"{target.name} could not be downloaded ({why}): {hint}")


def verify(
    path: Path, sha256: str | None, size: int | None = None, remedy: str = "get it anew", md5: str | None = None
) -> Path:
    """Return `path` when its contents have the digests `sha256` and `md5` and `size` bytes; None accepts any.

    Raises:
        UserError: it is missing, not a file, or holds other bytes; names the file, both digests and both sizes.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} is {'a folder' if path.is_dir() else 'missing'}: give the path of the downloaded file")
    if (fault := _difference(path, sha256, size, md5)) is not None:
        raise UserError(f"{path} is not the file expected: {fault}: {remedy}")
    return path


def discarded(path: Path, error: UserError) -> UserError:
    """Delete a download that turned out to be unusable, and say so after why."""
    path.unlink(missing_ok=True)
    return UserError(f"{error} (deleted: the next run downloads it again)")


def _difference(path: Path, sha256: str | None, size: int | None, md5: str | None) -> str | None:
    """How `path` differs from the file with these digests and size, in a few words; None when it does not."""
    found = path.stat().st_size
    sizes = f"{found:,} bytes instead of {size:,}" if size is not None and found != size else f"{found:,} bytes"
    for kind, wanted in (("sha256", sha256), ("md5", md5)):
        if wanted is not None and (digest := digest_of(path, kind)) != wanted.lower():
            return f"{kind} {digest[:12]}... instead of {wanted[:12].lower()}..., {sizes}"
    return sizes if size is not None and found != size else None


def _from_mirror(url: str, part: Path, sha256: str | None, md5: str | None, terms: Terms) -> None:
    """Fill `part` from `url` until it verifies. Raises MirrorError otherwise."""
    inherited = part.exists()
    if inherited and _difference(part, sha256, terms.size, md5) is None:
        return
    with shown(f"downloading {part.stem}", terms.size, in_bytes=True) as report:
        transfer(url, part, terms, report)
        fault = _difference(part, sha256, terms.size, md5)
        if fault is not None and inherited:
            part.unlink()  # the bytes found in `part` may be at fault rather than this mirror's
            transfer(url, part, terms, report)
            fault = _difference(part, sha256, terms.size, md5)
    if fault is not None:
        part.unlink()
        raise MirrorError(f"wrong bytes, deleted ({fault})")


def _host(url: str) -> str:
    """The host of a URL that may be malformed, without a password."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2] or url
