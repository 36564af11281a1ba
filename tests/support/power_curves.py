"""Power curves whose energy is known in closed form.

Time starts at 0 s. Curves are plain data, so they can be sent to another process.
"""

import math
from dataclasses import dataclass
from typing import Protocol


class PowerCurve(Protocol):
    """Interface of a curve: watts at a moment, and joules since 0 s."""

    def power_w(self, t_s: float) -> float:
        """Return the power at `t_s`."""
        ...

    def energy_j(self, t_s: float) -> float:
        """Return the integral of the power from 0 to `t_s`."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same power at all times."""

    level_w: float

    def power_w(self, t_s: float) -> float:
        """Return the power at `t_s`."""
        return self.level_w

    def energy_j(self, t_s: float) -> float:
        """Return the integral of the power from 0 to `t_s`."""
        return self.level_w * t_s


@dataclass(frozen=True)
class SquareWave:
    """`high_w` for the first `duty` of every period, then `low_w`."""

    low_w: float
    high_w: float
    period_s: float
    duty: float = 0.5

    def power_w(self, t_s: float) -> float:
        """Return the power at `t_s`."""
        return self.high_w if t_s % self.period_s < self.duty * self.period_s else self.low_w

    def energy_j(self, t_s: float) -> float:
        """Return the integral of the power from 0 to `t_s`."""
        periods, rest_s = divmod(t_s, self.period_s)
        high_s = self.duty * self.period_s
        lifted_s = periods * high_s + min(rest_s, high_s)
        return self.low_w * t_s + (self.high_w - self.low_w) * lifted_s


@dataclass(frozen=True)
class Spikes:
    """`base_w` with a spike of `spike_w` and `width_s` at the end of every period."""

    base_w: float
    spike_w: float
    period_s: float
    width_s: float

    def power_w(self, t_s: float) -> float:
        """Return the power at `t_s`."""
        return self.spike_w if t_s % self.period_s >= self.period_s - self.width_s else self.base_w

    def energy_j(self, t_s: float) -> float:
        """Return the integral of the power from 0 to `t_s`."""
        periods, rest_s = divmod(t_s, self.period_s)
        spiking_s = periods * self.width_s + max(0.0, rest_s - (self.period_s - self.width_s))
        return self.base_w * t_s + (self.spike_w - self.base_w) * spiking_s


@dataclass(frozen=True)
class Ramp:
    """A saw-tooth: from `low_w` up to `high_w` in every period."""

    low_w: float
    high_w: float
    period_s: float

    def power_w(self, t_s: float) -> float:
        """Return the power at `t_s`."""
        return self.low_w + (self.high_w - self.low_w) * (t_s % self.period_s) / self.period_s

    def energy_j(self, t_s: float) -> float:
        """Return the integral of the power from 0 to `t_s`."""
        periods, rest_s = divmod(t_s, self.period_s)
        rise_w = self.high_w - self.low_w
        return self.low_w * t_s + rise_w * (
            periods * self.period_s / 2 + rest_s**2 / (2 * self.period_s)
        )


@dataclass(frozen=True)
class SineWave:
    """`mean_w` with a sine of `amplitude_w` on it."""

    mean_w: float
    amplitude_w: float
    period_s: float

    def power_w(self, t_s: float) -> float:
        """Return the power at `t_s`."""
        return self.mean_w + self.amplitude_w * math.sin(2 * math.pi * t_s / self.period_s)

    def energy_j(self, t_s: float) -> float:
        """Return the integral of the power from 0 to `t_s`."""
        omega = 2 * math.pi / self.period_s
        return self.mean_w * t_s + self.amplitude_w * (1 - math.cos(omega * t_s)) / omega


@dataclass(frozen=True)
class Steps:
    """Levels that follow one another, each `(duration_s, power_w)`; the last one stays."""

    levels: tuple[tuple[float, float], ...]

    def power_w(self, t_s: float) -> float:
        """Return the power at `t_s`."""
        for duration_s, level_w in self.levels:
            if t_s < duration_s:
                return level_w
            t_s -= duration_s
        return self.levels[-1][1]

    def energy_j(self, t_s: float) -> float:
        """Return the integral of the power from 0 to `t_s`."""
        total_j = 0.0
        for duration_s, level_w in self.levels:
            if t_s <= duration_s:
                return total_j + level_w * t_s
            total_j += level_w * duration_s
            t_s -= duration_s
        return total_j + self.levels[-1][1] * t_s


@dataclass(frozen=True)
class Sum:
    """Several curves at once, such as a package made of its parts."""

    parts: tuple[PowerCurve, ...]

    def power_w(self, t_s: float) -> float:
        """Return the power at `t_s`."""
        return sum(part.power_w(t_s) for part in self.parts)

    def energy_j(self, t_s: float) -> float:
        """Return the integral of the power from 0 to `t_s`."""
        return sum(part.energy_j(t_s) for part in self.parts)
