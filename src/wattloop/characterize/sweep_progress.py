"""How far a sweep is, and what it will still take."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from wattloop.analyze.intervals import estimate
from wattloop.characterize.repeats import Repeated
from wattloop.characterize.sweep_spec import Repeats
from wattloop.trials.outcome import Outcome
from wattloop.trials.trial import Trial

__all__ = ["Listener", "Progress", "progress_of"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sweep is. What is left is estimated from what ran so far; None before that."""

    done: int
    left: int
    time_left_s: float | None
    energy_left_j: float | None
    scope: str | None


class Listener(Protocol):
    """Who is told what happens. Every method may do nothing."""

    def begins(self, trial: Trial, progress: Progress) -> None:
        """A trial begins."""

    def ended(self, trial: Trial, outcome: Outcome) -> None:
        """It has ended."""

    def cooled(self, waited_s: float) -> None:
        """Devices have cooled down."""


def progress_of(
    states: Sequence[Repeated], rule: Repeats, scope: str | None, beside_s: Sequence[float]
) -> Progress:
    """What the points still need.

    Args:
        states: the repeats of every point.
        rule: how often each is run.
        scope: whose energy is counted.
        beside_s: what each run so far took beside itself: cooling down, setting, writing down.
    """
    missing = [state.missing(rule) for state in states]
    time_s = _left([_lasted_s(state) for state in states], missing)
    between = estimate(beside_s)
    if time_s is not None and between is not None:
        time_s += between.mean * sum(missing)
    energy_j = _left([s.energy_j.mean if s.energy_j else None for s in states], missing)
    done = sum(len(state.outcomes) for state in states)
    return Progress(done, sum(missing), time_s, energy_j, scope)


def _lasted_s(state: Repeated) -> float | None:
    """Mean time of the whole program, whatever part of it is compared."""
    found = estimate([o.lasted_s for o in state.used if o.lasted_s is not None])
    return None if found is None else found.mean


def _left(means: Sequence[float | None], missing: Sequence[int]) -> float | None:
    """Sum over what is missing; a point that has not run yet counts as the average one."""
    known = [mean for mean in means if mean is not None]
    if not known:
        return None
    usual = sum(known) / len(known)
    pairs = zip(means, missing, strict=True)
    return sum((usual if mean is None else mean) * count for mean, count in pairs)
