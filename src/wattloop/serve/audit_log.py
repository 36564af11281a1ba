"""Log of refused requests: caller, request and reason; floods are counted, not written."""

import logging
import threading
import time

from wattloop.core.cache import LruCache
from wattloop.fleet.nodes import NodeTable
from wattloop.fleet.tokens import Caller

EVERY_S = 10.0
MOST_KINDS = 1_000
LONGEST = 200
_log = logging.getLogger("wattloop.refusals")


class Refusals:
    """Recorder of refusals; one line per kind and caller every ten seconds, with the count."""

    def __init__(self, book: NodeTable) -> None:
        self._book = book
        self._guard = threading.Lock()
        self._last: LruCache[tuple[str, str], tuple[float, int]] = LruCache(MOST_KINDS)
        self.count = 0
        """All of them since the server started."""

    def note(self, caller: Caller, address: str, what: str, why: str) -> None:
        what, why = _line(what), _line(why)
        if caller.node:
            self._book.record_refusal(caller.node, f"{what}: {why}")
        now_s = time.monotonic()
        with self._guard:
            self.count += 1
            key = (str(caller) + address, why[:40])
            last_s, unsaid = self._last.get(key) or (-EVERY_S, 0)
            is_due = now_s - last_s >= EVERY_S
            self._last.put(key, (now_s, 0) if is_due else (last_s, unsaid + 1))
        if is_due:
            more = f" ({unsaid} more like it before)" if unsaid else ""
            _log.warning("refused %s from %s: %s: %s%s", caller, address, what, why, more)


def _line(text: str) -> str:
    """Format text of callers as one line of a log."""
    return "".join(c if c.isprintable() else "?" for c in text)[:LONGEST]
