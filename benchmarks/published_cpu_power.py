"""Published measurements of processors, and the load curves of the estimate derived from them.

    python benchmarks/published_cpu_power.py

Two tables, with sources in docs/adr/0022-the-estimate-learns-from-published-processors.md:

- `published_cpu_power.csv`: package watts that were read from RAPL or the maker's counters, one row
  per load level. `mhz` is the clock of busy cores.
- `specpower_servers.csv`: watts at the wall of whole servers, SPECpower_ssj2008, active idle and
  10% to 100%; medians over the servers of one processor and number of chips. Servers with less
  than 100 W of TDP are not in it: most of their power is not the processor's.

Neither has a processor of the reference file that the estimate is judged by. Each family (a
generation of one maker) is judged by an estimate from all others.
"""

import csv
import functools
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from wattloop.hardware import cpus
from wattloop.hardware.cpus import LoadCurve, Processor, StatedError

HERE = Path(__file__).parent
PACKAGES = HERE / "published_cpu_power.csv"
SERVERS = HERE / "specpower_servers.csv"
SPEC = "specpower"
TARGET_COVERAGE = 0.9
CURVE_LEVELS = 4
"""A processor with fewer levels tells something of a curve and does not judge one."""

PACKAGE_WEIGHT = 0.5
"""Of readings of packages against what is worked out from the walls of servers."""


class Wall(NamedTuple):
    """From the wall of a server to a package: lost shares, and watts of other parts.

    Memory draws `memory_w_per_gb` idle and twice that at full load.
    """

    supply: float = 0.92
    fans: float = 0.05
    regulators: float = 0.10
    server_w: float = 10.0
    chip_w: float = 5.0
    memory_w_per_gb: float = 0.10


OTHER_WALLS = {
    "other parts 5 W and 2 W a chip": Wall(server_w=5.0, chip_w=2.0),
    "other parts 20 W and 8 W a chip": Wall(server_w=20.0, chip_w=8.0),
    "memory 0.15 to 0.30 W per GB": Wall(memory_w_per_gb=0.15),
    "regulators lose 5%": Wall(regulators=0.05),
    "regulators lose 15%": Wall(regulators=0.15),
    "fans take 10%": Wall(fans=0.10),
    "supply 88%": Wall(supply=0.88),
}
"""What else could be assumed, to see what hangs on it."""


@dataclass(frozen=True)
class Level:
    """One load level: its utilisation, and the package's power as a share of its TDP."""

    utilisation: float
    activity: float
    clock_ratio: float | None
    share: float


@dataclass(frozen=True)
class Published:
    """One processor of one source and its levels, from least busy to most."""

    processor: Processor
    family: str
    source: str
    servers: int
    levels: tuple[Level, ...]

    @property
    def kind(self) -> str:
        return cpus.family(self.processor)

    def share_at(self, utilisation: float) -> float | None:
        """Return the share of TDP with all threads at this utilisation; None if unpublished."""
        for level in self.levels:
            even = cpus.even_load(level.activity, smt=_smt(self.processor))
            if abs(level.utilisation - utilisation) < 1e-6 and abs(even - utilisation) < 1e-6:
                return level.share
        return None


def published(wall: Wall = Wall()) -> list[Published]:  # noqa: B008 - a constant
    """Read both tables."""
    by_name: dict[str, list[dict[str, str]]] = {}
    for record in _records(PACKAGES):
        by_name.setdefault(record["processor"], []).append(record)
    found = [_package(records) for records in by_name.values()]
    return found + [_server(record, wall) for record in _records(SERVERS)]


Curves = Mapping[str, LoadCurve]


def curves(parts: Sequence[Published]) -> Curves:
    """Load curve of each kind: mean over families, each the mean over its sources.

    Idle is a mean of its own, since more is published of it; what load adds to idle is the mean of
    that. A kind of which a level is not published gets the shape of the servers.
    """
    adds = {kind: _adds(parts, kind) for kind in cpus.PUBLISHED}
    found = {}
    for kind in cpus.PUBLISHED:
        idle = _family_mean(parts, kind, lambda part: part.share_at(0.0))
        if idle is None:
            idle = found["server"].idle
        tenth, half, full = adds[kind]
        if full is None:
            level = _family_mean(parts, kind, lambda part: part.share_at(1.0))
            full = (found["server"].full if level is None else level) - idle
        shape = adds["server"]
        assert shape[0] is not None and shape[1] is not None and shape[2] is not None
        tenth = shape[0] / shape[2] * full if tenth is None else tenth
        half = shape[1] / shape[2] * full if half is None else half
        found[kind] = LoadCurve(idle, idle + tenth, idle + half, idle + full)
    return found


