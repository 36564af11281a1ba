"""Progress of a training within a segment, and the result of a finished segment."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from wattloop.tune.executors.base import TrainedSoFar
from wattloop.tune.executors.training_curve import TrainingCurve
from wattloop.tune.progress import CapFound, EpochPoint, Progress, Status
from wattloop.tune.segment import Segment
from wattloop.tune.segment_meter import SegmentMeter

LOOK_EVERY_S = 0.25
"""Period at which the remaining energy of the search is checked."""


class SegmentProgress:
    """Decision at each step and epoch whether the segment ends.

    Args:
        behind: earlier progress of the candidate, where this training has to repeat it.
    """

    def __init__(
        self, segment: Segment, meter: SegmentMeter, course: TrainingCurve, behind: float | None
    ) -> None:
        self._until, self._meter, self._course = segment.until, meter, course
        self._repeat_to = behind or 0.0
        self.from_s = None if behind else meter.begin_s
        """Start of the segment itself; None while an earlier training is repeated."""
        self._look_s = meter.begin_s + LOOK_EVERY_S

    def at_end_of_epoch(self) -> Status | None:
        """Return how the segment ends here; None when it continues."""
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
        """Return whether `between_steps` may ever be true."""
        return self.anywhere or (self._until.most_j, self._until.most_s) != (None, None)

    @property
    def anywhere(self) -> bool:
        """Return whether the segment's own bounds may end it between two steps."""
        bounds = (self._until.time_s, self._until.energy_j)
        return self._until.anywhere and self.from_s is not None and bounds != (None, None)

    def between_steps(self) -> bool:
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
        now_s, until = self._meter.now_s(), self._until
        if until.most_s is not None and now_s - self._meter.begin_s >= until.most_s:
            return True
        if until.most_j is None or now_s < self._look_s:
            return False
        self._look_s = now_s + LOOK_EVERY_S
        energy_j = self._meter.energy_j()
        return energy_j is not None and energy_j >= until.most_j

    def long_over(self, grace_s: float) -> bool:
        most_s = self._until.most_s
        return most_s is not None and self._meter.now_s() - self._meter.begin_s > most_s + grace_s

    def over(self) -> float:
        """End the segment and return when it began; the end itself where all was repetition."""
        return self._meter.now_s() if self.from_s is None else self.from_s


def behind(course: TrainingCurve, past: TrainedSoFar) -> float | None:
    """Return the progress that a new training must repeat to reach its candidate's."""
    return past.epochs if course.epochs < past.epochs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEnd:
    """End of a segment.

    Attributes:
        from_s: when the segment itself began; what ran before repeated an earlier training.
        went_on: whether it resumed from a checkpoint of a killed attempt at the same segment.
    """

    status: Status
    message: str = ""
    from_s: float | None = None
    went_on: bool = False
    cap: CapFound | None = None
    warnings: tuple[str, ...] = field(default=())


def account(
    meter: SegmentMeter, course: TrainingCurve, past: TrainedSoFar, ended: SegmentEnd
) -> Progress:
    """Return the progress of the segment; call it after the meter was stopped."""
    begin_s = meter.begin_s if ended.from_s is None else ended.from_s
    end_s = meter.stop()
    joules = meter.joules(begin_s, end_s)
    repeated_j = meter.energy_j(meter.begin_s, begin_s) if begin_s > meter.begin_s else 0.0
    repeated_s = begin_s - meter.begin_s
    before_s, before_j = 0.0, 0.0
    if ended.went_on:  # the checkpoint of the killed attempt is part of this segment
        before_s, before_j = past.died_s, past.died_j
    else:
        repeated_s += past.died_s
        repeated_j = None if repeated_j is None else repeated_j + past.died_j
    curve = []
    for mark in course.marks:
        if mark.at_s < begin_s:
            continue
        energy_j = meter.energy_j(begin_s, mark.at_s)
        so_far_j = None
        if energy_j is not None and past.energy_j is not None:
            so_far_j = past.energy_j + before_j + energy_j
        curve.append(
            EpochPoint(
                epoch=mark.epoch,
                quality=mark.quality,
                time_s=past.time_s + before_s + mark.at_s - begin_s,
                energy_j=so_far_j,
            )
        )
    return Progress(
        status=ended.status,
        time_s=before_s + end_s - begin_s,
        energy_j=None if joules.energy_j is None else before_j + joules.energy_j,
        uncertainty_j=joules.uncertainty_j,
        epochs=course.epochs_now,
        quality=course.quality,
        best=course.best,
        curve=tuple(curve),
        cap=ended.cap,
        metrics=_finite(course.metrics, course.wanted.metric),
        provenance=joules.provenance,
        run_id=meter.session.run_id,
        message="; ".join(filter(None, (ended.message, *ended.warnings))),
        repeated_s=repeated_s,
        repeated_j=repeated_j,
        error=None if joules.error is None else joules.error.to_dict(),
    )


def _finite(metrics: Mapping[str, float], quality: str) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name != quality}
