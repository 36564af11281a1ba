"""Predictions over a range of batch sizes, GPUs or caps, and the best of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.predict.forecast import Forecast

COUNTED = ("batch", "seq", "image", "gpus", "accumulate")
MEASURED = ("cap", "clock")
NAMED = ("precision", "optimizer", "compile")
AXES = (*COUNTED, *MEASURED, *NAMED)
MOST = 200
"""Largest number of points."""
EVEN_STEPS = 8
"""Steps of a range of watts or megahertz without a step."""
HOW = (
    "write batch=8..256 (doubling), batch=8..64:8 (steps of 8), cap=300,500,700 or "
    "precision=fp32,bf16"
)


@dataclass(frozen=True, slots=True)
class Axis:
    """Quantity that varies, with its values in the order given."""

    name: str
    values: tuple[int | float | str, ...]


def parse_axis(text: str) -> Axis:
    """Parse an axis.

    `LOW..HIGH` doubles for counts and takes even steps for watts and megahertz, `LOW..HIGH:STEP`
    takes steps of that size; both ends are in it. A list is used as given.

    Raises:
        ConfigError: it cannot be read; the message shows how to write it.
    """
    name, equals, rest = text.partition("=")
    name, rest = name.strip(), rest.strip()
    if not equals or not rest:
        raise ConfigError(f"sweep {text}: {HOW}")
    if name not in AXES:
        raise ConfigError(
            f"sweep {text}: cannot vary {name or 'nothing'}; {', '.join(AXES)} can be"
        )
    if name in NAMED:
        values: tuple[int | float | str, ...] = tuple(part.strip() for part in rest.split(","))
        if not all(values):
            raise ConfigError(f"sweep {text}: a value is missing; {HOW}")
    elif ".." in rest:
        values = _range(name, rest, text)
    else:
        values = tuple(_number(name, part, text) for part in rest.split(","))
    if len(set(values)) < len(values):
        raise ConfigError(f"sweep {text}: the same value twice")
    if len(values) > MOST:
        raise ConfigError(f"sweep {text}: {len(values)} values; take at most {MOST}")
    return Axis(name, values)


def _range(name: str, rest: str, text: str) -> tuple[int | float, ...]:
    ends, _, step_text = rest.partition(":")
    low_text, _, high_text = ends.partition("..")
    low, high = _number(name, low_text, text), _number(name, high_text, text)
    if low > high:
        raise ConfigError(f"sweep {text}: {low:g} is above {high:g}; write the lower one first")
    if step_text:
        step = _number(name, step_text, text)
        if (high - low) / step > MOST:
            raise ConfigError(f"sweep {text}: over {MOST} values; take a larger step")
        return _stepped(low, high, step)
    if name in MEASURED:
        if low == high:
            return (low,)
        width = (high - low) / EVEN_STEPS
        return tuple(round(low + width * i, 1) for i in range(EVEN_STEPS + 1))
    values = [low]
    while values[-1] * 2 < high:
        values.append(values[-1] * 2)
    return tuple(values) if low == high else (*values, high)


def _stepped(low: float, high: float, step: float) -> tuple[int | float, ...]:
    count = int((high - low) / step + 1e-9)
    values = [low + step * i for i in range(count + 1)]
    return (*values, *(() if values[-1] >= high else (high,)))


def _number(name: str, part: str, text: str) -> int | float:
    part = part.strip()
    try:
        value = int(part) if name in COUNTED else float(part)
    except ValueError:
        kind = "whole number" if name in COUNTED else "number"
        raise ConfigError(f"sweep {text}: {part or 'nothing'} is not a {kind}; {HOW}") from None
    if not 0 < value < 1e9:
        raise ConfigError(f"sweep {text}: {part} is out of range; values are above 0")
    return value


class ComparisonPoint(NamedTuple):
    """One prediction of a sweep or comparison, and its setting."""

    setting: Mapping[str, Any]
    forecast: Forecast

    @property
    def name(self) -> str:
        return self.forecast.workload.name

    @property
    def label(self) -> str:
        """Format the setting: `gpu=h200 batch=64`."""
        return " ".join(
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.setting.items()
        )


BEST: Mapping[str, Callable[[Forecast], float]] = {
    "least energy per sample": lambda f: f.energy_j_per_sample,
    "most samples per second": lambda f: -f.throughput_samples_s,
    "shortest step": lambda f: f.prediction.step_s,
}
"""Criterion -> quantity to minimize."""


def best_points(points: Sequence[ComparisonPoint]) -> dict[str, ComparisonPoint]:
    """Return the best of those that fit into memory, by each criterion; none when none fits."""
    fitting = [point for point in points if point.forecast.fits]
    if not fitting:
        return {}

    def best(by: Callable[[Forecast], float]) -> ComparisonPoint:
        return min(fitting, key=lambda point: by(point.forecast))

    found = {why: best(by) for why, by in BEST.items()}
    if fitting[0].forecast.run is not None:
        found["least energy of the run"] = best(_run_energy_j)
        found["shortest run"] = best(_run_time_s)
    if any(point.forecast.run is not None and point.forecast.run.gpu_cost for point in fitting):
        found["least money"] = best(_run_money)
    return found


def unsure_gpus(points: Sequence[ComparisonPoint]) -> list[str]:
    """Return other GPUs that may need less energy per sample than the best one, by their intervals.

    On one GPU predictions have a common error, so their comparison is more certain than each value.
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


def points_data(points: Sequence[ComparisonPoint]) -> dict[str, Any]:
    """Return plain data for JSON: every point with its setting, and the best ones."""
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


def _run_money(forecast: Forecast) -> float:
    """Return the cost of the run; GPUs without a price are last."""
    run = forecast.run
    return math.inf if run is None or run.gpu_cost is None else run.money or 0.0


def _run_time_s(forecast: Forecast) -> float:
    return math.inf if forecast.run is None else forecast.run.time_s.value
