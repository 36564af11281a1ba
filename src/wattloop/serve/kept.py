"""Answers that change all the time and take a while: kept for as long as they are worth.

What was made in 5 ms is made again for everybody; what took 200 ms is shown for 4 s. So the more
there is to add up, or the busier the machine, the less often it is done.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

__all__ = ["Kept"]

T = TypeVar("T")

QUICK_S = 0.02
TIMES = 20.0
LONGEST_S = 15.0
MOST = 256


class Kept:
    """The last answers by key, each for twenty times as long as it took to make."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._making: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is kept under the key, else what `make` returns; two who ask at a time share it."""
        with self._guard:
            found = self._fresh(key)
            if found is not None:
                return found[1]  # type: ignore[no-any-return] # kept as it was made
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._guard:
                found = self._fresh(key)
            if found is not None:
                return found[1]  # type: ignore[no-any-return] # as above
            begun_s = time.monotonic()
            made = make()
            took_s = time.monotonic() - begun_s
            with self._guard:
                self._making.pop(key, None)
                if took_s > QUICK_S:
                    until_s = time.monotonic() + min(TIMES * took_s, LONGEST_S)
                    self._known[key] = (until_s, made)
                    while len(self._known) > MOST:
                        self._known.popitem(last=False)
            return made

    def _fresh(self, key: Hashable) -> tuple[float, Any] | None:
        found = self._known.get(key)
        if found is not None and found[0] < time.monotonic():
            del self._known[key]
            return None
        return found
