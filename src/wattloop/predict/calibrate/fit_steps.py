"""Whole training steps in a calibration: the last fit, and how wrong it is on models left out."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu
from wattloop.predict.intervals import Intervals, Residual
from wattloop.predict.models.kernels.constants import KernelConstants
from wattloop.predict.models.kernels.model import KernelModel
from wattloop.predict.models.model import Point
from wattloop.predict.placement import Placement
from wattloop.predict.scope import Scope

__all__ = [
    "Progress",
    "at_host_speed",
    "fitted_to_steps",
    "left_out_residuals",
    "once_each",
    "points_of",
]

FEWEST_GROUPS = 3
"""Fewer models than this say nothing about a model left out."""

HOST_SPEEDS = tuple(0.5 * 1.05**step for step in range(29))
"""Half to twice the speed of the host that a model was fitted on."""

Progress = Callable[[str], None]
_STEP = ("model", "batch", "precision")


def points_of(
    rows: Sequence[Mapping[str, Any]],
    gpu: Gpu,
    progress: Progress = lambda _: None,
    cap_w: float | None = None,
) -> list[Point]:
    """Step records as points: each one's model is built without weights and traced.

    `cap_w` is the limit they were taken under; None is the factory's. A step that was taken in
    several rounds is one point.
    """
    if not rows:
        return []
    try:
        import torch  # noqa: F401 - tracing needs it
    except ImportError:
        raise ConfigError(
            "the collection has training steps, and fitting them needs torch to trace their "
            "models; run `pip install 'wattloop[torch,hf]'`, or leave them out with --no-steps"
        ) from None
    from wattloop.predict.calibrate.subject_workload import subject_workload

    points = []
    for row in once_each(rows):
        name, batch, precision = str(row["model"]), int(row["batch"]), str(row["precision"])
        progress(f"tracing {name}, batch {batch}, {precision}")
        workload = subject_workload(name, batch, precision)
        group = name.partition("@")[0]
        placement = Placement(gpu, cap_w=cap_w)
        points.append(
            Point(
                workload, placement, row["step_s"], row["avg_power_w"], group,
                host=str(row.get("sitting", "")), host_s=row.get("host_s") or {},
            )
        )  # fmt: skip
    return points


def once_each(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rounds of one step in one sitting as one record: medians of what was measured."""
    same: dict[tuple[object, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        same[tuple(row.get(name) for name in (*_STEP, "sitting"))].append(row)
    return [_middle(rounds) for rounds in same.values()]


def _middle(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = dict(rounds[0])
    for name in ("step_s", "avg_power_w", "energy_j_per_step"):
        known = [row[name] for row in rounds if row.get(name) is not None]
        found[name] = statistics.median(known) if known else None
    asked = [row["host_s"] for row in rounds if row.get("host_s")]
    if asked:
        found["host_s"] = {
            name: statistics.median(each[name] for each in asked) for name in asked[0]
        }
    return found


def fitted_to_steps(constants: KernelConstants, points: Sequence[Point]) -> KernelConstants:
    """`constants` fitted to all points, with intervals from leaving out each model in turn."""
    if not points:
        return constants
    start = KernelModel(constants, source="calibrated")
    model = start.fit(points)
    groups = sorted({point.group for point in points})
    if len(groups) >= FEWEST_GROUPS:
        scope = Scope.of(constants.gpu, [point.workload for point in points])
        model = model.with_intervals(Intervals.by_traits(left_out_residuals(start, points), scope))
    found = model.kernel_constants
    return replace(found, made={**found.made, "steps": len(points), "models": groups})


def at_host_speed(model: KernelModel, points: Sequence[Point]) -> list[Point]:
    """The points with the speed of the host they were measured on, relative to the model's own.

    The speed under which the model is right about most of them: hosts differ by a third, and
    only steps that wait for them tell.
    """

    def moved(speed: float) -> list[Point]:
        return [
            replace(point, placement=replace(point.placement, host_speed=speed)) for point in points
        ]

    def wrong(speed: float) -> float:
        steps = [(model.predict(p.workload, p.placement), p) for p in moved(speed)]
        return sum(abs(math.log(step.step_s / p.step_s)) for step, p in steps)

    return moved(min(HOST_SPEEDS, key=wrong))


def left_out_residuals(model: KernelModel, points: Sequence[Point]) -> list[Residual]:
    """How wrong `model`, fitted to all other groups, is on each group's points."""
    residuals = []
    for group in sorted({point.group for point in points}):
        fitted = model.fit([point for point in points if point.group != group])
        for point in points:
            if point.group == group:
                placement = fitted.placed(point)
                step = fitted.predict(point.workload, placement)
                residuals.append(Residual.of(group, step, point.step_s, point.power_w, placement))
    return residuals
