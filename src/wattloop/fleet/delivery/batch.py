"""The request of a delivery: a node's status and pieces of its journals.

A line of JSON and then the bytes of all pieces, one after the other. Many journals grow at once
on a node; a request each would cost the server more than the bytes do.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError

LARGEST_BATCH_B = 4 * 1024 * 1024
MOST_PIECES = 256


class Piece(NamedTuple):
    """The next bytes of a run's journal.

    Attributes:
        offset: their place in the journal.
        final: the last piece: the run ended, or its writer crashed.
        restart: drop the bytes before: the journal was downsampled.

    Without bytes and not final it only asks how far the server is.
    """

    run_id: str
    offset: int
    data: bytes = b""
    final: bool = False
    restart: bool = False

    @property
    def asks(self) -> bool:
        return not self.data and not self.final


class PieceResult(NamedTuple):
    """The server's answer to a piece.

    Attributes:
        offset: place of the next piece.
        ended: the run is in the store.
        refused: why it will never be taken; empty when it was.
        complete: all of it is there, and waits for the store.
        tail: checksum of the bytes before `offset`, where it was asked for: a machine that lost
            its power may have less than it sent, and other bytes in their place.
    """

    run_id: str
    offset: int
    ended: bool = False
    refused: str = ""
    complete: bool = False
    tail: int | None = None


def pack_batch(wall_s: float, status: dict[str, Any] | None, pieces: Sequence[Piece]) -> bytes:
    """Return the body of a request, with the sender's clock."""
    head = {
        "wall_s": wall_s,
        "status": status,
        "pieces": [[p.run_id, p.offset, len(p.data), p.final, p.restart] for p in pieces],
    }
    line = json.dumps(head, separators=(",", ":")).encode()
    return b"".join((line, b"\n", *(p.data for p in pieces)))


def unpack_batch(body: bytes) -> tuple[float | None, Any, list[Piece]]:
    """Unpack a body made by `pack_batch`; the sender is not trusted.

    Raises:
        ConfigError: the body is malformed.
    """
    line, _, rest = body.partition(b"\n")
    try:
        head = json.loads(line)
        wall_s = parse_clock(head["wall_s"])
        status, rows = head.get("status"), head["pieces"]
        shapes = [
            (str(run_id), int(offset), int(length), final is True, restart is True)
            for run_id, offset, length, final, restart in rows
        ]
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise ConfigError("a delivery begins with a line of JSON: wall_s, status, pieces") from None
    if len(shapes) > MOST_PIECES:
        raise ConfigError(f"a delivery has at most {MOST_PIECES} pieces, not {len(shapes)}")
    if any(offset < 0 or length < 0 for _, offset, length, _, _ in shapes):
        raise ConfigError("offsets and lengths are not negative")
    if sum(length for _, _, length, _, _ in shapes) != len(rest):
        raise ConfigError("the lengths of the pieces do not add up to what came")
    pieces, begin = [], 0
    for run_id, offset, length, final, restart in shapes:
        pieces.append(Piece(run_id, offset, rest[begin : begin + length], final, restart))
        begin += length
    return wall_s, status, pieces


def parse_clock(value: Any) -> float | None:
    """Return a sender's wall-clock time; None without one."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise ConfigError("wall_s is a time of day in seconds since 1970")
    return float(value)
