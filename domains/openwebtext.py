"""OpenWebText: eight million pages linked from Reddit, from the Hugging Face hub."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import requests

from ..core.checked_files import SHA256
from ..core.errors import UserError
from .documents import Document
from .fetch import discarded, fetch
from .mirrors import CutError, MirrorError, Patient
from .options import SHARDS, OpenWebTextOptions
from .text import Text
from .unpacking import DamagedFileError


class OpenWebText(Text):
    """OpenWebText, with one document per page.

    Validation and test pages come only from the first shard, so they do not depend on the number of shards. Later
    copies of such pages are skipped.

    Args:
        options: fields of `OpenWebTextOptions`.

    Raises:
        ValueError: see `OpenWebTextOptions`.
    """

    name = "openwebtext"
    held_out_files = 1
    declared = OpenWebTextOptions
    given: OpenWebTextOptions

    def __init__(self, *options: Any, **named: Any):
        super().__init__(*options, **named)
        self.urls, self.shards = list(self.given.urls), self.given.shards or SHARDS

    def _source(self) -> Mapping[str, Any]:
        return {"urls": self.urls, "shards": self.shards} if self.path is None else super()._source()

    def _files(self) -> dict[str, Path]:
        return super()._files() if self.path is not None else dict(map(self._shard, range(self.shards)))

    def _read(self, name: str, path: Path) -> Iterator[Document]:
        try:
            yield from super()._read(name, path)
        except DamagedFileError as error:
            raise error if self.path is not None else discarded(path, error) from error

    def _shard(self, number: int) -> tuple[str, Path]:
        """Name and path of a shard, which is downloaded if needed."""
        name = f"{number:05d}.parquet"
        urls = [url.format(shard=number) for url in self.urls]
        wanted = "plain_text/ of huggingface.co/datasets/Skylion007/openwebtext"
        hint = f"get {wanted} and set domain.path=/folder/you/put/its/parquet/files/in; for a first try, domain=text "
        hint += "domain.source=wikitext2 downloads 4 MB only"
        if self._folder is None:
            raise UserError(f"{name} is missing, because the store is not prepared yet: {hint}")
        return name, fetch(urls, published_sha256, self._folder / "downloads" / name, hint)


def published_sha256(url: str) -> str | None:
    """The sha256 of a file according to the Hugging Face hub; None if it does not answer or for other servers."""
    call = Patient(60)
    try:
        tag = call(requests.head, url, timeout=20).headers.get("X-Linked-ETag", "")
    except (CutError, MirrorError):
        return None
    finally:
        call.end()
    digest = tag.removeprefix("W/").strip('"').lower()
    return digest if SHA256.fullmatch(digest) else None
