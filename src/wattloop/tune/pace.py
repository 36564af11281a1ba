"""Where a training stands within a segment: repeating what was lost, or under way to its end."""

from wattloop.tune.bench import Past
from wattloop.tune.course import Course
from wattloop.tune.metering import SegmentMeter
from wattloop.tune.progress import Status
from wattloop.tune.segment import Segment

__all__ = ["Pace", "behind"]

LOOK_EVERY_S = 0.25
"""How often the energy that a search has left is looked at."""


class Pace:
    """Judges the ends of epochs.

    Args:
        segment: when to end.
        meter: its clock and energy.
        course: what the training reports.
        behind: how far the candidate was, where this training is not that far: it repeats.
    """

    def __init__(
        self, segment: Segment, meter: SegmentMeter, course: Course, behind: float | None
    ) -> None:
        self._until, self._meter, self._course = segment.until, meter, course
        self._repeat_to = behind or 0.0
        self.from_s = None if behind else meter.begin_s
        """When the segment itself began; None while it repeats."""
        self._look_s = meter.begin_s + LOOK_EVERY_S

    def at_end_of_epoch(self) -> Status | None:
        """How the segment ends here; None when it goes on."""
        now_s = self._meter.now_s()
        if self.from_s is None:
            if self._course.epochs < self._repeat_to and not self._course.diverged:
                return None
            self.from_s = now_s
            if not self._course.diverged:
                return None
        energy_j = None
        if self._until.energy_j is not None:
            energy_j = self._meter.energy_j(self.from_s, now_s)
        return self._course.verdict(self._until, now_s - self.from_s, energy_j)

    @property
    def watched(self) -> bool:
        """Whether `between_steps` may ever be true."""
        return self.anywhere or (self._until.most_j, self._until.most_s) != (None, None)

    @property
    def anywhere(self) -> bool:
        """Whether the segment may end for its own bounds between two steps."""
        bounds = (self._until.time_s, self._until.energy_j)
        return self._until.anywhere and self.from_s is not None and bounds != (None, None)

    def between_steps(self) -> bool:
        """Whether the segment ends here, within an epoch."""
        if self._nothing_left():
            return True
        if not self.anywhere or self.from_s is None:
            return False
        now_s = self._meter.now_s()
        if self._until.time_s is not None and now_s - self.from_s >= self._until.time_s:
            return True
        energy_j = None
        if self._until.energy_j is not None:
            energy_j = self._meter.energy_j(self.from_s, now_s)
        return energy_j is not None and energy_j >= (self._until.energy_j or 0.0)

    def _nothing_left(self) -> bool:
        """Whether the search has spent what it may."""
        now_s, until = self._meter.now_s(), self._until
        if until.most_s is not None and now_s - self._meter.begin_s >= until.most_s:
            return True
        if until.most_j is None or now_s < self._look_s:
            return False
        self._look_s = now_s + LOOK_EVERY_S
        energy_j = self._meter.energy_j()
        return energy_j is not None and energy_j >= until.most_j

    def long_over(self, grace_s: float) -> bool:
        """Whether the time of the search was over `grace_s` ago."""
        most_s = self._until.most_s
        return most_s is not None and self._meter.now_s() - self._meter.begin_s > most_s + grace_s

    def over(self) -> float:
        """The segment is over: when it had begun. Where that was never, all was repetition."""
        return self._meter.now_s() if self.from_s is None else self.from_s


def behind(course: Course, past: Past) -> float | None:
    """How far a training that has just begun has to come to be where its candidate was."""
    return past.epochs if course.epochs < past.epochs else None
