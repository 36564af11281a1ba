"""Measured effect of power limits: how much slower a program is under one, and what it draws.

Curves are kept in shares of the GPU's factory limit, so that one measured on a V100 serves a P100,
with its time relative to that without a limit. Measurements jitter: a lower limit never makes a
curve quicker or hungrier.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu, gpu_named

__all__ = ["CapCurves", "CapPoint", "Curve", "shipped_curve_names"]

Floats = NDArray[np.float64]
NEAREST = Path(__file__).with_name("nearest_curves.yaml")
WITHIN = 1e-6
"""Shares that differ by less are the same."""


class CapPoint(NamedTuple):
    """One measurement: time of any unit of work, and mean power of one GPU."""

    workload: str
    gpu: str
    batch: float
    cap_w: float
    time_s: float
    power_w: float


@dataclass(frozen=True, eq=False)
class Curve:
    """One program, ascending in `share` of the factory limit, which is 1.

    Attributes:
        stretch: time relative to that at the factory limit.
        power: mean, as a share of the factory limit.
        source: program, GPU and batch it was measured with.
    """

    share: Floats
    stretch: Floats
    power: Floats
    source: str

    def at(self, share: Floats) -> tuple[Floats, Floats]:
        """Stretch and power of limits; not a number below the lowest that was measured."""
        known = share >= self.share[0] - WITHIN
        return (
            np.where(known, np.interp(share, self.share, self.stretch), np.nan),
            np.where(known, np.interp(share, self.share, self.power), np.nan),
        )

    def under(self, share: Floats, full: Floats) -> tuple[Floats, Floats]:
        """The same for a program that draws `full` at the factory limit, all in shares of that.

        A limit cuts it as one that is as far below what the curve's own program draws. Where
        `full` is not a number, it draws what that one does.
        """
        ratio = np.where(np.isfinite(full), self.power[-1] / full, 1.0)
        stretch, power = self.at(np.minimum(share * ratio, 1.0))
        at_limit = self.at(np.minimum(ratio, 1.0))
        drawn = np.where(np.isfinite(full), full, self.power[-1])
        return stretch / at_limit[0], drawn * power / at_limit[1]


class CapCurves:
    """Curves of several programs, and which of them stands for which model.

    Args:
        points: measurements. A GPU's highest limit among them is taken for its factory's.
        source: where they come from, for people.
        nearest: model -> program whose curve it has, beside those that are shipped.
    """

    def __init__(
        self, points: Iterable[CapPoint], source: str, nearest: Mapping[str, str] | None = None
    ) -> None:
        self.source = source
        self._curves = _curves(list(points))
        if not self._curves:
            raise ConfigError(f"{source}: no measurement in it")
        self._nearest = {**shipped_curve_names(), **(nearest or {})}
        unknown = sorted(set((nearest or {}).values()) - set(self.workloads))
        if unknown:
            raise ConfigError(
                f"curve {unknown[0]}: not in {source}, which has {', '.join(self.workloads)}"
            )

    @property
    def workloads(self) -> tuple[str, ...]:
        """Programs that were measured."""
        return tuple(sorted({workload for workload, _, _ in self._curves}))

    def curve(self, model: str, gpu: Gpu, gpu_type: str, batch: float) -> Curve:
        """The curve of a model: its own or its nearest program's, GPU and batch as near as can be.

        A GPU without measurements has those of one with the same kind of memory, which decides
        how much of the limit is drawn at rest.

        Raises:
            ConfigError: no program is known to be like the model.
        """
        workload = model if model in self.workloads else self._nearest.get(model, "")
        if workload not in self.workloads:
            raise ConfigError(
                f"model {model}: no cap curve in {self.source}, which has "
                f"{', '.join(self.workloads)}; say which one it resembles: nearest: "
                f"{{{model}: {self.workloads[0]}}}"
            )
        measured = sorted({gpu for name, gpu, _ in self._curves if name == workload})
        at = _like(gpu, gpu_type, measured)
        batches = [each for name, where, each in self._curves if (name, where) == (workload, at)]
        near = min(batches, key=lambda each: (abs(np.log(each / batch)), each))
        return self._curves[workload, at, near]


def shipped_curve_names() -> dict[str, str]:
    """Models of the tables we read -> the program of the Zeus traces that is most like each."""
    import yaml

    found: dict[str, str] = yaml.safe_load(NEAREST.read_text(encoding="utf-8"))
    return found


def _like(gpu: Gpu, gpu_type: str, measured: list[str]) -> str:
    """That GPU, else the first with the same kind of memory, else the first."""
    for name in (gpu_type.lower(), gpu.name, gpu.name.partition("-")[0]):
        if name in measured:
            return name
    family = gpu.memory_type[:3]
    same = [name for name in measured if gpu_named(name).memory_type[:3] == family]
    return (same or measured)[0]


def _curves(points: list[CapPoint]) -> dict[tuple[str, str, float], Curve]:
    top_w: dict[str, float] = {}
    groups: dict[tuple[str, str, float], dict[float, list[CapPoint]]] = {}
    for point in points:
        top_w[point.gpu] = max(point.cap_w, top_w.get(point.gpu, 0.0))
        caps = groups.setdefault((point.workload, point.gpu, point.batch), {})
        caps.setdefault(point.cap_w, []).append(point)
    return {
        key: _curve(key, caps, top_w[key[1]])
        for key, caps in groups.items()
        if top_w[key[1]] in caps  # without a time at the limit there is nothing to compare with
    }


def _curve(
    key: tuple[str, str, float], caps: Mapping[float, list[CapPoint]], top_w: float
) -> Curve:
    limits = sorted(caps)
    time_s = np.array([np.mean([point.time_s for point in caps[cap]]) for cap in limits])
    power_w = np.array([np.mean([point.power_w for point in caps[cap]]) for cap in limits])
    workload, gpu, batch = key
    return Curve(
        share=np.array(limits) / top_w,
        stretch=np.maximum.accumulate((time_s / time_s[-1])[::-1])[::-1],
        power=np.minimum.accumulate((power_w / top_w)[::-1])[::-1],
        source=f"{workload} on {gpu}, batch {batch:g}",
    )
