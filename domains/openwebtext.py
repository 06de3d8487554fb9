"""OpenWebText: eight million pages that Reddit's users linked to, from the Hugging Face hub."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import requests

from ..core.errors import UserError
from .documents import Document, read
from .fetch import discarded, fetch
from .mirrors import CutError, MirrorError, Patient
from .text import GPT2_URLS, Text
from .unpacking import DamagedFileError

SHARDS = 80
# A revision of the dataset that does not change; about 0.3 GB a shard.
URLS = (
    "https://huggingface.co/datasets/Skylion007/openwebtext/resolve/79d93d786212f7344586290adb811d4ae6a1762c"
    "/plain_text/train-{shard:05d}-of-00080.parquet",
)


class OpenWebText(Text):
    """OpenWebText, a document a page.

    Validation and test pages come from the first shard alone, so that they are the same however many shards are read;
    a later copy of such a page is left out.

    Args:
        path: a file or folder of it, already downloaded: .parquet, .jsonl or .txt. None downloads it.
        urls: mirrors, in order, in which `{shard:05d}` stands for 00000, 00001, ...
        shards: how many of the 80 to read; None for all, 24 GB.
        valid_fraction, test_fraction: of the first shard's 100,000 pages, or of the first file in `path`.

    The other arguments are those of Text.

    Raises:
        ValueError: an unknown choice, a number outside its range, or a URL that has no place for a shard's number.
    """

    name = "openwebtext"
    held_out_files = 1

    def __init__(
        self,
        path: str | None = None,
        urls: list[str] = list(URLS),  # noqa: B006 (only read)
        shards: int | None = None,
        field: str = "text",
        documents: Literal["file", "line", "paragraph", "article"] = "file",
        tokenizer: Literal["gpt2", "bytes", "train"] = "gpt2",
        tokenizer_path: str | None = None,
        tokenizer_urls: list[str] = list(GPT2_URLS),  # noqa: B006 (only read)
        vocabulary_size: int = 8192,
        split: Literal["hash", "files"] = "hash",
        valid_fraction: float = 0.02,
        test_fraction: float = 0.02,
    ):
        super().__init__(
            path,
            field,
            documents,
            tokenizer,
            tokenizer_path,
            tokenizer_urls,
            vocabulary_size,
            split,
            valid_fraction,
            test_fraction,
        )
        if shards is not None and not 1 <= shards <= SHARDS:
            raise ValueError(f"shards={shards}: 1 to {SHARDS}, or null for all")
        self.urls, self.shards = list(urls), SHARDS if shards is None else shards
        for url in self.urls:
            try:
                distinct = url.format(shard=0) != url.format(shard=1)
            except (KeyError, IndexError, ValueError):
                distinct = False
            if not distinct:
                raise ValueError(f"urls: {url} has no {{shard:05d}} where a shard's number goes")

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
