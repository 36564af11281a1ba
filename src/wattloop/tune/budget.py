"""What a search has spent, and what it may."""

from dataclasses import dataclass, replace

from wattloop.core.units import format_duration, format_energy
from wattloop.tune.problem import Limits
from wattloop.tune.progress import Progress
from wattloop.tune.segment import Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpent:
    """So far.

    Attributes:
        energy_j, time_s: of all segments, repetitions and idle devices included.
        elapsed_s: while the search ran; less than `time_s` where several segments run at once.
        repeated_j: of these, what was spent twice because a search was killed.
        idle_j: of these, what devices took that were held and waited.
        candidates: that were begun.
        segments: that have ended.
        unknown: of these, without a reading of energy.
    """

    energy_j: float = 0.0
    time_s: float = 0.0
    elapsed_s: float = 0.0
    repeated_j: float = 0.0
    idle_j: float = 0.0
    candidates: int = 0
    segments: int = 0
    unknown: int = 0

    def after(self, progress: Progress) -> "BudgetSpent":
        """With one more segment."""
        repeated_j, idle_j = progress.repeated_j or 0.0, progress.idle_j or 0.0
        return BudgetSpent(  # not by dataclasses.replace, for the same reason as in `Past.after`
            energy_j=self.energy_j + (progress.energy_j or 0.0) + repeated_j + idle_j,
            time_s=self.time_s + progress.time_s + progress.repeated_s,
            elapsed_s=self.elapsed_s,
            candidates=self.candidates,
            repeated_j=self.repeated_j + repeated_j,
            idle_j=self.idle_j + idle_j,
            segments=self.segments + 1,
            unknown=self.unknown + (progress.energy_j is None and progress.time_s > 0),
        )


def over(limits: Limits, spent: BudgetSpent) -> str:
    """Which limit is reached, for people; empty when none is."""
    if limits.energy_j is not None and spent.energy_j >= limits.energy_j:
        return f"the energy budget of {format_energy(limits.energy_j)} is spent"
    if limits.time_s is not None and spent.elapsed_s >= limits.time_s:
        return f"the time of {format_duration(limits.time_s)} is over"
    return ""


def allowed(limits: Limits, spent: BudgetSpent) -> str:
    """That no more configurations may be begun, for people; empty when more may."""
    most = limits.candidates
    if most is None or spent.candidates < most:
        return ""
    return f"{most} configuration{'s were' if most != 1 else ' was'} allowed"


def bounded(segment: Segment, limits: Limits, spent: BudgetSpent) -> Segment:
    """The segment, not longer than the limits of the search and of a candidate allow."""
    until = replace(
        segment.until,
        energy_j=_smaller(segment.until.energy_j, limits.energy_j, spent.energy_j),
        time_s=_smaller(segment.until.time_s, limits.time_s, spent.elapsed_s),
        most_j=_smaller(None, limits.energy_j, spent.energy_j),
        most_s=_smaller(None, limits.time_s, spent.elapsed_s),
    )
    if limits.epochs is not None:
        epochs = limits.epochs if until.epochs is None else min(until.epochs, limits.epochs)
        until = replace(until, epochs=epochs)
    return replace(segment, until=until)


def _smaller(own: float | None, most: float | None, used: float) -> float | None:
    if most is None:
        return own
    left = max(0.0, most - used)
    return left if own is None else min(own, left)
