"""WikiText-2 (Merity et al., arXiv 1609.07843): word-tokenised Wikipedia articles, with their published splits."""

import hashlib
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ..core.errors import UserError, one_line
from ..core.whole_files import written_whole
from .fetch import fetch, verify

ARCHIVE, SHA256 = "wikitext-2-v1.zip", "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"
LIMIT = 1 << 23  # bytes of the archive, which has 4.5 MB
# Size and sha256 of the files in the archive.
FILES = {
    "wiki.test.tokens": (1_256_449, "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
    "wiki.train.tokens": (10_797_148, "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
    "wiki.valid.tokens": (1_121_681, "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
}
HINT = f"get {ARCHIVE} from wikitext.smerity.com, unpack it, and set domain.path=/folder/you/put/its/files/in"


def digest() -> str:
    """The hash that a folder with these files has as a source of text."""
    return hashlib.sha256(json.dumps({name: sha256 for name, (_, sha256) in FILES.items()}).encode()).hexdigest()


def files(folder: Path, urls: Sequence[str]) -> dict[str, Path]:
    """The files by name, which are downloaded to `folder` if needed.

    Raises:
        UserError: no mirror sent the archive, or an existing file has other contents.
    """
    found = {name: folder / name for name in FILES}
    if not all(path.exists() for path in found.values()):
        archive = fetch(urls, SHA256, folder / ARCHIVE, HINT, limit=LIMIT)
        try:
            with zipfile.ZipFile(archive) as packed:
                for name, (size, _) in FILES.items():
                    with packed.open(f"wikitext-2/{name}") as file, written_whole(found[name], binary=True) as target:
                        target.write(file.read(size))
        except (zipfile.BadZipFile, KeyError) as error:
            raise UserError(f"{archive} cannot be unpacked ({one_line(error)}): delete it") from error
    for name, (size, sha256) in FILES.items():
        verify(found[name], sha256, size, "delete it to download it again")
    return found
