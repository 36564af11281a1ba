"""Published measurements of processors, and what the estimate's constants are when read off them.

    python benchmarks/published_cpu_power.py

`published_cpu_power.csv` has one row per measured load level, watts of one package. The two
processors of the reference file that the estimate is judged by are not among them. `mhz` is the
clock of busy cores: read at the time, or the all-core clock that the maker or the cloud states.
Sources are in docs/adr/0022-the-estimate-learns-from-published-processors.md.
"""

import csv
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from wattloop.hardware import cpu_power
from wattloop.hardware.cpu_power import Constants, StatedError
from wattloop.hardware.cpus import Processor

TARGET_COVERAGE = 0.9
TABLE = Path(__file__).with_suffix(".csv")
MIDDLE_OF_IDLE, MIDDLE_OF_LOAD = 0.1, 0.9
"""Shares of TDP that idle and fully loaded packages draw, roughly: where the interval is pinned."""


@dataclass(frozen=True)
class Level:
    """One load level: how busy, and what the package drew."""

    utilisation: float
    activity: float
    clock_ratio: float | None
    package_w: float


@dataclass(frozen=True)
class Published:
    """One processor and its levels, from least busy to most."""

    processor: Processor
    levels: tuple[Level, ...]

    @property
    def idle_share(self) -> float | None:
        """Of TDP; None where nobody wrote it down."""
        first = self.levels[0]
        return first.package_w / self.processor.tdp_w if first.utilisation == 0 else None

    @property
    def busiest(self) -> Level | None:
        """None where only idle was published."""
        return self.levels[-1] if self.levels[-1].utilisation else None


def published() -> list[Published]:
    """The table, by processor."""
    by_name: dict[str, list[dict[str, str]]] = {}
    with TABLE.open(newline="", encoding="utf-8") as file:
        for record in csv.DictReader(file):
            by_name.setdefault(record["processor"], []).append(record)
    return [_published(name, records) for name, records in by_name.items()]


def constants(parts: Iterable[Published]) -> Constants:
    """Means over processors; a family nobody measured gets the mean of all."""
    parts = list(parts)
    idle = {
        family: _mean_or(shares, otherwise=_mean(p.idle_share for p in parts if p.idle_share))
        for family in cpu_power.LIMIT_SHARE
        for shares in [[p.idle_share for p in parts if p.idle_share and _family(p) == family]]
    }
    wake_share = _mean(_wake_share(p) for p in parts if len(p.levels) >= 4)
    loaded = [(p, level) for p in parts if (level := p.busiest) is not None]
    return Constants(
        idle_share=idle,
        wake_share=wake_share,
        load_share=_mean(_load_share(p, level, idle, wake_share) for p, level in loaded),
        clock_ratio=_mean(
            level.clock_ratio or 1.0 for _, level in loaded if level.utilisation == 1
        ),
    )


@dataclass(frozen=True)
class Tried:
    """A level of a processor, estimated with constants of all the others; shares of TDP."""

    part: Published
    level: Level
    estimate: float
    truth: float


def leave_one_out(*, with_clock: bool) -> list[Tried]:
    """Every level, by constants that its own processor had no part in."""
    parts = published()
    tried = []
    for part in parts:
        others = constants(p for p in parts if p is not part)
        tdp_w = part.processor.tdp_w
        for level in part.levels:
            ratio = level.clock_ratio if with_clock else None
            watts = cpu_power.package_power_w(part.processor, level.activity, ratio, others)
            tried.append(Tried(part, level, watts / tdp_w, level.package_w / tdp_w))
    return tried


def interval(tried: list[Tried]) -> StatedError:
    """The half-width that nine in ten further processors should lie in, idle and loaded.

    One error per processor, idle and at its busiest; each half-width is Student's t times their
    root mean square; the line between the two gives the relative and the constant part, and the
    relative one is widened until nine in ten levels lie within.
    """
    idle = [t.truth - t.estimate for t in tried if t.level.utilisation == 0]
    load = [t.truth / t.estimate - 1 for t in tried if t.level is t.part.busiest]
    idle_half = student_t(len(idle) - 1) * _rms(idle)
    load_half = student_t(len(load) - 1) * _rms(load) * MIDDLE_OF_LOAD
    relative = max(0.0, (load_half - idle_half) / (MIDDLE_OF_LOAD - MIDDLE_OF_IDLE))
    of_tdp = max(0.0, idle_half - relative * MIDDLE_OF_IDLE)
    while coverage(tried, (relative, of_tdp)) < TARGET_COVERAGE:
        relative += 0.01
    return relative, of_tdp


