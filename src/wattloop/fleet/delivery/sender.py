"""Delivery of journals: rounds that send new bytes, with back-off while the server is away."""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from wattloop.core.errors import ConfigError
from wattloop.core.files import FileLock
from wattloop.core.process import BackgroundThread
from wattloop.fleet.delivery.batch import MOST_PIECES, Piece, PieceResult, pack_batch
from wattloop.fleet.delivery.client import (
    DeliveryClient,
    DeliveryOptions,
    ServerRefuses,
    ServerUnavailable,
)
from wattloop.fleet.delivery.node_status import NodeStatus
from wattloop.fleet.delivery.outbox import DroppedJournals, Outbox, QueuedJournal, make_room

PIECE_B = 1024 * 1024
BATCH_B = 2 * 1024 * 1024
ASK_AGAIN_S, ASK_AGAIN_AT_MOST_S = 1.0, 60.0
_log = logging.getLogger("wattloop.delivery")


class DeliveryProgress(NamedTuple):
    """Result of a round.

    Attributes:
        stored: runs that came into the store; their journals are deleted.
        left: journals that still wait, growing ones among them.
        more: there is more to send at once.
    """

    sent_b: int = 0
    stored: int = 0
    refused: int = 0
    left: int = 0
    more: bool = False

    def plus(self, other: "DeliveryProgress") -> "DeliveryProgress":
        """Return the sum; what is left is that of `other`."""
        return DeliveryProgress(
            self.sent_b + other.sent_b,
            self.stored + other.stored,
            self.refused + other.refused,
            other.left,
            self.more or other.more,
        )


class Sender:
    """Sender of one folder to one server; its memory can be rebuilt from the server."""

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

    def round(self, status: Callable[[], NodeStatus | None] | None = None) -> DeliveryProgress:
        """Send new data, once through the folder or as much as fits a request.

        Raises:
            ServerUnavailable, ServerRefuses: nothing changed here.
        """
        waiting = self.outbox.waiting()
        by_run = {one.run_id: one for one in waiting}
        names = {one.path.name for one in waiting}
        self._offsets = {key: at for key, at in self._offsets.items() if key in names}
        self._paused = {key: pause for key, pause in self._paused.items() if key in names}
        pieces, more = self._pieces(waiting)
        sent = None if status is None else status()
        if not pieces and sent is None:
            return DeliveryProgress(left=len(waiting))
        body = pack_batch(time.time(), None if sent is None else sent.to_dict(), pieces)
        answers = _answers(self._link.post(self._path, body), pieces)
        total = DeliveryProgress(more=more)
        for piece, answer in zip(pieces, answers, strict=True):
            total = total.plus(self._apply(by_run[piece.run_id], piece, answer))
        return total._replace(left=len(waiting) - total.stored - total.refused)

    def close(self) -> None:
        self._link.close()

    def _pieces(self, waiting: list[QueuedJournal]) -> tuple[list[Piece], bool]:
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

    def _piece(self, one: QueuedJournal, most_b: int, now_s: float) -> Piece | None:
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

    def _close_if_left(self, one: QueuedJournal) -> None:
        """Close a journal that is sent completely, has no end and was not written for a while."""
        try:
            if one.idle_s() > self.options.final_after_s and not one.is_growing():
                one.close()
        except FileNotFoundError:
            pass

    def _apply(self, one: QueuedJournal, piece: Piece, answer: PieceResult) -> DeliveryProgress:
        name = one.path.name
        if answer.refused and one.is_growing():
            self._pause(name)  # its writer goes on; asked again, at its end at the latest
            return DeliveryProgress()
        if answer.refused:
            aside = self.outbox.set_aside(one, answer.refused)
            _log.error("%s: refused by the server: %s; kept as %s", name, answer.refused, aside)
            return DeliveryProgress(refused=1)
        if answer.ended:
            if one.is_growing():
                return DeliveryProgress()
            self.outbox.remove(one.run_id)
            return DeliveryProgress(sent_b=len(piece.data), stored=1)
        if answer.complete:
            self._pause(name)  # it is safe there, and comes into the store when that is back
            return DeliveryProgress(sent_b=len(piece.data))
        self._paused.pop(name, None)
        self._offsets[name] = answer.offset
        if answer.tail is not None and not one.has_tail(answer.offset, answer.tail):
            _log.warning("%s: the server has other bytes than this node; sent again", name)
            self._differing.add(name)
            self._offsets[name] = 0
        elif answer.offset:
            self._differing.discard(name)
        sent_b = min(max(0, answer.offset - piece.offset), len(piece.data))
        return DeliveryProgress(
            sent_b=sent_b, more=self._offsets[name] < one.size_b and bool(sent_b)
        )

    def _pause(self, name: str) -> None:
        _, pause_s = self._paused.get(name, (0.0, ASK_AGAIN_S / 2))
        pause_s = min(2 * pause_s, ASK_AGAIN_AT_MOST_S)
        self._paused[name] = (time.monotonic() + pause_s, pause_s)


def _answers(answer: Any, pieces: list[Piece]) -> list[PieceResult]:
    try:
        found = [
            PieceResult(
                str(a["run_id"]),
                int(a["offset"]),
                bool(a["ended"]),
                str(a.get("refused") or ""),
                bool(a.get("complete")),
                None if a.get("tail") is None else int(a["tail"]),
            )
            for a in answer["pieces"]
        ]
    except (LookupError, TypeError, ValueError):
        raise ServerUnavailable(
            "the server answers in a way that this version does not know"
        ) from None
    if [taken.run_id for taken in found] != [piece.run_id for piece in pieces]:
        raise ServerUnavailable("the server answers something else than was asked")
    return found


