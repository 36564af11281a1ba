"""Find the best cap while a training runs, keep it, and search again when the work changes."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean, stdev
from typing import NamedTuple

from wattloop.cap.finder import USUAL, CapChoice, CapFinder
from wattloop.core.errors import MeterUnavailable
from wattloop.core.units import format_duration, short_energy

# One cap's share of a training: what a unit of progress takes, from steps as they happen.
#
# Steps come at any time, also in bursts, because a program queues work on a GPU and waits for it
# only now and then. Evaluation, checkpoints and whatever else disturbs shows as a gap between two
# of them that is far longer for its progress than usual, and is left out with its energy.

GAP = 3.0
"""A step whose units take this many times as long as usual is not an ordinary step."""
LEAST_GAP_S = 0.5
"""Shorter gaps are ordinary: a program that runs ahead of its GPU waits for it now and then."""
BURST_S = 0.25
"""Steps are taken together until they are this long, to tell their usual pace."""
BINS = 16
SHORTEST_S = 0.5
"""Shorter intervals between two disturbances say little about power; longer ones are used."""


class ProgressStep(NamedTuple):
    """A step that has ended, with units above 0; without any it is an interruption."""

    at_s: float
    units: float | None = 1.0


class SliceCost(NamedTuple):
    """Time and energy of a unit of progress; `noise` is the relative standard error of both."""

    time_s: float
    energy_j: float
    noise: float

    @property
    def power_w(self) -> float:
        return self.energy_j / self.time_s

    def limit(self, other: "SliceCost", least: float) -> float:
        """Return the tolerated log difference of equal work: `least`, or the noise."""
        return max(least, 4 * math.hypot(self.noise, other.noise))


Energy = Callable[[float, float], tuple[float, float] | None]
"""(begin, end) -> joules and relative uncertainty of all devices; None when it is not known."""


@dataclass(slots=True)
class CapSlice:
    """Steps under one cap, the first of which only marks the beginning."""

    steps: list[ProgressStep] = field(default_factory=list)

    def undisturbed(self) -> list[Sequence[ProgressStep]]:
        usual_s = self._usual_s()
        found: list[list[ProgressStep]] = [[]]
        for step in self.steps:
            before = found[-1][-1] if found[-1] else None
            if step.units is None:
                found.append([])
                continue
            longest_s = max(GAP * usual_s * step.units, LEAST_GAP_S)
            if before is not None and step.at_s - before.at_s > longest_s:
                found.append([])
            found[-1].append(step)
        return [part for part in found if len(part) > 1]

    def _usual_s(self) -> float:
        """Time of a unit: half of all units were in steps, or bursts of them, that were slower."""
        parts: list[list[ProgressStep]] = [[]]
        for step in self.steps:
            parts.append([]) if step.units is None else parts[-1].append(step)
        bins = sorted(
            (length_s / units, units) for part in parts for length_s, units in _bins(part, BURST_S)
        )
        half = sum(units for _, units in bins) / 2
        for per_unit_s, units in bins:
            half -= units
            if half <= 0:
                return per_unit_s
        return 0.0

    @property
    def clean_s(self) -> float:
        return sum(part[-1].at_s - part[0].at_s for part in self.undisturbed())

    def cost(self, energy: Energy) -> SliceCost | None:
        """Return the cost of a unit of progress; None when there is too little to say."""
        parts = self.undisturbed()
        lengths = [part[-1].at_s - part[0].at_s for part in parts]
        least_s = min(SHORTEST_S, max(lengths, default=0.0) / 2)
        long = [part for part, length_s in zip(parts, lengths, strict=True) if length_s >= least_s]
        joules, energy_s, variance = 0.0, 0.0, 0.0
        for part in long:
            begin_s, end_s = part[0].at_s, part[-1].at_s
            known = energy(begin_s, end_s)
            if known is None:
                return None
            joules += known[0]
            variance += (known[0] * known[1]) ** 2
            energy_s += end_s - begin_s
        if joules <= 0:
            return None
        units = sum(step.units or 0.0 for part in parts for step in part[1:])
        clean_s = sum(lengths)
        time_s = clean_s / units
        # Steps depend on those before them where a program runs ahead of its GPU; bins hardly do.
        bins = [b for part in parts for b in _bins(part, clean_s / BINS)]
        per_unit = [length_s / n for length_s, n in bins]
        spread = stdev(per_unit) / fmean(per_unit) if len(per_unit) > 1 else 0.3
        error = spread / math.sqrt(len(per_unit))
        power_w = joules / energy_s
        return SliceCost(time_s, power_w * time_s, max(error, math.sqrt(variance) / joules, 1e-4))


def _bins(part: Sequence[ProgressStep], least_s: float) -> Iterator[tuple[float, float]]:
    """Yield time and units of consecutive steps, together at least `least_s` long."""
    length_s = units = 0.0
    for a, b in itertools.pairwise(part):
        step_s = b.at_s - a.at_s
        if step_s >= least_s and units:
            yield length_s, units
            length_s = units = 0.0
        length_s += step_s
        units += b.units or 0.0
        if length_s >= least_s:
            yield length_s, units
            length_s = units = 0.0
    if units and length_s >= least_s / 2:
        yield length_s, units


# Fed with steps; sets caps through the function it is given; knows no device, thread or clock.

MOST_RESTARTS = 2
"""Searches broken off in a row before one is taken as it is: such work is never the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineRules:
    """Durations of the online search.

    Attributes:
        settle_s: after a change of cap this long is not counted.
        least_s, most_s: how long a probe lasts at least and at most, in ordinary steps.
        precision: a probe ends when time and energy are known this well (relative).
        lag_s: sensors show power this late.
        change: relative change of time or power of a step that means another workload.
        watch_s: length of the windows in which that is looked for.
        patience: for how many windows in a row before it counts.
        watch: whether to look again when the workload changes.
        silent_s: without energy readings for this long it gives up.
    """

    settle_s: float = 1.0
    least_s: float = 4.0
    most_s: float = 60.0
    least_steps: int = 5
    precision: float = 0.01
    lag_s: float = 0.3
    change: float = 0.08
    watch_s: float = 20.0
    patience: int = 3
    watch: bool = True
    silent_s: float = 60.0


