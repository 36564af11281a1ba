"""Measured cap curves: effect of power limits on time and power, read from files."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.hardware.gpus import Gpu, gpu_named
from wattloop.schedule.estimates.throughputs import CsvFile, read_rows

# Curves use shares of the GPU's factory limit and time relative to that at the factory limit, so
# that a curve measured on a V100 can be applied to a P100. Measurements jitter, so curves are made
# monotonic: a lower limit never takes less time or more power.

Floats = NDArray[np.float64]
NEAREST = Path(__file__).with_name("nearest_curves.yaml")
WITHIN = 1e-6
"""Shares that differ by less are equal."""


class CapPoint(NamedTuple):
    """Measurement of a cap: time of any unit of work, and mean power of one GPU."""

    workload: str
    gpu: str
    batch: float
    cap_w: float
    time_s: float
    power_w: float


@dataclass(frozen=True, eq=False)
class MeasuredCapCurve:
    """Cap curve of one program, ascending in `share` of the factory limit, which is 1.

    Attributes:
        stretch: time relative to that at the factory limit.
        power: mean power as a share of the factory limit.
    """

    share: Floats
    stretch: Floats
    power: Floats
    source: str

    def at(self, share: Floats) -> tuple[Floats, Floats]:
        """Return stretch and power at limits; NaN below the lowest measured limit."""
        known = share >= self.share[0] - WITHIN
        return (
            np.where(known, np.interp(share, self.share, self.stretch), np.nan),
            np.where(known, np.interp(share, self.share, self.power), np.nan),
        )

    def under(self, share: Floats, full: Floats) -> tuple[Floats, Floats]:
        """Return stretch and power for a program that draws `full` at the factory limit.

        All values are shares of the factory limit. A limit affects the program like a limit that is
        as far below the power of the curve's own program. If `full` is NaN, that program's
        power is assumed.
        """
        ratio = np.where(np.isfinite(full), self.power[-1] / full, 1.0)
        stretch, power = self.at(np.minimum(share * ratio, 1.0))
        at_limit = self.at(np.minimum(ratio, 1.0))
        drawn = np.where(np.isfinite(full), full, self.power[-1])
        return stretch / at_limit[0], drawn * power / at_limit[1]


class CapCurves:
    """Cap curves of several programs, and the program that represents each model.

    Args:
        points: measurements. A GPU's highest limit among them counts as its factory limit.
        nearest: model -> program whose curve is used, in addition to the shipped ones.
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
        return tuple(sorted({workload for workload, _, _ in self._curves}))

    def curve(self, model: str, gpu: Gpu, gpu_type: str, batch: float) -> MeasuredCapCurve:
        """Return the curve of a model or its nearest program, with the nearest GPU and batch.

        A GPU without measurements uses those of a GPU with the same kind of memory, which
        determines the idle share of the limit.
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
    """Return model of a known table -> most similar program of the Zeus traces."""
    import yaml

    found: dict[str, str] = yaml.safe_load(NEAREST.read_text(encoding="utf-8"))
    return found


def _like(gpu: Gpu, gpu_type: str, measured: list[str]) -> str:
    """Return the same GPU, else the first with the same kind of memory, else the first."""
    for name in (gpu_type.lower(), gpu.name, gpu.name.partition("-")[0]):
        if name in measured:
            return name
    family = gpu.memory_type[:3]
    same = [name for name in measured if gpu_named(name).memory_type[:3] == family]
    return (same or measured)[0]


def _curves(points: list[CapPoint]) -> dict[tuple[str, str, float], MeasuredCapCurve]:
    top_w: dict[str, float] = {}
    groups: dict[tuple[str, str, float], dict[float, list[CapPoint]]] = {}
    for point in points:
        top_w[point.gpu] = max(point.cap_w, top_w.get(point.gpu, 0.0))
        caps = groups.setdefault((point.workload, point.gpu, point.batch), {})
        caps.setdefault(point.cap_w, []).append(point)
    return {
        key: _curve(key, caps, top_w[key[1]])
        for key, caps in groups.items()
        if top_w[key[1]] in caps  # the time at the limit is the reference
    }


def _curve(
    key: tuple[str, str, float], caps: Mapping[float, list[CapPoint]], top_w: float
) -> MeasuredCapCurve:
    limits = sorted(caps)
    time_s = np.array([np.mean([point.time_s for point in caps[cap]]) for cap in limits])
    power_w = np.array([np.mean([point.power_w for point in caps[cap]]) for cap in limits])
    workload, gpu, batch = key
    return MeasuredCapCurve(
        share=np.array(limits) / top_w,
        stretch=np.maximum.accumulate((time_s / time_s[-1])[::-1])[::-1],
        power=np.minimum.accumulate((power_w / top_w)[::-1])[::-1],
        source=f"{workload} on {gpu}, batch {batch:g}",
    )


OURS = ("model", "batch", "cap_w", "time_s", "power_w")
"""Columns of Wattloop's format, in addition to `gpu`."""
ZEUS = ("network", "batch_size", "power_limit", "time_per_epoch", "average_power")
"""The same columns in Zeus traces."""
ZEUS_NAME = re.compile(r"power_(\w+)\.csv")


def load_cap_curves(names: Sequence[str], nearest: Mapping[str, str] | None = None) -> CapCurves:
    """Load curves from files, or from folders with files `power_GPU.csv` (docs/oracles.md)."""
    points: list[CapPoint] = []
    for path in curve_files(names):
        points += _points(read_rows(path))
    return CapCurves(points, ", ".join(names), nearest)


def curve_files(names: Sequence[str]) -> list[str]:
    """Expand folders to their files."""
    found: list[str] = []
    for name in names:
        folder = user_path(name)
        if not folder.is_dir():
            found.append(name)
            continue
        inside = sorted(str(each) for each in folder.iterdir() if ZEUS_NAME.fullmatch(each.name))
        if not inside:
            raise ConfigError(f"{name}: no file in it is called power_GPU.csv")
        found += inside
    return found


def _points(file: CsvFile) -> list[CapPoint]:
    is_zeus = file.has(ZEUS)
    missing = [each for each in ("model", "gpu", *OURS[1:]) if each not in file.columns]
    if missing and not is_zeus:
        raise ConfigError(
            f"{file.path}:1: cap curves need the columns model, gpu, {', '.join(OURS[1:])}; "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing (docs/oracles.md)"
        )
    named = ZEUS_NAME.fullmatch(Path(file.path).name)
    if is_zeus and named is None:
        raise ConfigError(
            f"{file.path}: the GPU of a Zeus trace is in its name; call it power_v100.csv"
        )
    model, batch, cap_w, time_s, power_w = ZEUS if is_zeus else OURS
    return [
        CapPoint(
            row.text(model),
            (named[1] if is_zeus and named else row.text("gpu")).lower(),
            row.number(batch, least=1e-9),
            row.number(cap_w, least=1.0),
            row.number(time_s, least=1e-12),
            row.number(power_w, least=1e-9),
        )
        for row in file
    ]
