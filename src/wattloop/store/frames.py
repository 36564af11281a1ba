"""Frames: `length, crc32, kind` and a payload, as journals hold them and processes exchange them.

A frame that was torn by a crash or a full disk fails its checksum and ends the readable part, so
a reader never sees half a record.
"""

from __future__ import annotations  # array[float] cannot be evaluated before Python 3.12

import json
import struct
import zlib
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = [
    "END",
    "EVENT",
    "FRAME",
    "HEADER",
    "SAMPLES",
    "SampleBlock",
    "block_from",
    "frames_in",
    "json_frame",
    "pack_frame",
    "samples_frame",
]

HEADER, SAMPLES, EVENT, END = b"H", b"S", b"E", b"X"
FRAME = struct.Struct("<IIc")
_BLOCK = struct.Struct("<HHI")


class SampleBlock(NamedTuple):
    """Readings of one meter: `times_s[i]` belongs to `values[i*width:(i+1)*width]`."""

    feed: int
    width: int
    times_s: array[float]
    values: array[float]
    """Raw joules or watts per domain in the header's order; NaN marks a gap."""


def json_frame(kind: bytes, data: Any) -> bytes:
    """A header, an event or an end."""
    return pack_frame(kind, json.dumps(data, separators=(",", ":"), default=str).encode())


def samples_frame(feed: int, width: int, times_s: array[float], values: array[float]) -> bytes:
    """Readings of feed number `feed`."""
    head = _BLOCK.pack(feed, width, len(times_s))
    return pack_frame(SAMPLES, head + times_s.tobytes() + values.tobytes())


def frames_in(data: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """(kind, payload, where it ends) of every whole frame up to the first torn one."""
    offset = 0
    while offset + FRAME.size <= len(data):
        length, checksum, kind = FRAME.unpack_from(data, offset)
        begin = offset + FRAME.size
        payload = data[begin : begin + length]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return
        offset = begin + length
        yield kind, payload, offset


def block_from(payload: bytes) -> SampleBlock:
    """The readings in the payload of a `SAMPLES` frame."""
    feed, width, count = _BLOCK.unpack_from(payload)
    times_s: array[float] = array("d")
    values: array[float] = array("d")
    split = _BLOCK.size + 8 * count
    times_s.frombytes(payload[_BLOCK.size : split])
    values.frombytes(payload[split:])
    return SampleBlock(feed, width, times_s, values)


def pack_frame(kind: bytes, payload: bytes) -> bytes:
    """A frame of any kind."""
    return FRAME.pack(len(payload), zlib.crc32(payload), kind) + payload