def coverage(tried: list[Tried], stated: StatedError) -> float:
    """Mean over processors of how often a measured level lies within the stated error."""
    relative, of_tdp = stated
    hits: dict[str, list[bool]] = {}
    for t in tried:
        hit = abs(t.estimate - t.truth) <= relative * t.estimate + of_tdp
        hits.setdefault(t.part.processor.name, []).append(hit)
    return _mean(_mean(values) for values in hits.values())


def student_t(degrees: int) -> float:
    """The two-sided 90% quantile (Cornish and Fisher's expansion; 0.5% off at 5 degrees)."""
    z = 1.6449
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def mean_error(tried: list[Tried], estimate: Callable[[Tried], float]) -> float:
    """Mean over processors of their mean absolute error, as a share of TDP."""
    by_part: dict[str, list[float]] = {}
    for t in tried:
        by_part.setdefault(t.part.processor.name, []).append(abs(estimate(t) - t.truth))
    return _mean(_mean(errors) for errors in by_part.values())


def main() -> int:
    parts = published()
    print(f"{len(parts)} processors, {sum(len(p.levels) for p in parts)} levels")
    print(constants(parts))
    for with_clock in (True, False):
        tried = leave_one_out(with_clock=with_clock)
        error = 100 * mean_error(tried, lambda t: t.estimate)
        print(f"clock {'known' if with_clock else 'unknown'}: {error:.1f}% of TDP", interval(tried))
    return 0


def _published(name: str, records: list[dict[str, str]]) -> Published:
    first = records[0]
    processor = Processor(
        name=name,
        cores=int(first["cores"]),
        threads=int(first["threads"]),
        tdp_w=float(first["tdp_w"]),
        base_mhz=float(first["base_mhz"]),
        kind=first["kind"],
    )
    return Published(processor, tuple(_level(processor, record) for record in records))


def _level(processor: Processor, record: dict[str, str]) -> Level:
    utilisation = float(record["utilisation"])
    busy = int(record["busy_threads"])
    per_core = processor.threads // processor.cores
    all_threads = busy == processor.threads
    cores = [[utilisation] * per_core] * processor.cores
    if not all_threads:
        alone = [utilisation] + [0.0] * (per_core - 1)
        cores = [alone] * busy + [[0.0] * per_core] * (processor.cores - busy)
    mhz = record["mhz"]
    return Level(
        utilisation=utilisation * busy / processor.threads,
        activity=cpu_power.core_activity(cores),
        clock_ratio=float(mhz) / (processor.base_mhz or 1.0) if mhz else None,
        package_w=float(record["package_w"]),
    )


def _family(part: Published) -> str:
    return cpu_power.family(part.processor)


def _wake_share(part: Published) -> float:
    """Where the line through the lightest and the heaviest load meets no load, above idle."""
    idle, light, heavy = part.levels[0], part.levels[1], part.levels[-1]
    slope = (heavy.package_w - light.package_w) / (heavy.activity - light.activity)
    return (light.package_w - idle.package_w - slope * light.activity) / part.processor.tdp_w


def _load_share(part: Published, level: Level, idle: dict[str, float], wake_share: float) -> float:
    tdp_w = part.processor.tdp_w
    idle_w = (part.idle_share or idle[_family(part)]) * tdp_w
    gained_w = level.package_w - idle_w - wake_share * tdp_w
    clock = (level.clock_ratio or 1.0) ** cpu_power.CLOCK_EXPONENT
    return gained_w / ((tdp_w - idle_w) * level.activity * clock)


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def _mean_or(values: list[float], *, otherwise: float) -> float:
    return _mean(values) if values else otherwise


def _rms(values: list[float]) -> float:
    return math.sqrt(_mean(v * v for v in values))


if __name__ == "__main__":
    sys.exit(main())
