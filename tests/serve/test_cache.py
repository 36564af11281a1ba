"""Promises of the cache: made once, faults are not kept, nobody waits longer than asked."""

import threading
import time

import pytest

from wattloop.serve.cache import KeyedCache


def test_an_answer_is_made_once_however_many_ask() -> None:
    """Also when they ask at the same time."""
    cache, made = KeyedCache(), []

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


def test_a_fault_is_not_kept() -> None:
    """The next one may have more luck."""
    cache = KeyedCache()
    with pytest.raises(ZeroDivisionError):
        cache.get("key", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cache.soon("key", lambda: 1 // 0, 5.0)
    assert cache.get("key", lambda: 2) == 2


def test_what_takes_long_comes_later() -> None:
    """None at first, the answer when it is made; the oldest makes room."""
    cache, ready = KeyedCache(size=2), threading.Event()

    def make() -> str:
        ready.wait(10)
        return "made"

    assert cache.soon("slow", make, 0.01) is None
    ready.set()
    assert cache.soon("slow", make, 10.0) == "made"
    for key in "ab":
        cache.get(key, lambda: "other")
    assert cache.get("slow", lambda: "again") == "again"
