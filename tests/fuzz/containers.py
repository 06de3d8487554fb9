"""Changes inside archives, with checksums that are right again; archives of gigabytes; odd directory entries."""

import io
import json
import os
import pickle
import random
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from . import mutators
from .trees import ATTACKS, changed_tree

BOMB = 5 << 28  # bytes that a few MB unpack to: 1.25 GiB
CHUNK = 1 << 24
NAMES = ("../../escaped", "/tmp/escaped", "..\\escaped", "a/../../escaped", "C:/escaped", "", "x" * 300, "nats.npy")  # noqa: S108, never written


def changed_zip(rng: random.Random, data: bytes, donors: Sequence[bytes]) -> tuple[bytes, str]:
    """A member changed, removed, doubled or renamed; the archive is written anew, with right checksums."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            members = [(info, file.read(info)) for info in file.infolist()]
    except Exception:
        return mutators.mutated(rng, data, donors)
    at, action = (
        rng.randrange(len(members)),
        rng.choice(("change", "change", "change", "remove", "double", "rename", "swap", "pickle")),
    )
    info, content = members[at]
    name, what = info.filename, action
    if action == "change":
        content, what = mutators.mutated(rng, content, donors)
        if content.startswith(b"\x93NUMPY") and rng.random() < 0.5:
            content, what = mutators.number(rng, bytearray(content), donors), "npy header"
        members[at] = info, bytes(content)
    elif action == "remove":
        del members[at]
    elif action == "double":
        members.append((info, rng.choice(members)[1]))
    elif action == "rename":
        info.filename = rng.choice(NAMES)
    elif action == "swap":
        other = rng.randrange(len(members))
        members[at], members[other] = (info, members[other][1]), (members[other][0], content)
    elif pickles := [i for i, (each, _) in enumerate(members) if each.filename.endswith("data.pkl")]:
        members[pickles[0]] = members[pickles[0]][0], hostile_pickle(rng)
    else:
        array = io.BytesIO()
        np.save(array, np.array([_Call("os", "system", "touch FUZZ")], object), allow_pickle=True)
        members[at] = info, array.getvalue()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for each, inside in members:
            file.writestr(
                zipfile.ZipInfo(each.filename or "x"), inside, zipfile.ZIP_DEFLATED if "npy" in each.filename else None
            )
    return out.getvalue(), f"zip: {what} {name}"


class _Call:
    """Pickled, a call of a function by its name."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        module, name, *arguments = self.call
        return getattr(__import__(module), name), tuple(arguments)


def hostile_pickle(rng: random.Random) -> bytes:
    call = rng.choice(
        (("os", "system", "touch FUZZ"), ("builtins", "eval", "1"), ("builtins", "exec", "open('FUZZ','w')"))
    )
    return pickle.dumps(rng.choice((_Call(*call), {"state_dict": _Call(*call), "bearings": {}})), 2)


