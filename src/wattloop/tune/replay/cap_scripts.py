"""Searches for a cap inside a training that is replayed: which caps are tried, for how long, and
what is found.

They depend on the curve and on the noise of the readings only, and a search takes a tenth of a
second of computing. So each curve has a few of them, drawn once, that all trainings share.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattloop.characterize.cap_finder import CapFinder
from wattloop.characterize.cap_pilot import PilotRules
from wattloop.characterize.cap_table import MeasuredCurve
from wattloop.tune.progress import CapFound
from wattloop.tune.segment import CapSearch

__all__ = ["ERROR", "READING_S", "CapScript", "CapScripts"]

READING_S = 1.0
"""Length of the stretch of training that one reading of the meter tells of."""
ERROR = 0.02
"""Windows are extended until energy is known this well."""
POOL = 6
"""Draws of noise per curve."""
RULES = PilotRules()


@dataclass(frozen=True, slots=True)
class CapScript:
    """One search: (cap, seconds) one after the other, and the outcome."""

    stretches: tuple[tuple[float, float], ...]
    found: CapFound


class CapScripts:
    """The searches of all curves.

    Args:
        noise: relative standard deviation of a reading of energy.
    """

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise
        self._made: dict[tuple[object, ...], CapScript] = {}

    @property
    def readings(self) -> int:
        """Of a window that is long enough."""
        least = math.ceil(RULES.least_s / READING_S)
        return max(least, math.ceil((self.noise / ERROR) ** 2))

    def draw(self, curve: MeasuredCurve, search: CapSearch, draw: np.random.Generator) -> CapScript:
        """One of the searches of this curve."""
        number = int(draw.integers(POOL)) if self.noise else 0
        key = (curve, search, number)
        if key not in self._made:
            self._made[key] = self._search(curve, search, number)
        return self._made[key]

    def _search(self, curve: MeasuredCurve, search: CapSearch, number: int) -> CapScript:
        caps = _allowed(curve.caps_w, search.caps_w)
        if len(caps) < 2:
            cap_w = caps[0] if caps else None
            return CapScript((), CapFound(cap_w=cap_w, reason="there is no other cap"))
        draw = np.random.default_rng([number, *(int(1000 * t) for t in curve.time_s)])
        error = self.noise / math.sqrt(self.readings)
        finder = CapFinder(caps, search.metric, search.k, noise=max(error, 1e-3))
        stretches: list[tuple[float, float]] = []
        window_s = RULES.settle_s + self.readings * READING_S
        while (cap_w := finder.ask()) is not None:
            if search.longest_s is not None and window_s * (len(stretches) + 1) > search.longest_s:
                break
            at = curve.caps_w.index(cap_w)
            power_w = curve.power_w[at] * math.exp(error * draw.standard_normal())
            finder.tell(cap_w, curve.time_s[at], curve.time_s[at] * power_w)
            stretches.append((cap_w, window_s))
        if not stretches:
            return CapScript((), CapFound(cap_w=None, reason="there was no time to try any"))
        choice = finder.best()
        found = CapFound(
            cap_w=choice.cap_w,
            energy_ratio=1 - choice.energy_gain_pct.value / 100,
            time_ratio=1 + choice.time_loss_pct.value / 100,
            probes=tuple((p.cap_w, p.time_s, p.energy_j) for p in finder.probes),
            uncertainty=error,
        )
        return CapScript(tuple(stretches), found)


def _allowed(measured: Sequence[float], wanted: Sequence[float]) -> tuple[float, ...]:
    return tuple(cap_w for cap_w in measured if not wanted or cap_w in wanted)
