"""Promises of a thread that lives as long as its block."""

import threading

import pytest

from wattloop.core.process import BackgroundThread


class Counting(BackgroundThread):
    """A loop that counts its rounds."""

    def __init__(self) -> None:
        super().__init__("counting")
        self.looks = 0
        self.has_looked = threading.Event()

    def _work(self) -> None:
        while not self._stop.wait(0.001):
            self.looks += 1
            self.has_looked.set()


class Deaf(BackgroundThread):
    """A loop that ignores the request to stop."""

    def __init__(self, release: threading.Event) -> None:
        super().__init__("deaf", patience_s=0.01)
        self._release = release

    def _work(self) -> None:
        self._release.wait(60.0)


def test_work_goes_on_while_the_block_runs_and_ends_with_it() -> None:
    """The thread also ends when the block fails."""
    counting = Counting()
    with pytest.raises(KeyError), counting:
        assert counting.has_looked.wait(60.0)
        raise KeyError("broken")
    looks = counting.looks
    assert not counting._thread.is_alive()
    assert counting.looks == looks > 0


def test_work_that_does_not_end_is_left_behind() -> None:
    """A server that does not answer must not keep a command from ending."""
    release = threading.Event()
    with Deaf(release) as deaf:
        pass
    assert deaf._thread.is_alive()
    release.set()
    deaf._thread.join()
