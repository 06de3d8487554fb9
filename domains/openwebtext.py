"""OpenWebText: eight million pages that Reddit's users linked to, from the Hugging Face hub."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import requests

from ..core.errors import UserError
from .documents import Document, read
from .fetch import discarded, fetch
from .mirrors import CutError, MirrorError, Patient
from .options import SHARDS, OpenWebTextOptions
from .text import Text
from .unpacking import DamagedFileError


class OpenWebText(Text):
    """OpenWebText, a document a page.

    Validation and test pages come from the first shard alone, so that they are the same however many shards are read;
    a later copy of such a page is left out.

    Args:
        options: fields of `OpenWebTextOptions`.

    Raises:
        ValueError: as `OpenWebTextOptions`.
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

    def _sound_documents(self, name: str, path: Path, faults: list[str]) -> Iterator[Document]:
        try:
            yield from read(name, path, self.field, self.documents)
        except DamagedFileError as error:
            faults.append(str(error if self.path is not None else discarded(path, error)))
        except UserError as error:
            faults.append(str(error))

    def _shard(self, number: int) -> tuple[str, Path]:
        """Name and place of a shard, downloaded first if need be."""
        name = f"{number:05d}.parquet"
        urls = [url.format(shard=number) for url in self.urls]
        wanted = "plain_text/ of huggingface.co/datasets/Skylion007/openwebtext"
        hint = f"get {wanted} and set domain.path=/folder/you/put/its/parquet/files/in"
        if self._folder is None:
            raise UserError(f"{name} is not there before the store is prepared: {hint}")
        return name, fetch(urls, published_sha256, self._folder / "downloads" / name, hint)


def published_sha256(url: str) -> str | None:
    """What the Hugging Face hub says a file's sha256 is; None when nobody answers or the server is another."""
    call = Patient(60)
    try:
        tag = call(requests.head, url, timeout=20).headers.get("X-Linked-ETag", "")
    except (CutError, MirrorError):
        return None
    finally:
        call.end()
    digest = tag.removeprefix("W/").strip('"').lower()
    return digest if len(digest) == 64 and set(digest) <= set("0123456789abcdef") else None
