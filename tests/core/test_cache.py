"""Promises of caches: computed once, errors are not cached, a caller waits only as long as it
asks.
"""

import threading
import time
from pathlib import Path

import pytest

from wattloop.core.cache import ComputedCache, FileCache, LruCache, StaleWhileRevalidateCache
from wattloop.core.errors import StoreError


def test_an_answer_is_computed_once_for_many_callers() -> None:
    """Concurrent requests share one computation."""
    cache, made = ComputedCache(), []

    def make() -> int:
        time.sleep(0.05)
        made.append(1)
        return 7

    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.get("key", make))) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, len(made)) == ([7] * 5, 1)


def test_an_error_is_not_cached() -> None:
    """The next request may succeed."""
    cache = ComputedCache()
    with pytest.raises(ZeroDivisionError):
        cache.get("key", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cache.soon("key", lambda: 1 // 0, 5.0)
    assert cache.get("key", lambda: 2) == 2


def test_a_slow_answer_comes_later() -> None:
    """None at first, then the answer once it is computed; the oldest entry makes room."""
    cache, ready = ComputedCache(size=2), threading.Event()

    def make() -> str:
        ready.wait(10)
        return "made"

    assert cache.soon("slow", make, 0.01) is None
    ready.set()
    assert cache.soon("slow", make, 10.0) == "made"
    for key in "ab":
        cache.get(key, lambda: "other")
    assert cache.get("slow", lambda: "again") == "again"


def slow(value: object) -> object:
    time.sleep(0.03)
    return value


def test_a_quick_answer_is_computed_for_each_request() -> None:
    """A small store shows a new run at once."""
    found = StaleWhileRevalidateCache(quick_s=600.0)
    assert (found.get("k", lambda: 1), found.get("k", lambda: 2)) == (1, 2)


def test_a_slow_answer_is_reused_and_renewed_in_the_background() -> None:
    """The next reader gets the old answer at once, and a later one the new answer."""
    found = StaleWhileRevalidateCache()
    assert found.get("k", lambda: slow(1)) == 1
    assert found.get("k", lambda: slow(2)) == 1
    stale = found._answers.get("k")
    assert stale is not None
    stale.fresh_until_s = 0.0
    assert found.get("k", lambda: slow(3)) == 1
    found._worker.submit(lambda: None).result()
    assert found.get("k", lambda: slow(4)) == 3
    found._answers._max_age_s = 0.0
    assert found.get("k", lambda: slow(5)) == 5


def test_concurrent_callers_share_one_answer() -> None:
    """The answer is not computed twice."""
    found, made = StaleWhileRevalidateCache(), []

    def make() -> int:
        made.append(1)
        time.sleep(0.1)
        return len(made)

    threads = [threading.Thread(target=found.get, args=("k", make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]


def test_an_error_is_neither_cached_nor_renewed() -> None:
    """An error is cached neither on request nor in the background: the next request tries again."""

    def fails() -> object:
        raise StoreError("away")

    found = StaleWhileRevalidateCache()
    with pytest.raises(StoreError):
        found.get("k", fails)
    assert found.get("k", lambda: slow(1)) == 1
    stale = found._answers.get("k")
    assert stale is not None
    stale.fresh_until_s = 0.0
    assert found.get("k", fails) == 1
    found._worker.submit(lambda: None).result()
    with pytest.raises(StoreError):
        found.get("k", fails)


def test_the_least_recently_used_value_makes_room_and_old_values_are_not_returned() -> None:
    """Age is measured by an injected clock."""
    now_s = [0.0]
    cache: LruCache[str, int] = LruCache(2, max_age_s=10.0, now_s=lambda: now_s[0])
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert ("a" in cache, "b" in cache, len(cache)) == (True, False, 2)
    now_s[0] = 11.0
    assert cache.get("a") is None
    cache.put("a", 4)
    cache.drop("c")
    assert (cache.get("a"), cache.get("c")) == (4, None)


def test_files_survive_the_process_and_broken_ones_are_made_again(tmp_path: Path) -> None:
    """The oldest files make room, and a folder that cannot be written costs time only."""

    def files(folder: Path) -> FileCache[int]:
        return FileCache(folder, suffix=".n", most=3, load=int, dump=lambda n: b"%d" % n)

    folder = tmp_path / "cache"
    assert files(folder).get(["a", "b"], lambda: 7) == 7
    assert files(folder).get(["a", "b"], lambda: 8) == 7
    (path,) = folder.iterdir()
    path.write_bytes(b"broken")
    assert files(folder).get(["a", "b"], lambda: 9) == 9
    for number in range(5):
        files(folder).get([str(number)], lambda: 1)
    assert len(list(folder.iterdir())) == 3
    assert files(path / "x").get(["a"], lambda: 5) == 5
