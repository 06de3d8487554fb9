"""Standard MIDI Files byte by byte: whether one is whole, and how many notes it begins."""

from pathlib import Path

MOST = 1 << 21  # bytes of a file: five times MAESTRO's longest
MOST_TICKS = 2**31 - 1  # of a track: what readers count in


def content(path: Path) -> bytes:
    """The bytes of a file, as many as `note_ons` accepts and one more.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a regular file, such as a FIFO, from which a read never returns.
    """
    if path.exists() and not path.is_file():
        raise ValueError("not a regular file")
    with open(path, "rb") as file:
        return file.read(MOST + 1)


def note_ons(data: bytes) -> int:
    """Count the pitched note-ons of a Standard MIDI File, byte by byte, and check that the file is whole.

    Raises:
        ValueError: it is none, is too long, is cut short, or goes on after its last track; says at which byte. Or it
            is of format 2 with several tracks, which follow each other, where readers take tracks to sound together.
    """
    if not data:
        raise ValueError("an empty file")
    if len(data) > MOST:
        raise ValueError(f"more than {MOST:,} bytes")
    if data[:4] != b"MThd" or len(data) < 14:
        raise ValueError("no MIDI header")
    tracks, division = int.from_bytes(data[10:12]), int.from_bytes(data[12:14])
    if data[8:10] == b"\0\2" and tracks > 1:
        raise ValueError(f"format 2, whose {tracks} tracks are pieces one after another; save each as a separate file")
    if not 0 < division < 0x8000:
        raise ValueError(f"its time unit is {division:#06x}, which is not a number of ticks a quarter note")
    place, total = 8 + int.from_bytes(data[4:8]), 0
    while place < len(data):
        end = place + 8 + int.from_bytes(data[place + 4 : place + 8])
        if place + 8 > len(data) or end > len(data):
            raise ValueError(f"cut short: a chunk that begins at byte {place:,} needs {end - len(data):,} bytes more")
        if data[place : place + 4] == b"MTrk":
            total += _track(data, place + 8, end)
            tracks -= 1
        place = end
    if tracks > 0:
        raise ValueError(f"cut short: {tracks} of its tracks are not there")
    return total


def _track(data: bytes, place: int, end: int) -> int:
    """Pitched note-ons of the track chunk `data[place:end]`."""
    total, status, ticks = 0, 0, 0
    try:
        while place < end:
            waited, place = _number(data, place)  # the time since the event before
            ticks += waited
            if ticks > MOST_TICKS:
                raise ValueError(f"damaged: it lasts more than {MOST_TICKS:,} ticks at byte {place:,}")
            first = data[place]
            if first >= 0xF0:  # meta events and system exclusive: a length, and so many bytes
                length, place = _number(data, place + (2 if first == 0xFF else 1))
                place += length
                continue
            if first & 0x80:
                status, place = first, place + 1
            elif not status:
                raise ValueError(f"damaged: byte {place:,} belongs to no event")
            if status & 0xF0 == 0x90 and status != 0x99 and data[place + 1]:  # 0x99: channel 10, drums
                total += 1
            place += 1 if status & 0xE0 == 0xC0 else 2
    except IndexError:
        place = end + 1
    if place != end:
        raise ValueError(f"damaged: an event runs over the end of its track at byte {end:,}")
    return total


def _number(data: bytes, place: int) -> tuple[int, int]:
    """A number of one to four bytes, each with seven of its bits, and the place after it."""
    value = 0
    for at in range(place, place + 4):
        value = value << 7 | data[at] & 0x7F
        if data[at] < 0x80:
            return value, at + 1
    raise ValueError(f"damaged: a number of more than four bytes at byte {place:,}")


def refuse_lost(begun: int, read: int) -> None:
    """Raise ValueError where fewer notes were `read` than have `begun`."""
    if read < begun:
        raise ValueError(f"{begun - read} of its {begun} notes have no end or zero length; give each note an end")
