"""When a slow sensor updates.

Some sensors, such as a GPU's, change only every 100 ms. Whoever knows the instants at which they
change knows how old each reading is, and can bound a window to a millisecond or two instead of a
whole period, without reading more often.
"""

__all__ = ["TickClock"]

RELATIVE_DRIFT = 0.01
"""How far a declared period may be off, as a fraction; shrinks as ticks are added."""
JITTER_S = 0.001
"""Sensors keep their own beat to about a millisecond."""
QUIET_SHARE = 0.35
"""Where in a period to read: far from both ticks."""
MAX_ERROR_SHARE = 0.25
"""Beyond this share of a period the phase is considered lost."""


class TickClock:
    """Phase and period of a sensor's updates, learned from the instants at which it changed."""

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self.error_s = 0.0
        self._first_s: float | None = None
        self._last_s: float | None = None
        self._drift = RELATIVE_DRIFT

    def saw_change(self, after_s: float, by_s: float) -> None:
        """The sensor changed somewhere in `(after_s, by_s]`."""
        tick_s = (after_s + by_s) / 2
        error_s = (by_s - after_s) / 2
        if self._last_s is not None and self._first_s is not None:
            periods = round((tick_s - self._last_s) / self.period_s)
            if periods >= 1:
                found_s = (tick_s - self._last_s) / periods
                if abs(found_s - self.period_s) < MAX_ERROR_SHARE * self.period_s:
                    self._refine(tick_s, error_s)
        if self._first_s is None:
            self._first_s = tick_s
        self._last_s = tick_s
        self.error_s = error_s + JITTER_S

    def age(self, time_s: float) -> tuple[float | None, float]:
        """Seconds since the last update before `time_s`, and how sure that is; None if unknown."""
        phase_s, blur_s = self._phase(time_s)
        if phase_s is None or min(phase_s, self.period_s - phase_s) <= blur_s:
            return None, 0.0  # unknown, or so close to a tick that it is not sure which was seen
        return phase_s, blur_s

    def quiet_time_s(self, time_s: float) -> float:
        """The first instant from `time_s` on that is safely between two ticks."""
        phase_s, _ = self._phase(time_s)
        if phase_s is None:
            return time_s
        wait_s = (QUIET_SHARE * self.period_s - phase_s) % self.period_s
        return time_s + (wait_s if wait_s < self.period_s / 2 else 0.0)

    def _phase(self, time_s: float) -> tuple[float | None, float]:
        """Where in a period `time_s` lies, and how sure that is; None once the beat is lost."""
        if self._last_s is None:
            return None, 0.0
        distance_s = time_s - self._last_s
        blur_s = self.error_s + abs(distance_s) * self._drift
        if blur_s > MAX_ERROR_SHARE * self.period_s:
            return None, 0.0
        return distance_s % self.period_s, blur_s

    def _refine(self, tick_s: float, error_s: float) -> None:
        """The longer the base line, the better the period is known."""
        assert self._first_s is not None
        base_s = tick_s - self._first_s
        periods = round(base_s / self.period_s)
        if periods < 1:
            return
        # Only trust the long base line while it cannot have slipped by half a period.
        if base_s * self._drift < self.period_s / 2:
            drift = max(1e-5, 2 * (error_s + JITTER_S) / base_s)
            # Two ticks in a row say less about the period than its maker does.
            if drift < self._drift:
                self.period_s = base_s / periods
                self._drift = drift
        else:
            self._first_s = tick_s
            self._drift = RELATIVE_DRIFT
