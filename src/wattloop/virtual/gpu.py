"""A virtual card: its limits, what it works on, its faults, and exactly what it used."""

import os
import tempfile
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path

from wattloop.core.clock import Clock, RealClock
from wattloop.core.errors import ConfigError
from wattloop.hardware.host import Host
from wattloop.virtual.cards import card_named
from wattloop.virtual.physics import IDLE, Activity, CardModel, Work
from wattloop.virtual.timeline import FileTimeline, MemoryTimeline, Segment, Timeline, segment_at

__all__ = ["Fault", "VirtualGpu", "shared_gpus"]

STATE_VARIABLE = "WATTLOOP_VIRTUAL_STATE"
MODEL_VARIABLE = "WATTLOOP_VIRTUAL_MODEL"
SLICE_S = 0.1
"""Work looks at the card's limits this often, so that a cap set meanwhile takes effect."""
CONTEXT_B = 0.5e9
"""What a CUDA context occupies."""


class Fault(IntEnum):
    """Ways in which a card can fail."""

    NONE = 0
    LOST = 1
    NO_PERMISSION = 2
    UNSUPPORTED = 3
    UNKNOWN_ERROR = 4


def shared_gpus(
    count: int,
    clock: Clock | None = None,
    environment: Mapping[str, str] | None = None,
    host: Host | None = None,
) -> list["VirtualGpu"]:
    """The cards that all processes of this user see, as they would real ones.

    They meet in the file named by `WATTLOOP_VIRTUAL_STATE`, or one per user and boot in the
    directory for temporary files. `WATTLOOP_VIRTUAL_MODEL` is `h200` (default), `a100`, `v100`.
    """
    env = os.environ if environment is None else environment
    boot = (host or Host()).boot_id[:8]
    default = Path(tempfile.gettempdir()) / f"wattloop-virtual-{os.getuid()}-{boot}.state"
    timeline = FileTimeline(Path(env.get(STATE_VARIABLE) or default))
    model = card_named(env.get(MODEL_VARIABLE) or "h200")
    return [VirtualGpu(index, model, timeline, clock) for index in range(count)]


class VirtualGpu:
    """One card.

    Args:
        index: its number, which is also its stream of sensor noise.
        model: its physics.
        timeline: where its life is kept; private to this object unless given.
        clock: time on which it lives.
    """

    def __init__(
        self,
        index: int = 0,
        model: CardModel | None = None,
        timeline: Timeline | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.index = index
        self.model = model or card_named("h200")
        self._timeline = timeline or MemoryTimeline()
        self._clock = clock or RealClock()
        self._first = self._untouched()

    def run(self, work: Work) -> float:
        """Do `work`, waiting on the clock as long as the card takes; returns the seconds."""
        begin_s = self._clock.now_s()
        shortest_s = self.model.shortest_s(work)
        left = 1.0 if shortest_s > 0 else 0.0
        self._occupy(self.model.activity(work))
        try:
            while left > 1e-12:
                now = self.now()
                slowdown = self.model.settle(
                    self.model.activity(work), now.limit_w, now.max_clock_mhz
                ).slowdown
                whole_s = shortest_s * slowdown
                slice_s = min(left * whole_s, max(SLICE_S, whole_s / 50))
                self._clock.sleep(slice_s)
                left -= slice_s / whole_s
        finally:
            self.load(0.0)
        return self._clock.now_s() - begin_s

    def load(self, busy: float, compute: float = 1.0, memory: float = 0.4) -> None:
        """Keep the card busy for a share of the time, until told otherwise; 0 is idle.

        `compute` and `memory` say how the work splits, as in `Activity`.
        """
        for name, value in (("load", busy), ("compute", compute), ("memory", memory)):
            if not 0 <= value <= 1:
                raise ConfigError(f"virtual GPU: {name} is {value:g}; use a number from 0 to 1")
        self._occupy(Activity(compute, memory, busy) if busy > 0 else IDLE)

    def set_power_cap(self, limit_w: float) -> None:
        """Limit power; only values the card allows."""
        low_w, high_w = self.model.min_limit_w, self.model.max_limit_w
        if not low_w <= limit_w <= high_w:
            raise ConfigError(
                f"{self.model.name} {self.index}: a power cap of {limit_w:g} W is outside "
                f"{low_w:g} to {high_w:g} W"
            )
        self._change(limit_w=limit_w)

    def set_clock(self, max_clock_mhz: float) -> None:
        """Limit the SM clock; only values the card allows."""
        low, high = self.model.min_clock_mhz, self.model.max_clock_mhz
        if not low <= max_clock_mhz <= high:
            raise ConfigError(
                f"{self.model.name} {self.index}: a clock of {max_clock_mhz:g} MHz is outside "
                f"{low:g} to {high:g} MHz"
            )
        self._change(max_clock_mhz=max_clock_mhz)

    def set_memory_used(self, used_b: float) -> None:
        """Pretend that a program holds this many bytes."""
        self._change(memory_used_b=min(max(0.0, used_b), self.model.memory_b))

    def inject(self, fault: Fault, probability: float = 1.0) -> None:
        """Fail from now on; `Fault.NONE` heals. `probability` is for unknown errors."""
        self._change(fault=float(fault), fault_probability=probability)

    def reset_counter(self) -> None:
        """Set the energy counter to zero, as reloading a driver does."""
        self._change(counter_zero_j=self.energy_j(self._clock.now_s()))

    def now(self) -> Segment:
        """The card's present state."""
        segments = self._timeline.segments(self.index)
        return segments[-1] if segments else self._first

    def at(self, at_s: float) -> Segment:
        """The card's state at a moment."""
        segments = self._timeline.segments(self.index)
        return segment_at(segments, at_s) if segments else self._first

    def power_w(self, at_s: float) -> float:
        """True power at a moment of the clock."""
        return self.at(at_s).power_w(at_s)

    def energy_j(self, at_s: float) -> float:
        """True energy used up to a moment of the clock."""
        return self.at(at_s).energy_until_j(at_s)

    def true_energy_j(self, begin_s: float, end_s: float) -> float:
        """True energy used between two moments of the clock."""
        return self.energy_j(end_s) - self.energy_j(begin_s)

    def _occupy(self, activity: Activity) -> None:
        self._change(compute=activity.compute, memory=activity.memory, busy=activity.busy)

    def _change(self, **changes: float) -> None:
        with self._timeline.changing():
            segment = self.now().followed(self._clock.now_s(), **changes)
            activity = Activity(segment.compute, segment.memory, segment.busy)
            point = self.model.settle(activity, segment.limit_w, segment.max_clock_mhz)
            settled = segment.followed(
                segment.start_s,
                target_w=point.power_w,
                clock_mhz=point.clock_mhz,
                compute_utilisation=point.compute_utilisation,
                memory_utilisation=point.memory_utilisation,
            )
            self._timeline.append(self.index, settled)

    def _untouched(self) -> Segment:
        """Idle since the beginning of the clock, the same for every process that looks."""
        model = self.model
        return Segment(
            start_s=0.0,
            energy_j=0.0,
            start_w=model.idle_w,
            target_w=model.idle_w,
            ramp_s=model.ramp_s,
            clock_mhz=model.min_clock_mhz,
            compute_utilisation=0.0,
            memory_utilisation=0.0,
            compute=0.0,
            memory=0.0,
            busy=0.0,
            limit_w=model.default_limit_w,
            max_clock_mhz=model.max_clock_mhz,
            memory_used_b=CONTEXT_B,
        )
