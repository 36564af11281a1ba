"""Answers that take seconds to make: kept, bounded, and made beside whoever asks."""

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from wattloop.core.errors import ConfigError

K = TypeVar("K", bound=Hashable)


V = TypeVar("V")


class BackgroundCache(Generic[K, V]):
    """Makes each answer once and keeps the last `most` of them, refusals included.

    Args:
        make: from a key to its answer; a `ConfigError` is an answer too. One call at a time.
        most: answers that are kept.
        most_waiting: keys that may wait for the worker; others are asked for again later.
    """

    def __init__(self, make: Callable[[K], V], *, most: int, most_waiting: int = 64) -> None:
        self._make = make
        self._most = most
        self._kept: OrderedDict[K, V | ConfigError] = OrderedDict()
        self._guard = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._waiting: queue.Queue[K] = queue.Queue(most_waiting)
        self._coming: dict[K, threading.Event] = {}
        self._worker: threading.Thread | None = None

    def __contains__(self, key: K) -> bool:
        with self._guard:
            return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V:
        """The answer, made now if it must be.

        Raises:
            ConfigError: that is the answer.
        """
        found = self._look(key)
        if found is None:
            with self._one_at_a_time:
                found = self._look(key)
                if found is None:
                    found = self._made(key)
        if isinstance(found, ConfigError):
            raise ConfigError(str(found))  # a new one: the kept one would grow by each traceback
        return found

    def soon(self, key: K, wait_s: float = 0.0) -> V | None:
        """The answer if it is there or comes within `wait_s`; None while the worker is at it.

        Raises:
            ConfigError: that is the answer.
        """
        if self._look(key) is None:
            event = self._requested(key)
            if event is None or not event.wait(wait_s):
                return None
        return self.get(key)

    def _made(self, key: K) -> V | ConfigError:
        found: V | ConfigError
        try:
            found = self._make(key)
        except ConfigError as error:
            found = error
        with self._guard:
            self._kept[key] = found
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return found

    def _look(self, key: K) -> V | ConfigError | None:
        with self._guard:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def _requested(self, key: K) -> threading.Event | None:
        """An event that comes when the answer is there; None when too many wait already."""
        with self._guard:
            if key in self._coming:
                return self._coming[key]
            try:
                self._waiting.put_nowait(key)
            except queue.Full:
                return None
            event = self._coming[key] = threading.Event()
            if self._worker is None:
                self._worker = threading.Thread(
                    target=self._work, name="wattloop-oracle", daemon=True
                )
                self._worker.start()
            return event

    def _work(self) -> None:
        while True:
            key = self._waiting.get()
            try:
                self.get(key)
            except ConfigError:
                pass  # kept; whoever asks next hears it
            except Exception as error:  # noqa: BLE001 - what one key breaks must not end the worker
                with self._guard:
                    self._kept[key] = ConfigError(f"cannot be predicted: {error}")
            with self._guard:
                self._coming.pop(key).set()
