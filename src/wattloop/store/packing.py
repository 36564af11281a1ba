"""An array of doubles as a few bytes per value, without loss.

Sensors count in decimal units (microjoules, milliwatts, percent), so their doubles are small
integers in disguise: `pack` finds the decimal scale that gives every double back exactly, takes
first or second differences (a counter under steady load, a clock), and compresses byte planes.
Values that have no such scale are compressed as they are. NaN marks a gap and is kept as such.

Sizes are measured by `benchmarks/store_size.py`; `docs/store.md` has the alternatives tried.
"""

from __future__ import annotations  # array[float] cannot be evaluated before Python 3.12

import math
import struct
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import sub

from wattloop.core.errors import StoreError

__all__ = ["pack", "unpack"]

_HEAD = struct.Struct("<BBBII")  # codec, order of differences, decimals, values, gaps
_PLAIN, _PLANES, _DIVIDE, _MULTIPLY = range(4)
_SCALES = (0, 1, 2, 3, 4, 6, 9)
_LIMIT = 2**53  # larger integers are not exact in a double
_LEVEL = 6


def pack(values: Sequence[float]) -> bytes:
    """`values` in few bytes; `unpack` gives exactly the same doubles back."""
    filled, gaps = _without_gaps(values)
    found = _as_integers(filled)
    if found is None:
        codec, body = _smallest_raw(filled)
        order = decimals = 0
    else:
        codec, decimals, integers = found
        order, body = _differences(integers)
    head = _HEAD.pack(codec, order, decimals, len(filled), len(gaps) // 2)
    return head + gaps.tobytes() + zlib.compress(body, _LEVEL)


def unpack(data: bytes) -> array[float]:
    """Inverse of `pack`."""
    try:
        codec, order, decimals, count, gap_count = _HEAD.unpack_from(data)
        gaps: array[int] = array("I")
        split = _HEAD.size + 2 * gap_count * gaps.itemsize
        gaps.frombytes(data[_HEAD.size : split])
        body = zlib.decompress(data[split:])
    except (struct.error, zlib.error, ValueError) as error:
        raise StoreError(
            f"a chunk of samples is damaged ({error}); the run's totals are kept apart from it "
            "and still valid, export them with: wattloop runs export RUN --what runs"
        ) from error
    values = _decoded(codec, order, decimals, count, body)
    for begin, length in zip(gaps[::2], gaps[1::2], strict=True):
        values[begin : begin + length] = array("d", [float("nan")]) * length
    return values


def _decoded(codec: int, order: int, decimals: int, count: int, body: bytes) -> array[float]:
    values: array[float] = array("d")
    if codec == _PLAIN:
        values.frombytes(body)
        return values
    if codec == _PLANES:
        values.frombytes(_from_planes(body))
        return values
    coded: array[int] = array("q")
    coded.frombytes(_from_planes(body))
    integers: Iterable[int] = [(z >> 1) ^ -(z & 1) for z in coded]
    for _ in range(order):
        integers = accumulate(integers)
    if codec == _MULTIPLY:
        step = 10.0**-decimals
        return array("d", [i * step for i in integers])
    scale = 10.0**decimals
    return array("d", [i / scale for i in integers])


def _without_gaps(values: Sequence[float]) -> tuple[array[float], array[int]]:
    """Values with NaN replaced by the last good one, and (begin, length) of each stretch."""
    filled = array("d", values)
    gaps: array[int] = array("I")
    if not math.isnan(sum(filled)):
        return filled, gaps
    last = next((v for v in filled if not math.isnan(v)), 0.0)
    previous = -2
    for i, value in enumerate(filled):
        if not math.isnan(value):
            last = value
            continue
        filled[i] = last
        if i == previous + 1:
            gaps[-1] += 1
        else:
            gaps.extend((i, 1))
        previous = i
    return filled, gaps


def _as_integers(values: array[float]) -> tuple[int, int, list[int]] | None:
    """(codec, decimals, integers) that give every double back exactly, if there are any."""
    for decimals in _SCALES:
        scale, step = 10.0**decimals, 10.0**-decimals
        for codec in (_DIVIDE, _MULTIPLY):
            for part in (values[:64], values):  # most wrong scales fail within a few values
                try:
                    integers = [round(v * scale) for v in part]
                except (OverflowError, ValueError):  # infinities
                    return None
                back = (
                    [i / scale for i in integers]
                    if codec == _DIVIDE
                    else [i * step for i in integers]
                )
                if array("d", back).tobytes() != part.tobytes():
                    break
            else:
                if any(
                    abs(i) >= _LIMIT for i in (max(integers, default=0), min(integers, default=0))
                ):
                    return None
                return codec, decimals, integers
    return None


def _differences(integers: list[int]) -> tuple[int, bytes]:
    """(order, byte planes) of the differences of the order that makes them smallest."""
    best_order, best = 0, integers
    current = integers
    for order in (1, 2):
        current = [*current[:1], *map(sub, current[1:], current)]
        # the head of a series of differences holds the absolute value: it does not count
        if sum(map(abs, current[2:])) < sum(map(abs, best[2:])):
            best_order, best = order, current
    # zigzag: small negative numbers become small positive ones, so high bytes stay zero
    return best_order, _planes(array("q", [(d << 1) ^ (d >> 63) for d in best]).tobytes())


def _smallest_raw(values: array[float]) -> tuple[int, bytes]:
    data = values.tobytes()
    planes = _planes(data)
    if len(zlib.compress(planes, 1)) < len(zlib.compress(data, 1)):
        return _PLANES, planes
    return _PLAIN, data


def _planes(data: bytes) -> bytes:
    """All first bytes, then all second bytes, ...: the high ones are nearly constant."""
    return b"".join(data[i::8] for i in range(8))


def _from_planes(planes: bytes) -> bytes:
    count = len(planes) // 8
    data = bytearray(len(planes))
    for i in range(8):
        data[i::8] = planes[i * count : (i + 1) * count]
    return bytes(data)
