"""Parses Standard MIDI Files to check that they are complete and to count note-ons."""

from pathlib import Path

MOST = 1 << 21  # maximum bytes of a file; five times the largest of MAESTRO
MOST_TICKS = 2**31 - 1  # maximum ticks of a track, because other readers use 32-bit integers


def content(path: Path) -> bytes:
    """The first MOST + 1 bytes of a file; `note_ons` rejects files of more than MOST bytes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a regular file. Reading a FIFO, for example, may never return.
    """
    if path.exists() and not path.is_file():
        raise ValueError("not a regular file")
    with open(path, "rb") as file:
        return file.read(MOST + 1)


def note_ons(data: bytes) -> int:
    """Count the pitched note-ons of a Standard MIDI File and check that the file is complete.

    Raises:
        ValueError: not a MIDI file, too long, truncated, or with data after the last track; the message gives the
            byte. Also for format 2 with several tracks: these are sequential, but other readers play them together.
    """
    if not data:
        raise ValueError("an empty file")
    if len(data) > MOST:
        raise ValueError(f"more than {MOST:,} bytes")
    if data[:4] != b"MThd" or len(data) < 14:
        raise ValueError("no MIDI header")
    tracks, division = int.from_bytes(data[10:12]), int.from_bytes(data[12:14])
    if data[8:10] == b"\0\2" and tracks > 1:
        raise ValueError(f"format 2, whose {tracks} tracks are separate pieces; save each as a separate file")
    if not 0 < division < 0x8000:
        raise ValueError(f"its time unit is {division:#06x}, which is not a number of ticks per quarter note")
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
        raise ValueError(f"cut short: {tracks} of its tracks are missing")
    return total


def _track(data: bytes, place: int, end: int) -> int:
    """Pitched note-ons of the track chunk `data[place:end]`."""
    total, status, ticks = 0, 0, 0
    try:
        while place < end:
            waited, place = _number(data, place)  # time since the previous event
            ticks += waited
            if ticks > MOST_TICKS:
                raise ValueError(f"damaged: it lasts more than {MOST_TICKS:,} ticks at byte {place:,}")
            first = data[place]
            if first >= 0xF0:  # meta events and system exclusive: a length, then that many bytes
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
    """A variable-length number of one to four bytes with seven bits each, and the position after it."""
    value = 0
    for at in range(place, place + 4):
        value = value << 7 | data[at] & 0x7F
        if data[at] < 0x80:
            return value, at + 1
    raise ValueError(f"damaged: a number of more than four bytes at byte {place:,}")


def refuse_lost(begun: int, read: int, share: float = 0.0) -> None:
    """Raise ValueError if more than a `share` of the notes that have `begun` were not `read`."""
    if begun - read > share * begun:
        raise ValueError(f"{begun - read} of its {begun} notes have no end or zero length; give each note an end")
