"""What an energy curve says about the time between two instants, and how long it remembers."""

from __future__ import annotations

import math
from array import array
from typing import NamedTuple

from wattloop.core.plausible import highest_power_w
from wattloop.core.records import Domain, Scope

__all__ = ["Span", "kept_points", "plausible_power_w"]

BRIDGE_S = 2.0
"""Gauges are interpolated over gaps up to this long; longer ones are left out and said so. Nor is
a counter that fails taken to have gone on for longer than this."""
HIDDEN_SHARE = 0.3
"""Power may vary by this share between two points without either showing it."""
FEW_POINTS = 4
"""A window that spans no more points than this says little more than the power around it."""
KEEP_S = 900.0
"""Points older than this are thinned out, so that a run of weeks fits into memory."""
THIN_S = 10.0
"""How far apart old points are: nothing of the energy between two of them is lost."""
THIN_AT_ONCE = 4_096
"""So many points are thinned out together, to do it seldom."""
PLAUSIBLE_W = highest_power_w(Scope.GPU)
"""No package, memory or card draws more, where the sensor states nothing."""


class Span(NamedTuple):
    """Energy of one domain between two instants.

    `sigma_j` is one standard deviation; `covered` the share of the time with readings; `moved`
    is false for a counter that showed no change at all.
    """

    energy_j: float
    sigma_j: float
    covered: float
    moved: bool = True


def kept_points(times_s: array[float], first: int, last: int) -> list[int]:
    """Which of the points from `first` up to `last` stay, given that those before are thin."""
    kept: list[int] = []
    kept_s = times_s[first - 1] if first else -math.inf
    for i in range(first, last):
        if times_s[i] - kept_s >= THIN_S:
            kept.append(i)
            kept_s = times_s[i]
    return kept


def plausible_power_w(domain: Domain) -> float:
    """The highest power that a domain can draw; a counter wraps no faster than at this power."""
    return domain.max_power_w or PLAUSIBLE_W
