"""Answers that change all the time and take a while: kept for as long as they are worth.

What was made in 5 ms is made again for everybody. What took 200 ms is shown for 4 s, and made
again behind the back of whoever asks next, who still gets the old one at once: so the more there
is to add up, or the busier the machine, the less often it is done, and nobody waits for it twice.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from wattloop.core.errors import WattloopError

__all__ = ["Kept"]

T = TypeVar("T")

QUICK_S = 0.02
TIMES = 20.0
LONGEST_S = 15.0
OLDEST_S = 60.0
MOST = 256

_log = logging.getLogger("wattloop.serve")


@dataclass(slots=True)
class _Answer:
    value: Any
    made_s: float
    until_s: float
    is_coming: bool = False


class Kept:
    """The last answers by key."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: OrderedDict[Hashable, _Answer] = OrderedDict()
        self._making: dict[Hashable, threading.Lock] = {}
        # one: renewing ten lists at once would make the eleventh reader wait
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="wattloop-renew")

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is kept under the key, else what `make` returns; two who ask at a time share it."""
        with self._guard:
            found = self._shown(key, make)
            if found is not None:
                return found.value  # type: ignore[no-any-return] # kept as it was made
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._guard:
                found = self._shown(key, make)
            return self._make(key, make) if found is None else found.value

    def _shown(self, key: Hashable, make: Callable[[], Any]) -> _Answer | None:
        found = self._known.get(key)
        if found is None or time.monotonic() - found.made_s > OLDEST_S:
            return None
        if found.until_s < time.monotonic() and not found.is_coming:
            found.is_coming = True
            self._worker.submit(self._renew, key, make)
        return found

    def _make(self, key: Hashable, make: Callable[[], T]) -> T:
        begun_s = time.monotonic()
        made = make()
        now_s = time.monotonic()
        took_s = now_s - begun_s
        with self._guard:
            self._making.pop(key, None)
            self._known.pop(key, None)
            if took_s > QUICK_S:
                until_s = now_s + min(TIMES * took_s, LONGEST_S)
                self._known[key] = _Answer(made, begun_s, until_s)
                while len(self._known) > MOST:
                    self._known.popitem(last=False)
        return made

    def _renew(self, key: Hashable, make: Callable[[], Any]) -> None:
        try:
            self._make(key, make)
        except WattloopError as error:
            with self._guard:
                self._known.pop(key, None)  # whoever asks next is told himself
            _log.warning("%s", error)
