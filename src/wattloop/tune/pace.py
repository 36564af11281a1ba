"""Where a training stands within a segment: repeating what was lost, or under way to its end."""

from wattloop.tune.bench import Past
from wattloop.tune.course import Course
from wattloop.tune.metering import SegmentMeter
from wattloop.tune.progress import Status
from wattloop.tune.segment import Segment

__all__ = ["Pace"]


class Pace:
    """Judges the ends of epochs.

    Args:
        segment: when to end.
        meter: its clock and energy.
        course: what the training reports.
        past: how far the candidate was; a training that is behind that repeats.
    """

    def __init__(self, segment: Segment, meter: SegmentMeter, course: Course, past: Past) -> None:
        self._until, self._meter, self._course = segment.until, meter, course
        self._repeat_to = past.epochs
        self.from_s = meter.begin_s if course.epochs >= past.epochs else None
        """When the segment itself began; None while it repeats."""

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

    def over(self) -> float:
        """The segment is over: when it had begun. Where that was never, all was repetition."""
        return self._meter.now_s() if self.from_s is None else self.from_s