LONGEST_PAUSE_S = 60.0
BETWEEN_BATCHES_S = 0.02
ROOM_EVERY_S = 30.0
LOCK = ".delivery.lock"
Status = Callable[[], NodeStatus | None]


def deliver(
    options: DeliveryOptions,
    status: Status | None = None,
    *,
    once: bool = False,
    stop: threading.Event | None = None,
    report: Callable[[DeliveryProgress | str], None] | None = None,
) -> DeliveryProgress:
    """Send until `stop` is set; with `once`, until only growing journals wait.

    With `once`, end when all is sent, or raise when it cannot be. `status` is called before each
    request, `report` after each round or fault.

    Raises:
        ConfigError: another process sends this folder, or there is none.
        ServerUnavailable, ServerRefuses: with `once`, when the server cannot be had.
    """
    stop = threading.Event() if stop is None else stop
    report = (lambda _: None) if report is None else report
    total = DeliveryProgress()
    with _locked(options.folder):
        sender = Sender(options)
        try:
            pace = _Pace(options.every_s)
            roomy_s = 0.0
            while not stop.is_set():
                if time.monotonic() >= roomy_s:
                    dropped = make_room(sender.outbox, options.limit_b, options.final_after_s)
                    _report_dropped(dropped, options, report)
                    roomy_s = time.monotonic() + ROOM_EVERY_S
                try:
                    done = sender.round(status)
                except (ServerUnavailable, ServerRefuses, ConfigError, OSError) as error:
                    if once:
                        raise
                    if pace.failed(error):
                        _log.warning("%s", error)
                        report(str(error))
                else:
                    report(done)
                    pace.succeeded(done)
                    total = total.plus(done)._replace(more=False)
                    if once and _all_sent(sender, done):
                        return total
                stop.wait(pace.pause_s())
        finally:
            sender.close()
    return total


class Delivery(BackgroundThread):
    """The delivery loop as a thread of the agent; unsent data wait on disk when it ends.

    Args:
        status: returns the status of the node, before each request.

    Attributes:
        fault: why nothing is sent now; empty when it is.
        last: result of the last round.
    """

    def __init__(self, options: DeliveryOptions, status: Status | None = None) -> None:
        super().__init__("wattloop-delivery", patience_s=5.0)
        self._options = options
        self._status = status
        self.fault = ""
        self.last: DeliveryProgress | None = None

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                deliver(self._options, self._status, stop=self._stop, report=self._record)
            except Exception as error:  # noqa: BLE001 - measuring must not stop for it
                self.fault = f"{type(error).__name__}: {error}"
                _log.exception("delivery: failed; tried again in a minute")
                self._stop.wait(LONGEST_PAUSE_S)

    def _record(self, progress: DeliveryProgress | str) -> None:
        if isinstance(progress, str):
            self.fault = progress
        else:
            self.fault, self.last = "", progress


class _Pace:
    """Delay until the next attempt: short while data waits, doubling while no server answers."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._failures = 0
        self._retry_s = 0.0
        self._more = False
        self._message = ""
        self._next_s = time.monotonic()

    def succeeded(self, done: DeliveryProgress) -> None:
        if self._failures:
            _log.warning("delivery: continues after %d failures", self._failures)
        self._failures, self._retry_s, self._message = 0, 0.0, ""
        self._more = done.more

    def failed(self, error: Exception) -> bool:
        """Return True when an error is worth a log line: the first of its kind, then 1 in 100."""
        self._failures += 1
        self._retry_s = getattr(error, "retry_s", 0.0)
        if isinstance(error, ServerRefuses | ConfigError):
            self._retry_s = LONGEST_PAUSE_S  # a person must do something
        before, self._message = self._message, str(error)
        return before != self._message or self._failures % 100 == 0

    def pause_s(self) -> float:
        if self._failures:
            pause_s = min(self._every_s * 2.0 ** min(self._failures, 10), LONGEST_PAUSE_S)
            # two hundred nodes shall not come back in the same second
            return max(self._retry_s, pause_s) * random.uniform(0.5, 1.0)
        if self._more:
            self._next_s = time.monotonic()
            return BETWEEN_BATCHES_S
        now_s = time.monotonic()
        self._next_s = max(self._next_s + self._every_s, now_s)
        return self._next_s - now_s


def _all_sent(sender: Sender, done: DeliveryProgress) -> bool:
    return not done.more and all(one.is_growing() for one in sender.outbox.waiting())


def _report_dropped(
    dropped: DroppedJournals,
    options: DeliveryOptions,
    report: Callable[[DeliveryProgress | str], None],
) -> None:
    if dropped == DroppedJournals():
        return
    message = (
        f"{options.folder}: more than {options.limit_b} bytes wait for {options.url}: deleted "
        f"{dropped.refused} refused journals, the samples of {dropped.thinned} runs, "
        f"{dropped.lost} runs"
    )
    (_log.error if dropped.lost else _log.warning)("%s", message)
    report(message)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder: two senders would do everything twice."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder of journals")
    lock = FileLock(folder / LOCK, mode=0o644)
    with suppress(OSError):  # a file system without locks
        if not lock.acquire():
            raise ConfigError(f"{folder}: another process delivers it already")
    try:
        yield
    finally:
        lock.release()
