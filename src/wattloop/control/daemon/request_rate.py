"""Rate limiter: a long-term rate with bursts."""

import threading
import time


class Rate:
    """A token bucket: a number of requests per second in the long run, and bursts. Thread-safe."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at_s = time.monotonic()
        self._busy = threading.Lock()

    def allow(self) -> bool:
        """Return True if one more request is within the rate."""
        with self._busy:
            now_s = time.monotonic()
            self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
            self._at_s = now_s
            if self._left < 1:
                return False
            self._left -= 1
            return True

    @property
    def full(self) -> bool:
        return self._left + (time.monotonic() - self._at_s) * self._per_s >= self._burst
