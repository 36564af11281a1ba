"""Answers that take long to make, kept until what they were made from changes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from threading import Lock
from typing import Any, TypeVar

from wattloop.serve.worker import too_busy

__all__ = ["Cache"]

T = TypeVar("T")

MOST_COMING = 64
"""Answers that may be in the making, or made and not asked for again."""


class Cache:
    """The last answers by key; asked for twice at a time, one is made and both get it.

    A key names all that the answer depends on: a search and how many of its trials have ended.

    Args:
        size: how many are kept.
    """

    def __init__(self, size: int = 64) -> None:
        self._size = size
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._making: dict[Hashable, Lock] = {}
        self._guard = Lock()
        # few: a reader of another page must not wait for ten analyses at once
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="wattloop-analysis")
        self._coming: dict[Hashable, Future[Any]] = {}

    def soon(self, key: Hashable, make: Callable[[], T], wait_s: float) -> T | None:
        """The same made in the background; None when it takes longer than `wait_s`: ask again."""
        with self._guard:
            if key in self._kept:
                return self._kept[key]  # type: ignore[no-any-return] # kept as it was made
            coming = self._coming.get(key)
            if coming is None:
                self._make_room()
                coming = self._coming[key] = self._workers.submit(self.get, key, make)
        try:
            found: T = coming.result(wait_s)
        except NotYet:
            return None
        finally:
            if coming.done():
                with self._guard:
                    self._coming.pop(key, None)
        return found

    def _make_room(self) -> None:
        """Drop an answer that was not asked for again; refuse where all are still being made."""
        if len(self._coming) < MOST_COMING:
            return
        done = next((key for key, coming in self._coming.items() if coming.done()), None)
        if done is None:
            raise too_busy()
        del self._coming[done]

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is kept under the key, else what `make` returns; what it raises is not kept."""
        with self._guard:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]  # type: ignore[no-any-return] # kept as it was made
            making = self._making.setdefault(key, Lock())
        with making:
            with self._guard:
                if key in self._kept:
                    return self._kept[key]  # type: ignore[no-any-return] # kept as it was made
            try:
                made = make()
            finally:
                with self._guard:
                    self._making.pop(key, None)
            with self._guard:
                self._kept[key] = made
                while len(self._kept) > self._size:
                    self._kept.popitem(last=False)
        return made
