"""Every fit that the tables of ADEPT need, in sample and with one network left out."""

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattloop.predict.models.adept import Adept
from wattloop.predict.models.adept.equations import ALBERT, BF16, SATURATIONS, STAGES
from wattloop.predict.models.adept.model import AdeptSearch
from wattloop.predict.models.model import MeasuredStep, Model
from wattloop.predict.models.roofline import Roofline

__all__ = ["NO_ALBERT", "ROOFLINE", "Errors", "Fits", "Task", "all_fits", "errors_of"]

Array = NDArray[np.float64]
NO_ALBERT = "without ALBERT"
ROOFLINE = "roofline"
Found = tuple[Mapping[str, object], Array]
"""Constants of a fit, and its predictions of all points: step_s, power_w."""


@dataclass(frozen=True)
class Errors:
    """Mean absolute errors in percent; combined is 0.6 time + 0.4 power."""

    time: float
    power: float
    energy: float

    @property
    def combined(self) -> float:
        """Return the thesis's combined figure."""
        return 0.6 * self.time + 0.4 * self.power


@dataclass(frozen=True)
class Task:
    """One fit: stages in order, each starting from the one before.

    Attributes:
        name: of the series; stages of table 4.2 keep their own.
        stages: name -> scalars that are free.
        left_out: group that is predicted and not seen; empty for in sample.
    """

    name: str
    stages: Mapping[str, tuple[str, ...]]
    saturation: str = "sigmoid"
    left_out: str = ""
    seed: int = 0


@dataclass(frozen=True)
class Fits:
    """Predictions of every fit for every point, and the parameters of those in sample.

    Attributes:
        inside, outside: name of the fit -> (rows x 2) step_s and power_w; `outside` holds each row
            as predicted without its network.
        constants: name of the fit in sample -> its parameters.
    """

    inside: Mapping[str, Array]
    outside: Mapping[str, Array]
    constants: Mapping[str, Mapping[str, object]]

    def parameters(self, fit: str) -> Mapping[str, float]:
        """Return theta_H of a fit in sample."""
        return Adept.from_constants(self.constants[fit]).parameters


def errors_of(points: Sequence[MeasuredStep], predicted: Array, rows: Sequence[int] = ()) -> Errors:
    """Return the errors over these rows, or all."""
    true = np.array([(p.step_s, p.power_w) for p in points], float)
    chosen = list(rows) or list(range(len(points)))
    ratio = predicted[chosen] / true[chosen]
    off = 100 * abs(np.column_stack([ratio, ratio.prod(axis=1)]) - 1)
    return Errors(*(float(each) for each in off.mean(axis=0)))


def all_fits(
    points: Sequence[MeasuredStep],
    search: AdeptSearch,
    seeds: int = 1,
    *,
    stages_only: bool = False,
) -> Fits:
    """Run all fits, one process per core, with several seeds for the last stage in sample."""
    groups = list(dict.fromkeys(point.group for point in points))
    tasks = [task for left_out in ("", *groups) for task in _series(left_out)]
    if stages_only:
        tasks = [task for task in tasks if task.name == "stages"]
    tasks += [Task(f"seed {i}", {f"seed {i}": STAGES["S7"]}, seed=i) for i in range(1, seeds)]
    done = _in_processes(points, search, tasks)
    inside: dict[str, Array] = {}
    outside: dict[str, Array] = {}
    constants: dict[str, Mapping[str, object]] = {}
    for task, found in zip(tasks, done, strict=True):
        for name, (of_fit, predicted) in found.items():
            if not task.left_out:
                inside[name] = predicted
                constants[name] = of_fit
                continue
            rows = [i for i, point in enumerate(points) if point.group == task.left_out]
            table = outside.setdefault(name, np.full((len(points), 2), np.nan))
            table[rows] = predicted[rows]
    return Fits(inside, outside, constants)


def _in_processes(
    points: Sequence[MeasuredStep], search: AdeptSearch, tasks: Sequence[Task]
) -> list[dict[str, Found]]:
    """Return the fits in order, and show progress on a terminal."""
    found = []
    with ProcessPoolExecutor(
        len(os.sched_getaffinity(0)), initializer=_start, initargs=(points, search)
    ) as pool:
        for each in pool.map(_run, tasks):
            found.append(each)
            if sys.stderr.isatty():
                print(f"\r{len(found)} of {len(tasks)} fits", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r" + " " * 30 + "\r", end="", file=sys.stderr)
    return found


def _series(left_out: str) -> list[Task]:
    """Return the fits of one fold.

    Between stages S1, S4 and S7 only the in-sample table needs the others.
    """
    stages = STAGES if not left_out else {name: STAGES[name] for name in ("S1", "S4", "S7")}
    others = [name for name in SATURATIONS if name != "sigmoid"]
    return [
        Task("stages", stages, left_out=left_out),
        *(Task(name, {name: ALBERT + BF16}, name, left_out) for name in others),
        Task(NO_ALBERT, {NO_ALBERT: BF16}, left_out=left_out),
        Task(ROOFLINE, {}, left_out=left_out),
    ]


_points: Sequence[MeasuredStep] = ()
_search = AdeptSearch()


def _start(points: Sequence[MeasuredStep], search: AdeptSearch) -> None:
    global _points, _search  # handed to each process once, not with each task
    _points, _search = points, search


def _run(task: Task) -> dict[str, Found]:
    seen = [point for point in _points if point.group != task.left_out]
    if task.name == ROOFLINE:
        line = Roofline().fit(seen)
        return {ROOFLINE: (line.constants(), _predicted(line))}
    found: dict[str, Found] = {}
    start = None
    for name, scalars in task.stages.items():
        model = Adept(
            start,
            saturation=task.saturation,
            scalars=scalars,
            search=replace(_search, seed=task.seed),
        ).fit(seen)
        start = model.parameters
        found[name] = (model.constants(), _predicted(model))
    return found


def _predicted(model: Model) -> Array:
    each = [model.predict(point.workload, point.placement) for point in _points]
    return np.array([(one.step_s, one.power_w) for one in each])
