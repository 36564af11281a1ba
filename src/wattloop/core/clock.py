"""Clocks: the machine's own, and a virtual one for tests and simulations."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A source of time. `now_s` never goes back; `wall_s` may, when an administrator sets it."""

    def now_s(self) -> float:
        """Seconds on a monotonic time line shared by every process of this machine."""
        ...

    def wall_s(self) -> float:
        """Seconds since 1970-01-01 UTC, for people to read; never used to compute energy."""
        ...

    def suspended_s(self) -> float:
        """Seconds this machine has spent suspended since it booted."""
        ...

    def sleep(self, duration_s: float) -> None: ...


class RealClock:
    """The machine's own clocks."""

    now_s = staticmethod(time.monotonic)
    wall_s = staticmethod(time.time)
    sleep = staticmethod(time.sleep)

    @staticmethod
    def suspended_s() -> float:
        """CLOCK_BOOTTIME counts suspended time, CLOCK_MONOTONIC does not."""
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        if boottime is None:
            return 0.0
        return time.clock_gettime(boottime) - time.monotonic()


class VirtualClock:
    """Virtual time, which advances only on request or by `sleep`."""

    def __init__(self, start_s: float = 0.0, wall_start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._wall_offset_s = wall_start_s - start_s
        self._suspended_s = 0.0
        self._lock = threading.Lock()

    def now_s(self) -> float:
        """Current virtual time in seconds."""
        return self._now_s

    def wall_s(self) -> float:
        """Current virtual time of day in seconds since 1970."""
        return self._now_s + self._wall_offset_s

    def suspended_s(self) -> float:
        return self._suspended_s

    def sleep(self, duration_s: float) -> None:
        """Advance by `duration_s`; returns at once."""
        self.advance(duration_s)

    def advance(self, duration_s: float) -> None:
        with self._lock:
            self._now_s += max(0.0, duration_s)

    def suspend(self, duration_s: float) -> None:
        """Simulate a suspend: wall time passes, monotonic time does not."""
        with self._lock:
            self._suspended_s += duration_s
            self._wall_offset_s += duration_s

    def set_wall(self, wall_s: float) -> None:
        """Simulate an administrator who sets the clock."""
        with self._lock:
            self._wall_offset_s = wall_s - self._now_s
