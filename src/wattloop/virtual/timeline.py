"""What virtual cards did and when, so that energy between any two moments is exact.

A card's life is a list of segments. Within one, power moves exponentially from `start_w` to
`target_w`, as a card's regulators do, and temperature follows power; both have exact solutions.
Processes share segments through a file, see `file_timeline`.
"""

import math
import threading
from bisect import bisect_right
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

__all__ = ["MemoryTimeline", "Segment", "Timeline", "segment_at"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A card's state from `start_s` on.

    `energy_j` is what it had used by then; `counter_zero_j` what it had used when its counter was
    last reset; `start_heat_w` the power that the heat sink felt (temperature above the room's,
    divided by the card's K/W). Clocks are the highest allowed; `*_locked` is 1 when somebody
    locked them. `fault` is one of `faults.Fault`. The owner is the process whose work it does.
    """

    start_s: float
    energy_j: float
    start_w: float
    target_w: float
    ramp_s: float
    clock_mhz: float
    compute_utilisation: float
    memory_utilisation: float
    compute: float
    memory: float
    busy: float
    limit_w: float
    max_clock_mhz: float
    memory_clock_mhz: float
    memory_used_b: float
    thermal_s: float
    start_heat_w: float
    overlap: float = 1.0
    clock_locked: float = 0.0
    memory_clock_locked: float = 0.0
    fault: float = 0.0
    fault_probability: float = 0.0
    counter_zero_j: float = 0.0
    owner_pid: float = 0.0
    owner_began: float = 0.0

    def power_w(self, at_s: float) -> float:
        """Watts at a moment in this segment."""
        decay = math.exp(-max(0.0, at_s - self.start_s) / self.ramp_s)
        return self.target_w + (self.start_w - self.target_w) * decay

    def energy_until_j(self, at_s: float) -> float:
        """Joules used up to a moment in this segment, from the beginning of time."""
        # E = P_target dt + (P_start - P_target) tau (1 - exp(-dt / tau))
        dt = at_s - self.start_s
        if dt <= 0:
            return self.energy_j + self.start_w * dt
        excess_j = (self.start_w - self.target_w) * self.ramp_s * -math.expm1(-dt / self.ramp_s)
        return self.energy_j + self.target_w * dt + excess_j

    def heat_w(self, at_s: float) -> float:
        """Power as the heat sink feels it at a moment: a low-pass filter of `thermal_s`."""
        # tau H' + H = P(t), P as in `power_w`: H = P_target + a exp(-dt/ramp) + b exp(-dt/tau)
        dt = max(0.0, at_s - self.start_s)
        a = (self.start_w - self.target_w) / (1 - self.thermal_s / self.ramp_s)
        b = self.start_heat_w - self.target_w - a
        return self.target_w + a * math.exp(-dt / self.ramp_s) + b * math.exp(-dt / self.thermal_s)

    def followed(self, at_s: float, **changes: float) -> "Segment":
        """The segment that begins at `at_s` where this one has arrived."""
        return replace(
            self,
            start_s=at_s,
            energy_j=self.energy_until_j(at_s),
            start_w=self.power_w(at_s),
            start_heat_w=self.heat_w(at_s),
            **changes,
        )


class Timeline(Protocol):
    """Segments per card."""

    def segments(self, gpu: int) -> list[Segment]:
        """What is known of a card, oldest first; empty for one that was never touched."""
        ...

    def append(self, gpu: int, segment: Segment) -> None:
        """Add a segment; call it inside `changing`."""
        ...

    def changing(self) -> AbstractContextManager[object]:
        """A context in which nobody else adds segments."""
        ...


def segment_at(segments: list[Segment], at_s: float) -> Segment:
    """The segment that holds at a moment; the first one for times before it."""
    index = bisect_right(segments, at_s, key=lambda segment: segment.start_s)
    return segments[max(0, index - 1)]


class MemoryTimeline:
    """For one process; keeps the last segments of each card."""

    KEPT = 10_000

    def __init__(self) -> None:
        self._segments: dict[int, list[Segment]] = {}
        self._lock = threading.RLock()

    def segments(self, gpu: int) -> list[Segment]:
        """What is known of a card, oldest first."""
        return self._segments.get(gpu, [])

    def append(self, gpu: int, segment: Segment) -> None:
        """Add a segment."""
        kept = self._segments.setdefault(gpu, [])
        if len(kept) >= 2 * self.KEPT:
            # A new list: a reader may be walking the old one.
            kept = self._segments[gpu] = kept[-self.KEPT :]
        kept.append(segment)

    def changing(self) -> AbstractContextManager[object]:
        """A context in which nobody else adds segments."""
        return self._lock
