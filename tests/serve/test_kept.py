"""Promises of answers that are kept: quick ones are always new, slow ones are waited for once."""

import threading
import time

import pytest

from wattloop.core.errors import StoreError
from wattloop.serve import cache
from wattloop.serve.cache import StaleWhileRevalidateCache


def slow(value: object) -> object:
    time.sleep(0.03)
    return value


def test_what_is_made_quickly_is_made_for_everybody() -> None:
    """A small store shows a new run at once."""
    found = StaleWhileRevalidateCache()
    assert (found.get("k", lambda: 1), found.get("k", lambda: 2)) == (1, 2)


def test_what_takes_long_is_shown_again_and_renewed_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next reader gets the old one at once; one after him the new one."""
    found = StaleWhileRevalidateCache()
    assert found.get("k", lambda: slow(1)) == 1
    assert found.get("k", lambda: slow(2)) == 1
    found._known["k"].until_s = 0.0
    assert found.get("k", lambda: slow(3)) == 1
    found._worker.submit(lambda: None).result()
    assert found.get("k", lambda: slow(4)) == 3
    monkeypatch.setattr(cache, "OLDEST_S", 0.0)
    assert found.get("k", lambda: slow(5)) == 5


def test_two_who_ask_at_a_time_share_one_answer() -> None:
    """Not made twice."""
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


def test_a_fault_is_not_kept() -> None:
    """Neither when asked nor behind: the next one tries again."""

    def fails() -> object:
        raise StoreError("away")

    found = StaleWhileRevalidateCache()
    with pytest.raises(StoreError):
        found.get("k", fails)
    assert found.get("k", lambda: slow(1)) == 1
    found._known["k"].until_s = 0.0
    assert found.get("k", fails) == 1
    found._worker.submit(lambda: None).result()
    with pytest.raises(StoreError):
        found.get("k", fails)
