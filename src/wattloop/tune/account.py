"""A segment that has ended, as progress: its cost, its curve, and what was paid twice."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from wattloop.tune.bench import Past
from wattloop.tune.course import Course
from wattloop.tune.metering import SegmentMeter
from wattloop.tune.progress import CapFound, EpochPoint, Progress, Status

__all__ = ["Ended", "account"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a segment ended.

    Attributes:
        status, message: as in `Progress`.
        from_s: when the segment itself began; what ran before repeated an earlier training.
        went_on: whether it began where a killed attempt at the same segment had saved its state.
        cap: what a search for a cap found.
        warnings: for people.
    """

    status: Status
    message: str = ""
    from_s: float | None = None
    went_on: bool = False
    cap: CapFound | None = None
    warnings: tuple[str, ...] = field(default=())


def account(meter: SegmentMeter, course: Course, past: Past, ended: Ended) -> Progress:
    """What the segment took and gave; call it when the meter was stopped."""
    begin_s = meter.begin_s if ended.from_s is None else ended.from_s
    end_s = meter.stop()
    joules = meter.joules(begin_s, end_s)
    repeated_j = meter.energy_j(meter.begin_s, begin_s) if begin_s > meter.begin_s else 0.0
    repeated_s = begin_s - meter.begin_s
    before_s, before_j = 0.0, 0.0
    if ended.went_on:  # what the killed attempt saved is a part of this segment
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
