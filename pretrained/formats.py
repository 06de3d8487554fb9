"""Opens a pretrained model or its tokenizer, in any of the supported formats. Damaged files give one line."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError

from ..core.checked_files import DAMAGE, why
from ..core.errors import UserError
from ..core.options import as_path
from . import gguf_file, hugging_face, llama2c
from .checkpoint import Checkpoint
from .vocabulary import Vocabulary

T = TypeVar("T")
ALLOWED = "give a folder of Hugging Face with config.json and safetensors, a .gguf file, or a .bin file of llama2.c"
TOKENIZERS = "give a tokenizer.json or its folder, a .gguf file, or a tok*.bin of llama2.c"
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
GGUF = b"GGUF"


def opened(given: str | Path) -> Checkpoint:
    """The checkpoint at `given`: a folder or a file. Its weights are not read yet.

    Raises:
        UserError: it does not exist, is damaged, or is not a Llama-type model.
    """
    path = as_path(given)
    return _read(path, "model.pretrained", ALLOWED, lambda: _checkpoint(path))


def vocabulary_of(given: str | Path) -> Vocabulary:
    """The tokenizer of the model at `given`, or in a tokenizer's own file.

    Raises:
        UserError: it does not exist, is damaged, or is not a BPE.
    """
    path = as_path(given)
    return _read(path, "domain.tokenizer_path", TOKENIZERS, lambda: _vocabulary(path))


def _checkpoint(path: Path) -> Checkpoint:
    folder = path.parent if path.suffix == ".safetensors" else path
    if folder.is_dir():
        return hugging_face.read_checkpoint(folder)
    start = _start(path)
    if start == GGUF:
        return gguf_file.read_checkpoint(path)
    if start.startswith(PICKLES):
        raise ValueError("it is a pickle, which can run code; convert it to safetensors")
    return llama2c.read_checkpoint(path)


def _vocabulary(path: Path) -> Vocabulary:
    folder = path.parent if path.suffix == ".safetensors" else path
    if folder.is_dir():
        return hugging_face.read_vocabulary(folder / hugging_face.TOKENIZER)
    if path.suffix == ".json":
        return hugging_face.read_vocabulary(path)
    if _start(path) == GGUF:
        return gguf_file.read_vocabulary(path)
    try:
        tokenizer = llama2c.tokenizer_of(path, llama2c.read_checkpoint(path).vocabulary)
    except ValueError:
        return llama2c.read_vocabulary(path)
    return llama2c.read_vocabulary(tokenizer)


def _start(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(2, "No such file or directory", str(path))
    with open(path, "rb") as file:
        return file.read(4)


def _read(path: Path, setting: str, allowed: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{setting}={path}: {error.filename} does not exist: {allowed}") from error
    except (*DAMAGE, SafetensorError, struct.error) as error:
        raise UserError(f"{setting}={path}: it cannot be used ({why(error)}): {allowed}") from error