@dataclass(frozen=True)
class Tried:
    """A level of a processor, estimated from other families; shares of TDP."""

    part: Published
    level: Level
    estimate: float

    @property
    def codecarbon(self) -> float:
        """Return its general law: TDP x load, at least 10% of TDP."""
        return max(0.1, self.level.utilisation)


def leave_family_out(parts: Sequence[Published], *, with_clock: bool = True) -> list[Tried]:
    """Estimate every level by curves without its own family."""
    tried: list[Tried] = []
    for family in dict.fromkeys(part.family for part in parts):
        others = curves([part for part in parts if part.family != family])
        for part in parts:
            if part.family != family:
                continue
            for level in part.levels:
                ratio = level.clock_ratio if with_clock else None
                watts = cpus.package_power_w(part.processor, level.activity, ratio, others)
                tried.append(Tried(part, level, watts / part.processor.tdp_w))
    return tried


def judged(tried: Iterable[Tried]) -> list[Tried]:
    """Return those of processors with a whole curve."""
    return [t for t in tried if len(t.part.levels) >= CURVE_LEVELS]


def by_family(tried: Iterable[Tried]) -> dict[str, list[Tried]]:
    """Return levels by the family that was left out."""
    found: dict[str, list[Tried]] = {}
    for t in tried:
        found.setdefault(t.part.family, []).append(t)
    return found


def mean_error(tried: Sequence[Tried], law: Callable[[Tried], float]) -> float:
    """Mean over processors and sources of their mean absolute error, as a share of TDP."""
    errors: dict[tuple[str, str], list[float]] = {}
    for t in tried:
        key = (t.part.source, t.part.processor.name)
        errors.setdefault(key, []).append(abs(law(t) - t.level.share))
    return statistics.mean(statistics.mean(each) for each in errors.values())


def coverage(tried: Sequence[Tried], stated: StatedError) -> float:
    """Mean over processors of how often a published level lies within the stated error."""
    relative, of_tdp = stated
    hits: dict[tuple[str, str], list[bool]] = {}
    for t in tried:
        hit = abs(t.estimate - t.level.share) <= relative * t.estimate + of_tdp
        hits.setdefault((t.part.source, t.part.processor.name), []).append(hit)
    return statistics.mean(statistics.mean(each) for each in hits.values())


def interval(tried: Sequence[Tried]) -> StatedError:
    """The narrowest relative and constant half-width that hold 90% of the levels left out.

    Families and sources count alike, however many processors are published of them.
    """
    weights = _weights(tried)
    best, width = (1.0, 1.0), float("inf")
    for relative in (step / 100 for step in range(0, 61, 2)):
        excess = sorted(
            (abs(t.estimate - t.level.share) - relative * t.estimate, weight)
            for t, weight in zip(tried, weights, strict=True)
        )
        left, of_tdp = TARGET_COVERAGE, 0.0
        for value, weight in excess:
            left -= weight
            if left <= 0:
                of_tdp = max(0.02, value)
                break
        mean = of_tdp + relative * sum(
            weight * t.estimate for t, weight in zip(tried, weights, strict=True)
        )
        if mean < width:
            best, width = (relative, of_tdp), mean
    return best


def unseen_coverage(parts: Sequence[Published], *, with_clock: bool) -> dict[str, float]:
    """Coverage of each family by intervals that were made without it, as its curve was."""
    blind = judged(leave_family_out(parts, with_clock=False))
    seen = judged(leave_family_out(parts)) if with_clock else blind
    found = {}
    for family, own in by_family(seen).items():
        # AMD's servers have the wider interval in any case, see `cpu_power.estimate_error`.
        narrow = own[0].part.kind != "amd server"
        others = [t for t in (seen if narrow else blind) if t.part.family != family]
        found[family] = coverage(own, interval(others))
    return found


def main() -> int:
    parts = published()
    print(f"{len(parts)} processors, {sum(part.servers for part in parts)} machines")
    for kind, curve in curves(parts).items():
        print(kind, tuple(round(value, 3) for value in curve))
    for with_clock in (True, False):
        tried = judged(leave_family_out(parts, with_clock=with_clock))
        stated = tuple(round(value, 3) for value in interval(tried))
        print(f"clock {'known' if with_clock else 'unknown'}: interval", stated)
        covered = unseen_coverage(parts, with_clock=with_clock)
        for family, own in by_family(tried).items():
            ours = 100 * mean_error(own, lambda t: t.estimate)
            codecarbon = 100 * mean_error(own, lambda t: t.codecarbon)
            print(f"{family}: {ours:.1f}, CodeCarbon {codecarbon:.1f}, {covered[family]:.0%}")
        print(f"unseen families: {statistics.mean(covered.values()):.0%} covered")
    return 0


