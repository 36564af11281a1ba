"""A device's clock mapped to the host's, from bounds alone.

An event cannot have happened on the device before the host asked for it, and it has happened when
the host first sees that it has. Each event so bounds the offset between the two clocks; bounds
are carried forward, widened by what the clocks may have drifted apart, and cut by the next ones.
Nobody has to wait for the device.
"""

__all__ = ["ClockMap"]

DRIFT_LIMIT = 50e-6
"""Crystals agree to 50 ppm; 4.5 ppm were seen between an H200 and its host."""
DRIFT_FLOOR = 0.5e-6
"""However well the rate was known, it changes a little with temperature."""
TIGHT_S = 100e-6
"""Bounds narrower than this tell the rate of the drift."""
BASE_LINE_S = 5.0
"""Two tight bounds at least this far apart give a rate."""


class ClockMap:
    """Host time of a device time, with a half-width."""

    def __init__(self) -> None:
        self._device_s = 0.0
        self._low_s = 0.0
        self._high_s = 0.0
        self._rate = 0.0
        self._rate_error = DRIFT_LIMIT
        self._base: tuple[float, float, float] | None = None
        self._started = False

    @property
    def rate(self) -> float:
        """Seconds that the host's clock gains on the device's, per second."""
        return self._rate

    def observe(self, device_s: float, after_s: float, by_s: float) -> tuple[float, float]:
        """An event at `device_s` happened within host times `[after_s, by_s]`.

        Returns:
            Host time of the event, and its half-width.
        """
        low_s, high_s = after_s - device_s, by_s - device_s
        if self._started:
            elapsed_s = device_s - self._device_s
            spread_s = abs(elapsed_s) * self._rate_error
            carried_low_s = self._low_s + elapsed_s * self._rate - spread_s
            carried_high_s = self._high_s + elapsed_s * self._rate + spread_s
            if carried_low_s <= high_s and low_s <= carried_high_s:
                low_s, high_s = max(low_s, carried_low_s), min(high_s, carried_high_s)
            else:
                self._forget()  # a clock was disturbed (suspend, a stopped process): start anew
        self._started = True
        self._device_s, self._low_s, self._high_s = device_s, low_s, high_s
        self._learn_rate(device_s, low_s, high_s)
        return device_s + (low_s + high_s) / 2, (high_s - low_s) / 2

    def _forget(self) -> None:
        self._rate, self._rate_error, self._base = 0.0, DRIFT_LIMIT, None

    def _learn_rate(self, device_s: float, low_s: float, high_s: float) -> None:
        if high_s - low_s > TIGHT_S:
            return
        middle_s, half_s = (low_s + high_s) / 2, (high_s - low_s) / 2
        if self._base is None:
            self._base = (device_s, middle_s, half_s)
            return
        base_s, base_middle_s, base_half_s = self._base
        length_s = device_s - base_s
        if length_s < BASE_LINE_S:
            return
        error = (half_s + base_half_s) / length_s + DRIFT_FLOOR
        if error < self._rate_error:
            self._rate = (middle_s - base_middle_s) / length_s
            self._rate_error = error