def changed_safetensors(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """Another header, of the right length."""
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    kind = rng.randrange(4)
    if kind == 0:
        name = rng.choice([name for name in header if name != "__metadata__"])
        header[name]["shape"] = rng.choice(([2**40, 8], [0], [2**31], [-1], [1] * 5000, header[name]["shape"][::-1]))
        what = f"shape of {name}"
    elif kind == 1:
        name = rng.choice([name for name in header if name != "__metadata__"])
        header[name]["dtype"] = rng.choice(("F16", "F64", "I32", "BF16", "U8", "X", None))
        what = f"dtype of {name}"
    else:
        header, what = changed_tree(rng, header)
    try:
        text = json.dumps(header).encode(errors="replace")
    except (ValueError, TypeError, RecursionError):
        text = b"[" * 200_000
    return struct.pack("<Q", len(text)) + text + body, f"safetensors: {what}"


def _zeros(compressor, begin: bytes = b"") -> bytes:
    """`begin` and BOMB zero bytes, packed: one block of zeros is packed once and repeated."""
    first = compressor.compress(begin) + compressor.flush(zlib.Z_FULL_FLUSH)
    block = compressor.compress(bytes(CHUNK)) + compressor.flush(zlib.Z_FULL_FLUSH)
    return first + block * (BOMB // CHUNK) + compressor.flush()


def gzip_bomb(begin: bytes) -> bytes:
    """gzip of `begin` and then zeros; its checksum is wrong, which shows at the end only."""
    packed = _zeros(zlib.compressobj(9, zlib.DEFLATED, -15), begin)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + packed + struct.pack("<II", 0, (len(begin) + BOMB) % 2**32)


def zstd_bomb() -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        for _ in range(BOMB // CHUNK):
            stream.write(bytes(CHUNK))
    return sink.getvalue().to_pybytes()


def zip_bomb(data: bytes, rng: random.Random) -> bytes:
    """A zip whose one member, of the name of one in `data`, unpacks to BOMB zeros; an .npy where the name says so."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        name = rng.choice(file.namelist()).encode()
    begin = io.BytesIO()
    if name.endswith(b".npy"):
        np.lib.format.write_array_header_1_0(begin, {"descr": "<f8", "fortran_order": False, "shape": (BOMB // 8,)})
    packed, size = _zeros(zlib.compressobj(9, zlib.DEFLATED, -15), begin.getvalue()), len(begin.getvalue()) + BOMB
    facts = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, 0, len(packed), size, len(name), 0)
    local = b"PK\x03\x04" + facts + name + packed
    central = b"PK\x01\x02" + struct.pack("<H", 20) + facts + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    return local + central + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)


def bomb(rng: random.Random, name: str, data: bytes) -> tuple[bytes, str] | None:
    """What unpacks to gigabytes, of the kind that `name` says; None where that kind does not pack anything."""
    if name.endswith(".gz"):
        return gzip_bomb(rng.choice((b"", b">a\n", b'{"text": "'))), "gzip bomb"
    if name.endswith(".zst"):
        return zstd_bomb(), "zstd bomb"
    if name.endswith((".npz", ".zip", ".ckpt")):
        return zip_bomb(data, rng), "zip bomb"
    return None


PLACES = ("gone", "folder", "loop", "nowhere", "outside", "device", "pipe", "sparse", "empty")


def replaced(rng: random.Random, path: Path, outside: Path) -> str:
    """Put something other than a regular file in the place of `path`; `outside` is a folder for what links lead to."""
    kind, data = rng.choice(PLACES), path.read_bytes()
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "nowhere":
        path.symlink_to(outside / "nowhere")
    elif kind == "outside":
        (outside / path.name).write_bytes(data)
        path.symlink_to(outside / path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "sparse":
        with open(path, "wb") as file:
            file.write(data[: rng.choice((0, len(data)))])
            file.truncate(1 << 31)
    elif kind == "empty":
        path.touch()
    return f"place: {kind}"


def unpacked_change(rng: random.Random, name: str, data: bytes, donors: Sequence[bytes]) -> tuple[bytes, str]:
    """A change of what a .gz or .zst holds, packed again."""
    import gzip

    import pyarrow as pa

    if name.endswith(".gz"):
        inside, what = mutators.mutated(rng, gzip.decompress(data), donors)
        return gzip.compress(inside, 1), f"in gzip: {what}"
    inside, what = mutators.mutated(rng, pa.input_stream(io.BytesIO(data), compression="zstd").read(), donors)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(inside)
    return sink.getvalue().to_pybytes(), f"in zstd: {what}"


LAUGHS = b"<!DOCTYPE a [<!ENTITY a0 'ha'>%s]>" % b"".join(
    b"<!ENTITY a%d '%s'>" % (n, b"&a%d;" % (n - 1) * 10) for n in range(1, 10)
)
OUTSIDE = b"<!DOCTYPE a [<!ENTITY a9 SYSTEM 'file:///etc/passwd'>]>"


def attacked_text(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """A hostile text in the place of a word; in XML also entities that refer to each other, or to a file."""
    if data.startswith(b"<") and rng.random() < 0.2:
        entities = rng.choice((LAUGHS, OUTSIDE))
        return entities + data.replace(b"Soprano", b"&a9;", 1), f"text: {entities[:40]!r}"
    words, attack = data.split(b" "), rng.choice(ATTACKS).encode(errors="replace")
    words[rng.randrange(len(words))] = attack
    return b" ".join(words), f"text: {attack[:30]!r}"
