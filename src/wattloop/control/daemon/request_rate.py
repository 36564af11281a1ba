"""A bound on how often something happens: in the long run, with bursts."""

import threading
import time


class Rate:
    """So many requests per second in the long run, and a burst now and then. Thread-safe."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at_s = time.monotonic()
        self._busy = threading.Lock()

    def passed(self) -> bool:
        """Whether one more is within it."""
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
        """Whether nothing was used lately."""
        return self._left + (time.monotonic() - self._at_s) * self._per_s >= self._burst
