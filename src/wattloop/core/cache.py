"""Caches: the last values by key, values computed once, stale-while-revalidate, and files."""

import hashlib
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from wattloop.core.errors import WattloopError
from wattloop.core.files import atomic_write, is_trusted

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
_log = logging.getLogger("wattloop.cache")


class LruCache(Generic[K, T]):
    """The last `size` values by key; thread-safe.

    Args:
        size: the least recently used value beyond it is dropped.
        max_age_s: age from which a value is not returned any more.
        now_s: clock.
    """

    def __init__(
        self,
        size: int,
        max_age_s: float = math.inf,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._size = size
        self._max_age_s = max_age_s
        self._now_s = now_s
        self._guard = threading.Lock()
        self._values: OrderedDict[K, tuple[float, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def get(self, key: K) -> T | None:
        """Return the value; None when it is unknown or too old."""
        with self._guard:
            made_s, value = self._values.get(key, (-math.inf, None))
            if value is None or self._now_s() - made_s > self._max_age_s:
                return None
            self._values.move_to_end(key)
            return value

    def put(self, key: K, value: T) -> T:
        with self._guard:
            self._values[key] = (self._now_s(), value)
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return value

    def drop(self, key: K) -> None:
        with self._guard:
            self._values.pop(key, None)


class ComputedCache:
    """Last answers by key; concurrent requests for one key share one computation.

    A key names all that the answer depends on: a search and how many of its trials have ended.
    Errors are not cached.

    Args:
        size: how many answers are kept.
        threads: computations in the background at a time.
        most_pending: answers that may be computed in the background, or wait to be asked for again.
        refuse: makes the error of a request beyond them.
    """

    def __init__(
        self,
        size: int = 64,
        *,
        threads: int = 2,
        most_pending: int = 64,
        refuse: Callable[[], Exception] = RuntimeError,
    ) -> None:
        self._values: LruCache[Hashable, tuple[Any]] = LruCache(size)
        self._most_pending = most_pending
        self._refuse = refuse
        self._guard = threading.Lock()
        self._computing: dict[Hashable, threading.Lock] = {}
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="wattloop-cache")
        self._pending: dict[Hashable, Future[Any]] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the cached answer, else the result of `make`."""
        with self._guard:
            found = self._values.get(key)
            if found is not None:
                return found[0]  # type: ignore[no-any-return] # cached as it was made
            computing = self._computing.setdefault(key, threading.Lock())
        with computing:
            found = self._values.get(key)
            if found is not None:
                return found[0]  # type: ignore[no-any-return] # cached as it was made
            try:
                return self._values.put(key, (make(),))[0]  # type: ignore[no-any-return] # as above
            finally:
                with self._guard:
                    self._computing.pop(key, None)

    def soon(self, key: Hashable, make: Callable[[], T], wait_s: float) -> T | None:
        """Compute in the background; None when it takes longer than `wait_s`, to be asked again."""
        with self._guard:
            found = self._values.get(key)
            if found is not None:
                return found[0]  # type: ignore[no-any-return] # cached as it was made
            pending = self._pending.get(key)
            if pending is None:
                self._make_room()
                pending = self._pending[key] = self._workers.submit(self.get, key, make)
        try:
            return pending.result(wait_s)  # type: ignore[no-any-return] # the result of `make`
        except NotYet:
            return None
        finally:
            if pending.done():
                with self._guard:
                    self._pending.pop(key, None)

    def _make_room(self) -> None:
        if len(self._pending) < self._most_pending:
            return
        done = next((key for key, pending in self._pending.items() if pending.done()), None)
        if done is None:
            raise self._refuse()
        del self._pending[done]


@dataclass(slots=True)
class _Answer:
    value: Any
    fresh_until_s: float
    is_renewing: bool = False


class StaleWhileRevalidateCache:
    """Answers that are served for a multiple of the time that they take to compute.

    A quick answer is computed for every request. One that takes 200 ms is served for 4 s; the next
    request then gets the old answer and starts a new computation in the background. The slower the
    answer or the busier the machine, the less often it is computed.

    Args:
        quick_s: an answer that takes less is not cached.
        times: how many times as long an answer is served as it takes to compute.
        longest_s: limit of that time.
        oldest_s: an older answer is never served.
        size: how many answers are kept.
    """

    def __init__(
        self,
        *,
        quick_s: float = 0.02,
        times: float = 20.0,
        longest_s: float = 15.0,
        oldest_s: float = 60.0,
        size: int = 256,
    ) -> None:
        self._quick_s, self._times, self._longest_s = quick_s, times, longest_s
        self._answers: LruCache[Hashable, _Answer] = LruCache(size, oldest_s)
        self._guard = threading.Lock()
        self._computing: dict[Hashable, threading.Lock] = {}
        # one: renewing ten lists at once would make the eleventh reader wait
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="wattloop-renew")

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the cached answer, else the result of `make`, shared by concurrent requests."""
        found = self._served(key, make)
        if found is None:
            with self._guard:
                computing = self._computing.setdefault(key, threading.Lock())
            with computing:
                found = self._served(key, make)
                if found is None:
                    return self._compute(key, make)
        return found.value  # type: ignore[no-any-return] # cached as it was made

    def _served(self, key: Hashable, make: Callable[[], Any]) -> _Answer | None:
        found = self._answers.get(key)
        if found is None:
            return None
        with self._guard:
            is_due = found.fresh_until_s < time.monotonic() and not found.is_renewing
            found.is_renewing |= is_due
        if is_due:
            self._worker.submit(self._renew, key, make)
        return found

    def _compute(self, key: Hashable, make: Callable[[], T]) -> T:
        begin_s = time.monotonic()
        try:
            value = make()
        finally:
            with self._guard:
                self._computing.pop(key, None)
        end_s = time.monotonic()
        took_s = end_s - begin_s
        if took_s > self._quick_s:
            fresh_until_s = end_s + min(self._times * took_s, self._longest_s)
            self._answers.put(key, _Answer(value, fresh_until_s))
        else:
            self._answers.drop(key)
        return value

    def _renew(self, key: Hashable, make: Callable[[], Any]) -> None:
        try:
            self._compute(key, make)
        except WattloopError as error:
            self._answers.drop(key)  # the next request computes it and gets the error
            _log.warning("%s", error)


class FileCache(Generic[T]):
    """Values in files of a folder, named by a digest of their key; they survive the process.

    A broken file is made again. One that another user may have written is not read. A folder that
    cannot be written is ignored.

    Args:
        folder: created for this user only.
        suffix: how the names of the files end.
        most: number of files; the least recently used are removed.
        load: reads a value from the bytes of a file.
        dump: inverse of `load`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        suffix: str,
        most: int,
        load: Callable[[bytes], T],
        dump: Callable[[T], bytes],
    ) -> None:
        self.folder = folder
        self._suffix = suffix
        self._most = most
        self._load = load
        self._dump = dump

    def get(self, parts: Sequence[str], make: Callable[[], T]) -> T:
        """Return the value whose key is `parts`, else write the result of `make`."""
        digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
        path = self.folder / f"{digest[:32]}{self._suffix}"
        value = self._read(path)
        if value is None:
            value = make()
            with suppress(OSError):
                self._write(path, value)
        return value

    def _read(self, path: Path) -> T | None:
        try:
            if not path.is_file() or not is_trusted(path):
                return None
            value = self._load(path.read_bytes())
        except (OSError, EOFError, ValueError, KeyError, TypeError, WattloopError):
            return None
        with suppress(OSError):  # a file of root is read without updating its time
            path.touch()
        return value

    def _write(self, path: Path, value: T) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write(path, self._dump(value))
        files = sorted(self.folder.glob(f"*{self._suffix}"), key=lambda each: each.stat().st_mtime)
        for old in files[: -self._most]:
            old.unlink(missing_ok=True)
