"""Changes of a file's bytes: flips, cuts, copies, splices, and other numbers where a format declares a size."""

import random
import re
from collections.abc import Callable, Sequence

EDGES = (0, 1, 2**7 - 1, 2**8 - 1, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
TEXT_EDGES = (
    *("0", "-1", "1", "2147483648", "9223372036854775808", "1e308", "-1e400", "NaN", "Infinity", ".inf", ".nan"),
    *("", "null", "true", "1e-320", "0x7f", "1_000", "99999999999999999999999999", "١٢", "-0.0", "2"),
)
# Where formats declare a size or a count: a mark, bytes from its begin to the number, bytes of the number, byte order.
DECLARED = (
    *((b"MThd", at, size, "big") for at, size in ((4, 4), (8, 2), (10, 2), (12, 2))),
    (b"MTrk", 4, 4, "big"),
    (b"\xff\x51\x03", 3, 3, "big"),
    *(
        (b"PK\x03\x04", at, size, "little")
        for at, size in ((6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2))
    ),
    *(
        (b"PK\x01\x02", at, size, "little")
        for at, size in ((8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (42, 4))
    ),
    *((b"PK\x05\x06", at, size, "little") for at, size in ((8, 2), (10, 2), (12, 4), (16, 4))),
    *((b"\x43\x27\x41\x1a", at, 4, "little") for at in (4, 8, 12)),
    (b"\x93NUMPY", 6, 1, "little"),
    (b"\x93NUMPY", 8, 2, "little"),
    (b"PAR1", -4, 4, "little"),
    (b"\x1f\x8b", 3, 1, "little"),
    (b"\x28\xb5\x2f\xfd", 4, 1, "little"),
    (b"\x28\xb5\x2f\xfd", 5, 4, "little"),
)
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
SHAPE = re.compile(rb"'shape': \([^)]*\)|'descr': '[^']*'|'fortran_order': \w+")
HEADERS = (
    *("'shape': (1000000000,)", "'shape': (4000000000, 8)", "'shape': (0,)", "'shape': ()", "'shape': (-1,)"),
    *("'shape': (2,)", "'shape': (1, 1)", "'shape': (True,)", "'shape': ((1,),)", "'descr': '|O'", "'descr': '<f2'"),
    *("'descr': '<U5'", "'descr': '<i4'", "'descr': '<c16'", "'descr': '|V8'", "'descr': '<M8[s]'", "'descr': 'zz'"),
    *("'fortran_order': True", "'fortran_order': None", "__import__('os').abort()"),
)

Bytes = Callable[[random.Random, bytearray, Sequence[bytes]], bytearray]


def _place(rng: random.Random, data: bytearray) -> int:
    """More often near the ends, where headers and indices are."""
    size = max(1, len(data))
    return rng.choice((rng.randrange(size), rng.randrange(min(size, 64)), size - 1 - rng.randrange(min(size, 64))))


def flip(rng, data, donors):
    for _ in range(rng.choice((1, 1, 2, 8))):
        if data:
            data[_place(rng, data)] ^= 1 << rng.randrange(8)
    return data


def substitute(rng, data, donors):
    for _ in range(rng.choice((1, 2, 5))):
        if data:
            data[_place(rng, data)] = rng.choice((0, 9, 10, 32, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return data


def cut(rng, data, donors):
    return data[: rng.choice((0, 1, _place(rng, data), len(data) // 2, len(data) - 1))]


def extend(rng, data, donors):
    more = rng.choice((b"\0" * 100, rng.randbytes(rng.randrange(1, 300)), bytes(data), b"\n", b"\xff" * 7))
    return data + more if rng.random() < 0.8 else bytearray(more) + data


def duplicate(rng, data, donors):
    at, size, to = _place(rng, data), rng.randrange(1, 200), _place(rng, data)
    return data[:to] + data[at : at + size] * rng.choice((1, 2, 50)) + data[to:]


def remove(rng, data, donors):
    at = _place(rng, data)
    return data[:at] + data[at + rng.randrange(1, 200) :]


def splice(rng, data, donors):
    donor = rng.choice(donors) if donors else b"PK\x03\x04"
    if rng.random() < 0.2:
        return bytearray(donor)
    at, here = rng.randrange(len(donor) + 1), _place(rng, data)
    part = donor[at : at + rng.choice((4, 16, 256, 10_000))]
    return data[:here] + part + data[here + (len(part) if rng.random() < 0.5 else 0) :]


def edge(rng, data, donors):
    size, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
    at = _place(rng, data) // size * size
    data[at : at + size] = (rng.choice(EDGES) % 256**size).to_bytes(size, order)
    return data


def declared(rng, data, donors):
    found = [each for each in DECLARED if each[0] in data]
    if not found:
        return edge(rng, data, donors)
    mark, offset, size, order = rng.choice(found)
    places = [match.start() for match in re.finditer(re.escape(mark), data)]
    at = rng.choice(places) + offset
    if at >= 0:
        before = int.from_bytes(data[at : at + size], order)
        value = rng.choice((*EDGES, before + 1, before - 1, before * 2, before // 2, before + 2**20))
        data[at : at + size] = (value % 256**size).to_bytes(size, order)
    return data


def number(rng, data, donors):
    """Another number in the place of one that is written as text, or of an .npy header's shape or type."""
    pattern, edges = (SHAPE, HEADERS) if b"'shape'" in data else (NUMBER, TEXT_EDGES)
    matches = list(pattern.finditer(data))
    if pattern is SHAPE:  # of a header that an earlier change has not cut
        matches = [match for match in matches if b"\n" in data[match.end() :]]
    if not matches:
        return edge(rng, data, donors)
    match, new = rng.choice(matches), rng.choice(edges).encode()
    if pattern is SHAPE:  # the header keeps its length
        end = data.index(b"\n", match.end())
        rest = bytes(data[match.end() : end]).rstrip()
        new = (new + rest).ljust(end - match.start())[: end - match.start()]
        return data[: match.start()] + new + data[end:]
    return data[: match.start()] + new + data[match.end() :]


def not_utf8(rng, data, donors):
    at = _place(rng, data)
    return (
        data[:at]
        + rng.choice((b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xfe\xff", b"\0", b"\x85", b"\x1b[31m"))
        + data[at:]
    )


IN_PLACE: tuple[Bytes, ...] = (flip, flip, flip, substitute, edge, declared, number)
ANY: tuple[Bytes, ...] = (*IN_PLACE, cut, extend, duplicate, remove, splice, not_utf8)


def mutated(rng: random.Random, data: bytes, donors: Sequence[bytes]) -> tuple[bytes, str]:
    """`data` after one change, or a few, and their names."""
    given, names = bytearray(data), []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        change = rng.choice(ANY)
        names.append(change.__name__)
        given = change(rng, given, donors)
    return bytes(given), ", ".join(names)