def _records(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _package(records: list[dict[str, str]]) -> Published:
    first = records[0]
    processor = _processor(first, first["kind"])
    levels = tuple(_level(processor, record) for record in records)
    return Published(processor, first["family"], first["source"], 1, levels)


def _server(record: dict[str, str], wall: Wall) -> Published:
    processor = _processor(record, "server")
    chips, memory_gb = int(record["chips"]), float(record["memory_gb"])
    levels = []
    for percent in range(0, 101, 10):
        load = percent / 100
        inside_w = wall.supply * (1 - wall.fans) * float(record[f"w{percent}"])
        memory_w = memory_gb * wall.memory_w_per_gb * (1 + load)
        package_w = (inside_w - wall.server_w - wall.chip_w * chips - memory_w) / chips
        share = max(0.0, (1 - wall.regulators) * package_w / processor.tdp_w)
        levels.append(Level(load, _even_activity(processor, load), None, share))
    return Published(
        processor, record["family"], f"{SPEC} x{chips}", int(record["servers"]), tuple(levels)
    )


def _processor(record: dict[str, str], kind: str) -> Processor:
    return Processor(
        name=record["processor"],
        cores=int(record["cores"]),
        threads=int(record["threads"]),
        tdp_w=float(record["tdp_w"]),
        base_mhz=float(record["base_mhz"]),
        kind=kind,
    )


def _level(processor: Processor, record: dict[str, str]) -> Level:
    utilisation = float(record["utilisation"])
    busy = int(record["busy_threads"])
    activity = _even_activity(processor, utilisation)
    if busy != processor.threads:
        per_core = processor.threads // processor.cores
        alone = [utilisation] + [0.0] * (per_core - 1)
        cores = [alone] * busy + [[0.0] * per_core] * (processor.cores - busy)
        activity = cpus.core_activity(cores)
    mhz = record["mhz"]
    return Level(
        utilisation=utilisation * busy / processor.threads,
        activity=activity,
        clock_ratio=float(mhz) / (processor.base_mhz or 1.0) if mhz else None,
        share=float(record["package_w"]) / processor.tdp_w,
    )


def _even_activity(processor: Processor, load: float) -> float:
    return cpus.core_activity([[load] * (processor.threads // processor.cores)])


def _smt(processor: Processor) -> bool:
    return processor.threads > processor.cores


def _adds(parts: Sequence[Published], kind: str) -> list[float | None]:
    """Return the additional power of 10, 50 and 100% load above idle at the base clock."""
    return [
        _family_mean(parts, kind, functools.partial(_above_idle, load=load))
        for load in (0.1, 0.5, 1.0)
    ]


def _above_idle(part: Published, load: float) -> float | None:
    idle, busy = part.share_at(0.0), part.share_at(load)
    if idle is None or busy is None:
        return None
    tenth, half, full = (part.share_at(each) or busy for each in (0.1, 0.5, 1.0))
    start = LoadCurve(idle, tenth, half, full).start if len(part.levels) >= CURVE_LEVELS else idle
    ratio = next(v.clock_ratio for v in part.levels if abs(v.utilisation - load) < 1e-6)
    return start - idle + (busy - start) / cpus.clock_factor(part.kind, ratio)


def _family_mean(
    parts: Sequence[Published], kind: str, value_of: Callable[[Published], float | None]
) -> float | None:
    """Of package readings and of servers' walls, each a mean over families, weighed together."""
    values: dict[bool, dict[str, list[float]]] = {}
    for part in parts:
        value = value_of(part) if part.kind == kind else None
        if value is not None:
            families = values.setdefault(part.source.startswith(SPEC), {})
            families.setdefault(part.family, []).append(value)
    means = {
        at_wall: statistics.mean(statistics.mean(each) for each in families.values())
        for at_wall, families in values.items()
    }
    if len(means) == 2:
        return PACKAGE_WEIGHT * means[False] + (1 - PACKAGE_WEIGHT) * means[True]
    return next(iter(means.values()), None)


def _weights(tried: Sequence[Tried]) -> list[float]:
    """Each family counts once, each of its sources alike, each level of a source alike."""
    groups: dict[str, dict[bool, int]] = {}
    for t in tried:
        sources = groups.setdefault(t.part.family, {})
        key = t.part.source.startswith(SPEC)
        sources[key] = sources.get(key, 0) + 1
    return [
        1
        / len(groups)
        / len(groups[t.part.family])
        / groups[t.part.family][t.part.source.startswith(SPEC)]
        for t in tried
    ]


if __name__ == "__main__":
    sys.exit(main())
