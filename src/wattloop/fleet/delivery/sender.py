"""One round of delivery: send new bytes, delete journals that the server has stored."""

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

from wattloop.fleet.delivery.batch import MOST_PIECES, Piece, Taken, pack_batch
from wattloop.fleet.delivery.client import DeliveryClient, DeliveryOptions, ServerUnavailable
from wattloop.fleet.delivery.outbox import Outbox, Waiting
from wattloop.fleet.delivery.status import NodeStatus

PIECE_B = 1024 * 1024
BATCH_B = 2 * 1024 * 1024
ASK_AGAIN_S, ASK_AGAIN_AT_MOST_S = 1.0, 60.0

_log = logging.getLogger("wattloop.delivery")


class Progress(NamedTuple):
    """Result of a round.

    Attributes:
        sent_b: bytes that the server took.
        stored: runs that came into the store; their journals are deleted.
        refused: journals that were set aside.
        left: journals that still wait, growing ones among them.
        more: there is more to send at once.
    """

    sent_b: int = 0
    stored: int = 0
    refused: int = 0
    left: int = 0
    more: bool = False


class Sender:
    """Sender of one folder to one server; its memory can be rebuilt from the server.

    Args:
        options: from where to where.
        link: the connection; made from the options by default.
    """

    def __init__(self, options: DeliveryOptions, link: DeliveryClient | None = None) -> None:
        self.options = options
        self.outbox = Outbox(options.folder)
        self._link = DeliveryClient(options) if link is None else link
        self._path = f"/api/v1/nodes/{quote(options.node)}/delivery"
        # by file, not by run: a downsampled journal is sent from its beginning
        self._offsets: dict[str, int] = {}
        self._paused: dict[str, tuple[float, float]] = {}
        """Complete at the server but not in its store, or refused: when to ask again, the pause."""
        self._differing: set[str] = set()

    def round(self, status: Callable[[], NodeStatus | None] | None = None) -> Progress:
        """Send new data, once through the folder or as much as fits a request.

        Raises:
            ServerAway, ServerRefuses: nothing changed here.
        """
        waiting = self.outbox.waiting()
        by_run = {one.run_id: one for one in waiting}
        names = {one.path.name for one in waiting}
        self._offsets = {key: at for key, at in self._offsets.items() if key in names}
        self._paused = {key: pause for key, pause in self._paused.items() if key in names}
        pieces, more = self._pieces(waiting)
        said = None if status is None else status()
        if not pieces and said is None:
            return Progress(left=len(waiting))
        body = pack_batch(time.time(), None if said is None else said.to_dict(), pieces)
        answers = _answers(self._link.post(self._path, body), pieces)
        sent_b = stored = refused = 0
        for piece, answer in zip(pieces, answers, strict=True):
            outcome = self._settle(by_run[piece.run_id], piece, answer)
            sent_b += outcome.sent_b
            stored += outcome.stored
            refused += outcome.refused
            more = more or outcome.more
        left = len(waiting) - stored - refused
        return Progress(sent_b, stored, refused, left, more)

    def close(self) -> None:
        self._link.close()

    def _pieces(self, waiting: list[Waiting]) -> tuple[list[Piece], bool]:
        """Return the pieces of this round, and whether more are left."""
        pieces: list[Piece] = []
        room_b, now_s = BATCH_B, time.monotonic()
        for one in waiting:
            if len(pieces) == MOST_PIECES or room_b <= 0:
                return pieces, True
            piece = self._piece(one, min(PIECE_B, room_b), now_s)
            if piece is not None:
                pieces.append(piece)
                room_b -= len(piece.data)
        return pieces, False

    def _piece(self, one: Waiting, most_b: int, now_s: float) -> Piece | None:
        name = one.path.name
        if name in self._paused:
            return Piece(one.run_id, 0) if now_s >= self._paused[name][0] else None
        offset = self._offsets.get(name)
        if offset is None and not one.is_thinned:
            return Piece(one.run_id, 0)
        offset = offset or 0  # of a thinned one, whatever the server has is of what it was before
        data = one.frames(offset, most_b)
        final = one.is_closed and len(data) < most_b
        if not data and not final:
            self._close_if_left(one)
            return None
        restart = offset == 0 and (one.is_thinned or name in self._differing)
        return Piece(one.run_id, offset, data, final, restart)

    def _close_if_left(self, one: Waiting) -> None:
        """Close a journal that is sent completely, has no end and was not written for a while."""
        try:
            if one.idle_s() > self.options.final_after_s and not one.is_growing():
                one.close()
        except FileNotFoundError:
            pass

    def _settle(self, one: Waiting, piece: Piece, answer: Taken) -> Progress:
        name = one.path.name
        if answer.refused and one.is_growing():
            self._pause(name)  # its writer goes on; asked again, at its end at the latest
            return Progress()
        if answer.refused:
            aside = self.outbox.set_aside(one, answer.refused)
            _log.error("%s: refused by the server: %s; kept as %s", name, answer.refused, aside)
            return Progress(refused=1)
        if answer.ended:
            if one.is_growing():
                return Progress()
            self.outbox.remove(one.run_id)
            return Progress(sent_b=len(piece.data), stored=1)
        if answer.complete:
            self._pause(name)  # it is safe there, and comes into the store when that is back
            return Progress(sent_b=len(piece.data))
        self._paused.pop(name, None)
        self._offsets[name] = answer.offset
        if answer.tail is not None and not one.has_tail(answer.offset, answer.tail):
            _log.warning("%s: the server has other bytes than this node; sent again", name)
            self._differing.add(name)
            self._offsets[name] = 0
        elif answer.offset:
            self._differing.discard(name)
        sent_b = min(max(0, answer.offset - piece.offset), len(piece.data))
        return Progress(sent_b=sent_b, more=self._offsets[name] < one.size_b and bool(sent_b))

    def _pause(self, name: str) -> None:
        _, pause_s = self._paused.get(name, (0.0, ASK_AGAIN_S / 2))
        pause_s = min(2 * pause_s, ASK_AGAIN_AT_MOST_S)
        self._paused[name] = (time.monotonic() + pause_s, pause_s)


def _answers(said: Any, pieces: list[Piece]) -> list[Taken]:
    """Return the server's answers, one for each piece."""
    try:
        found = [
            Taken(
                str(a["run_id"]),
                int(a["offset"]),
                bool(a["ended"]),
                str(a.get("refused") or ""),
                bool(a.get("complete")),
                None if a.get("tail") is None else int(a["tail"]),
            )
            for a in said["pieces"]
        ]
    except (LookupError, TypeError, ValueError):
        raise ServerUnavailable(
            "the server answers in a way that this version does not know"
        ) from None
    if [taken.run_id for taken in found] != [piece.run_id for piece in pieces]:
        raise ServerUnavailable("the server answers something else than was asked")
    return found
