"""Whether a counter that a restarted agent finds is the one of before."""

import math
from collections.abc import Mapping
from typing import Any

from wattloop.core.records import Domain
from wattloop.fleet.agent.plausible import highest_w

__all__ = ["goes_on"]


def goes_on(domain: Domain, kept: Mapping[str, Any], raw_j: float, read_s: float) -> bool:
    """Whether a counter's reading is that of before, gone on."""
    if math.isnan(raw_j):
        return False
    gap_s = read_s - kept["read_s"]
    most_j = highest_w(domain) * (gap_s + 1.0)
    gained_j = raw_j - kept["raw_j"]
    if domain.wrap_j is not None:
        gained_j %= domain.wrap_j  # how often it wrapped is the energy curve's to judge
    return bool(gap_s >= 0 and 0 <= gained_j <= most_j)