class OnlineState(StrEnum):
    """State of the pilot."""

    PROBING = "probing"
    HOLDING = "holding"
    """At the best cap, watching."""
    LEFT = "left alone"
    """Nothing more will be changed."""


class OnlineCapFinder:
    """Drives one finder after the other.

    Args:
        new_finder: makes a finder, for the first search and for each after a change.
        set_cap: sets all devices to a cap; None puts them back to what they were.
        probed: called after every probe, to keep it.
        apply: whether to stay at the best cap; else the caps are put back when it is found.
    """

    def __init__(
        self,
        new_finder: Callable[[], CapFinder],
        set_cap: Callable[[float | None], None],
        energy: Energy,
        rules: OnlineRules,
        *,
        report: Callable[[str], None] = lambda text: None,
        probed: Callable[[CapFinder], None] = lambda finder: None,
        apply: bool = True,
    ) -> None:
        self.rules = rules
        self.finder = new_finder()
        self.choice: CapChoice | None = None
        self.found_by: CapFinder | None = None
        """The finder that made the choice, while another looks for that of changed work."""
        self.unfinished = ""
        """Why the search did not come to its end, where the work or the time was over first."""
        self.searches = 0
        self.state = OnlineState.PROBING
        self._new_finder, self._set_cap, self._energy = new_finder, set_cap, energy
        self._report, self._probed, self._apply = report, probed, apply
        self._cap_w: float | None = None
        self._settled_s = math.inf
        self._look_s = -math.inf
        self._slice = CapSlice()
        self._costs: dict[float, SliceCost] = {}
        self._usual: SliceCost | None = None
        self._strange = 0
        self._restarts = 0
        self._silent_since_s: float | None = None

    def advance(self, steps: Sequence[ProgressStep], now_s: float) -> None:
        """Add steps, in order of time, and act. Raises MeterUnavailable without energy for long."""
        if self.state is OnlineState.LEFT:
            return
        if self._cap_w is None:
            self._ask(now_s)
        self._slice.steps += [step for step in steps if step.at_s >= self._settled_s]
        part = self._ready(now_s)
        if part is None:
            return
        taken = part.cost(self._energy)
        if taken is None:
            self._unknown(now_s)
            return
        self._silent_since_s = None
        if self.state is OnlineState.HOLDING:
            self._watched(taken, now_s)
        elif taken.noise <= self.rules.precision or part.clean_s >= self.rules.most_s:
            self._told(taken, now_s)
        else:
            self._look_s = now_s + self.rules.least_s / 4

    def leave(self, why: str) -> None:
        if self.state is not OnlineState.LEFT:
            self.state = OnlineState.LEFT
            self.unfinished = why if self.choice is None else ""
            self._set_cap(None)
            self._report(why)

    def give_up(self, why: str, now_s: float) -> None:
        if self.state is OnlineState.PROBING and len(self.finder.probes) >= USUAL:
            self._found(now_s)
        else:
            self.leave(why)

    def work_ended(self, fault: str | None = None) -> None:
        """Conclude after the last step, or after a `fault`, with the best cap so far."""
        if self.state is OnlineState.PROBING:
            self.unfinished = fault or self._broken_off()
        if self.choice is None and self.finder.probes:
            best = replace(self.finder.best(), why=self.unfinished, unfinished=True)
            self.choice, self.found_by = best, self.finder
            so_far = f"the best cap so far, after {best.probes} probes, is {best.cap_w:g} W"
            self._report(f"{self.unfinished}: {so_far}")

    # -- inside ----------------------------------------------------------------------------

    def _broken_off(self) -> str:
        if self.searches:
            return "the work ended before the cap of the changed work was found"
        if self.finder.probes:
            return "the work ended before the search did"
        rules = self.rules
        return (
            "the work ended before the first probe did, which takes at least "
            f"{rules.least_steps + 1} steps and {rules.least_s:g} s"
        )

    def _ask(self, now_s: float) -> None:
        cap_w = self.finder.ask()
        if cap_w is None:
            self._found(now_s)
            return
        if self.finder.why_on:
            self._report(self.finder.why_on)
        self._change(cap_w, now_s)

    def _change(self, cap_w: float, now_s: float) -> None:
        self._set_cap(cap_w)
        self._cap_w = cap_w
        self._begin_slice(now_s, settle=True)

    def _begin_slice(self, now_s: float, *, settle: bool) -> None:
        self._slice = CapSlice()
        self._settled_s = now_s + (self.rules.settle_s if settle else 0.0)
        self._look_s = now_s

    def _ready(self, now_s: float) -> CapSlice | None:
        """Steps whose energy the sensors have shown by now, when they are enough to look at."""
        steps = self._slice.steps
        least_s = self.rules.least_s if self.state is OnlineState.PROBING else self.rules.watch_s
        if now_s < self._look_s or not steps or steps[-1].at_s - steps[0].at_s < least_s:
            return None  # looking costs time, so nothing is computed before
        shown_s = now_s - self.rules.lag_s
        part = CapSlice([step for step in steps if step.at_s <= shown_s])
        if len(part.steps) > self.rules.least_steps and part.clean_s >= least_s:
            return part
        self._look_s = now_s + least_s / 4
        return None

    def _unknown(self, now_s: float) -> None:
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        silent_s = now_s - self._silent_since_s
        if silent_s >= self.rules.silent_s:
            raise MeterUnavailable("GPU energy", f"not all GPUs could be read for {silent_s:.0f} s")
        self._begin_slice(now_s, settle=False)

    def _told(self, taken: SliceCost, now_s: float) -> None:
        assert self._cap_w is not None
        if self._restarts < MOST_RESTARTS and self._contradicted(self._cap_w, taken):
            self._restarts += 1
            self._report("the work has changed during the search: searching again")
            self._search(now_s)
            return
        self._costs[self._cap_w] = taken
        self.finder.tell(self._cap_w, taken.time_s, taken.energy_j, taken.noise)
        self._probed(self.finder)
        self._report(
            f"{self._cap_w:g} W: {format_duration(taken.time_s)} and "
            f"{short_energy(taken.energy_j)} per step (within {100 * taken.noise:.1f}%)"
        )
        self._ask(now_s)

    def _contradicted(self, cap_w: float, taken: SliceCost) -> bool:
        """Return True if probes contradict each other: a lower cap faster or drawing more."""
        for other_w, other in self._costs.items():
            lower, higher = (taken, other) if cap_w < other_w else (other, taken)
            limit = taken.limit(other, self.rules.change)
            faster = math.log(higher.time_s / lower.time_s)
            hungrier = math.log(lower.power_w / higher.power_w)
            if cap_w == other_w:
                faster, hungrier = abs(faster), abs(hungrier)
            if max(faster, hungrier) > limit:
                return True
        return False

    def _search(self, now_s: float) -> None:
        self.finder = self._new_finder()
        self.state = OnlineState.PROBING
        self._costs = {}
        self._ask(now_s)

    def _found(self, now_s: float) -> None:
        self.choice, self.found_by = self.finder.best(), self.finder
        self.searches += 1
        gain, loss = self.choice.energy_gain_pct, self.choice.time_loss_pct
        self._report(
            f"best cap: {self.choice.cap_w:g} W; GPU energy {gain.value:.1f}% less, time "
            f"{loss.value:.1f}% more than at {self.finder.reference_w:g} W"
        )
        if not self._apply:
            self.leave("caps are back as they were")
            return
        self.state = OnlineState.HOLDING
        # A probe of the same cap: what has changed since is a change too.
        self._usual, self._strange = self._costs.get(self.choice.cap_w), 0
        self._restarts = 0
        if self.choice.cap_w == self._cap_w:
            self._begin_slice(now_s, settle=False)
        else:
            self._change(self.choice.cap_w, now_s)
        if not self.rules.watch:
            self._settled_s = math.inf

    def _watched(self, taken: SliceCost, now_s: float) -> None:
        self._begin_slice(now_s, settle=False)
        if self._usual is None:
            self._usual = taken
            return
        limit = taken.limit(self._usual, self.rules.change)
        time = abs(math.log(taken.time_s / self._usual.time_s))
        power = abs(math.log(taken.power_w / self._usual.power_w))
        self._strange = self._strange + 1 if max(time, power) > limit else 0
        if self._strange >= self.rules.patience:
            self._report(
                f"the work has changed (a step took {format_duration(self._usual.time_s)} and "
                f"takes {format_duration(taken.time_s)}): looking for its best cap"
            )
            self._search(now_s)
