"""Many answers side by side: what was varied, and which of them is best."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from wattloop.predict.forecast import Forecast

__all__ = ["BEST", "Point", "best_points", "points_data", "unsure_gpus"]


class Point(NamedTuple):
    """One answer of a sweep or comparison, and the setting it is for."""

    setting: Mapping[str, Any]
    forecast: Forecast

    @property
    def name(self) -> str:
        """Of the model."""
        return self.forecast.workload.name

    @property
    def label(self) -> str:
        """The setting in words: `gpu=h200 batch=64`."""
        return " ".join(f"{name}={_plain(value)}" for name, value in self.setting.items())


BEST: Mapping[str, Callable[[Forecast], float]] = {
    "least energy per sample": lambda f: f.energy_j_per_sample,
    "most samples per second": lambda f: -f.throughput_samples_s,
    "shortest step": lambda f: f.prediction.step_s,
}
"""What people choose by -> what is then smallest."""


def best_points(points: Sequence[Point]) -> dict[str, Point]:
    """The best of those that fit into memory, by each criterion; none when none fits."""
    fitting = [point for point in points if point.forecast.fits]
    if not fitting:
        return {}

    def best(by: Callable[[Forecast], float]) -> Point:
        return min(fitting, key=lambda point: by(point.forecast))

    found = {why: best(by) for why, by in BEST.items()}
    if fitting[0].forecast.run is not None:
        found["least energy of the run"] = best(_run_energy_j)
        found["shortest run"] = best(_run_time_s)
    return found


def unsure_gpus(points: Sequence[Point]) -> list[str]:
    """Other GPUs that may need less energy per sample than the best one, by their intervals.

    On one GPU predictions err alike, so that they are compared more surely than each is known.
    """
    best = best_points(points).get("least energy per sample")
    ends = None if best is None else _energy_ends(best.forecast)
    if best is None or ends is None:
        return []
    found = []
    for forecast in (point.forecast for point in points if point.forecast.fits):
        gpu, theirs = forecast.placement.gpu.name, _energy_ends(forecast)
        if gpu != best.forecast.placement.gpu.name and theirs is not None and theirs[0] < ends[1]:
            found.append(gpu)
    return list(dict.fromkeys(found))


def points_data(points: Sequence[Point]) -> dict[str, Any]:
    """Plain data for JSON: every point with its setting, and the best ones."""
    return {
        "points": [{"setting": dict(p.setting), **p.forecast.to_dict()} for p in points],
        "best": {why: dict(point.setting) for why, point in best_points(points).items()},
    }


def _energy_ends(forecast: Forecast) -> tuple[float, float] | None:
    interval = forecast.prediction.energy_interval
    if interval is None:
        return None
    return interval.low / forecast.samples, interval.high / forecast.samples


def _run_energy_j(forecast: Forecast) -> float:
    return math.inf if forecast.run is None else forecast.run.energy_j.value


def _run_time_s(forecast: Forecast) -> float:
    return math.inf if forecast.run is None else forecast.run.time_s.value


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
