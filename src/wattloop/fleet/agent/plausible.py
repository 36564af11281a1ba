"""A meter that is not believed everything: readings that no device can give become gaps."""

from collections.abc import Sequence
from typing import ClassVar

from wattloop.core.clock import Clock
from wattloop.core.plausible import highest_power_w
from wattloop.core.records import Domain, DomainKind, Gap, Signal
from wattloop.core.results import Missing
from wattloop.meters.base import Meter, Reading

__all__ = ["PlausibleMeter", "highest_w"]

SLACK_S = 0.25
"""A reading may be stamped this late on a busy machine."""
BELIEVED_AFTER = 3
"""A counter that jumped and goes on from there was set anew; its jump is not counted."""


def highest_w(domain: Domain) -> float:
    """No plausible reading lies above this."""
    return domain.max_power_w or highest_power_w(domain.scope)


class PlausibleMeter(Meter):
    """Another meter, checked: counters neither jump nor are negative, nor is power.

    A counter that jumped is shown again from zero, which tracks understand as a new beginning.
    """

    name: ClassVar[str] = "plausible"

    def __init__(self, meter: Meter, clock: Clock) -> None:
        self.meter = meter
        self.name = meter.name  # type: ignore[misc]  # each wears the name of the one it checks
        self._clock = clock
        self._last: list[tuple[float, float] | None] = [None] * len(meter.domains)
        self._zero_j = [0.0] * len(meter.domains)
        self._refused = [0] * len(meter.domains)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """Those of the meter."""
        return self.meter.domains

    @property
    def refused(self) -> tuple[Missing, ...]:
        """Those of the meter."""
        return self.meter.refused

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Those of the meter."""
        return self.meter.signals

    def read_signals(self) -> Sequence[Reading]:
        """Those of the meter."""
        return self.meter.read_signals()

    def read(self) -> Sequence[Reading]:
        """One value per domain, or a gap."""
        values = list(self.meter.decoded(self.meter.sample()))
        now_s = self._clock.now_s()
        return [
            value if isinstance(value, Gap) else self._checked(i, domain, value, now_s)
            for i, (domain, value) in enumerate(zip(self.domains, values, strict=True))
        ]

    def close(self) -> None:
        """Close the meter."""
        self.meter.close()

    def _checked(self, i: int, domain: Domain, value: float, now_s: float) -> Reading:
        if value < 0:
            return Gap(f"{domain.name}: a reading below zero, which cannot be")
        most_w = highest_w(domain)
        if domain.kind is DomainKind.GAUGE:
            if value <= most_w:
                return value
            return Gap(f"{domain.name}: more than {most_w:g} W, which cannot be")
        last = self._last[i]
        if last is not None:
            most_j = most_w * (now_s - last[0] + domain.update_period_s + SLACK_S)
            if value - last[1] > most_j and not self._believed(i):
                return Gap(f"{domain.name}: a jump of more than {most_w:g} W, which cannot be")
            if value - last[1] > most_j:
                self._zero_j[i] = value
            elif value < last[1]:
                self._zero_j[i] = 0.0 if self._zero_j[i] > value else self._zero_j[i]
        self._refused[i] = 0
        self._last[i] = (now_s, value)
        return value - self._zero_j[i]

    def _believed(self, i: int) -> bool:
        self._refused[i] += 1
        return self._refused[i] >= BELIEVED_AFTER
