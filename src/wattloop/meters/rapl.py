"""CPU and DRAM energy from the kernel's powercap tree (Intel RAPL; AMD since Linux 5.8)."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Scope
from wattloop.core.results import Missing
from wattloop.hardware.host import Host, NumberFile, read_text, read_whole
from wattloop.meters.base import Context, Meter, Reading

POWERCAP = "class/powercap"
MIRROR_LOOKS = 40
MIRROR_WAIT_S = 0.0005
"""Counters change every millisecond; one that does not in 20 ms tells nothing."""


class Zone:
    """One zone of the tree: its counter, its domain's name, and the reason if it cannot be read."""

    def __init__(self, directory: Path, name: str, scope: Scope, inside: str | None) -> None:
        self.directory = directory
        self.path = directory / "energy_uj"
        self.name = name
        self.scope = scope
        self.inside = inside
        self.refusal = NumberFile(self.path).refusal()
        """Why the counter cannot be read; empty when it can."""
        self.mirrors: list[str] = []
        """Zones of other dies that show this very counter and are left out."""

    @cached_property
    def range_uj(self) -> int | None:
        """The counter returns to zero after this many microjoules."""
        return read_whole(self.directory / "max_energy_range_uj")

    @cached_property
    def long_term_w(self) -> tuple[float | None, float | None]:
        """Maximum power and enforced limit of the long-term constraint, where there are any."""
        for prefix in self._constraints():
            if read_text(self.directory / f"{prefix}_name") == "long_term":
                enabled = read_text(self.directory / "enabled") != "0"
                return (
                    self._watts(f"{prefix}_max_power_uw"),
                    self._watts(f"{prefix}_power_limit_uw") if enabled else None,
                )
        return None, None

    @cached_property
    def highest_limit_w(self) -> float | None:
        """The highest power that any constraint of the zone names."""
        powers_w = [
            self._watts(f"{prefix}_{leaf}") or 0.0
            for prefix in self._constraints()
            for leaf in ("max_power_uw", "power_limit_uw")
        ]
        return max(powers_w, default=0.0) or None

    def _constraints(self) -> Iterator[str]:
        for name in _listed(self.directory):
            match = re.fullmatch(r"(constraint_\d+)_name", name)
            if match:
                yield match.group(1)

    def _watts(self, leaf: str) -> float | None:
        microwatts = read_whole(self.directory / leaf)
        return microwatts * 1e-6 if microwatts else None


def find_zones(host: Host) -> list[Zone]:
    """Every zone of the powercap tree, packages before what lies inside them.

    The same package may be offered by several control types (`intel-rapl` and
    `intel-rapl-mmio`), which count the same joules: the first readable one wins.
    """
    found: dict[str, Zone] = {}
    for zone in all_zones(host):
        rival = found.get(zone.name)
        if rival is None or (rival.refusal and not zone.refusal):
            found[zone.name] = zone
    return list(found.values())


def all_zones(host: Host) -> list[Zone]:
    """Every zone of every control type, those that count the same joules included."""
    directories = sorted(_zone_directories(host.sysfs / POWERCAP), key=_tree_order)
    return [_zone(directory) for directory in directories]


def without_mirrors(zones: Sequence[Zone], sleep: Callable[[float], None]) -> list[Zone]:
    """Return the zones without those of other dies that show an existing counter.

    On AMD processors of several dies (Zen 1 and 2) the kernel lists a package for each die, and
    all of them show the one counter of the socket. Machines without dies are not looked at.
    """
    kept: list[Zone] = []
    alike: dict[tuple[str, ...], list[Zone]] = {}
    replaced: dict[str, str] = {}
    for zone in zones:
        match = _DIE.fullmatch(zone.name)
        if match is not None and not zone.refusal:
            rivals = alike.setdefault(match.groups(default=""), [])
            original = next((z for z in rivals if _same_counter(z, zone, sleep)), None)
            if original is not None:
                original.mirrors.append(zone.directory.name)
                replaced[zone.name] = original.name
                continue
            rivals.append(zone)
        kept.append(zone)
    for zone in kept:
        zone.inside = replaced.get(zone.inside or "", zone.inside)
    return kept


_DIE = re.compile(r"(cpu|dram):(\d+)/die:\d+(/.+)?")


def _same_counter(first: Zone, second: Zone, sleep: Callable[[float], None]) -> bool:
    """Return True if both are equal, also after a change: two independent counters never are."""
    begin = _shared_value(first, second)
    if begin is None:
        return False
    for _ in range(MIRROR_LOOKS):
        sleep(MIRROR_WAIT_S)
        now = _shared_value(first, second)
        if now is None:
            return False
        if now not in (begin, 0):
            return True
    return False


def _shared_value(first: Zone, second: Zone) -> int | None:
    """Return the value of both, if it is the same; the first may change between two reads."""
    for _ in range(3):
        before, other, after = map(read_whole, (first.path, second.path, first.path))
        if before == after:
            return before if other == before else None
    return None


def _zone_directories(root: Path) -> list[Path]:
    """Energy zones, whether they lie flat, nested, or both through links; each one once."""
    found: dict[str, Path] = {}

    def walk(directory: Path, depth: int) -> None:
        for name in _listed(directory):
            child = directory / name
            if ":" not in name:
                if depth == 0:
                    walk(child, depth + 1)
            elif re.fullmatch(r"[\w-]+(:\d+)+", name) and name not in found:
                if _counts_energy(child):
                    found[name] = child
                walk(child, depth + 1)

    walk(root, 0)
    return list(found.values())


def _listed(directory: Path) -> list[str]:
    # Names with a colon first: the flat links are shorter paths to the same zones.
    try:
        return sorted(os.listdir(directory), key=lambda name: (":" not in name, name))  # noqa: PTH208 - half the cost of Path.iterdir, and only names are needed
    except OSError:
        return []


def _counts_energy(directory: Path) -> bool:
    """Zones of other control types (dtpm, idle injection) limit power and count nothing."""
    return any(
        os.path.lexists(directory / leaf) for leaf in ("energy_uj", "max_energy_range_uj")
    ) or not os.access(directory, os.X_OK)


def _tree_order(directory: Path) -> tuple[bool, list[int], str]:
    """`intel-rapl` before `intel-rapl-mmio`, package before its parts, in numeric order."""
    numbers = [int(n) for n in re.findall(r":(\d+)", directory.name)]
    return ("mmio" in directory.name, numbers, str(directory))


def _zone(directory: Path) -> Zone:
    label = read_text(directory / "name")
    if not label:
        # Its content is unknown, but its existence is reported.
        zone = Zone(directory, directory.name, Scope.OTHER, None)
        zone.refusal = zone.refusal or f"{directory / 'name'} is not readable"
        return zone
    socket = _socket(directory, label)
    if label == "psys":
        return Zone(directory, "psys", Scope.NODE, None)
    if label.startswith("package"):
        return Zone(directory, f"{socket}/package", Scope.CPU, None)
    if label == "dram":
        # DRAM hangs below the package in the tree, but its joules are not in the package's.
        return Zone(directory, f"dram:{socket.removeprefix('cpu:')}", Scope.DRAM, None)
    return Zone(directory, f"{socket}/{label}", Scope.CPU, f"{socket}/package")


def _socket(directory: Path, label: str) -> str:
    """`cpu:0`, or `cpu:0/die:1` where a package has several dies."""
    if not label.startswith("package"):
        parent = _parent(directory)
        if parent is not None:
            return parent
    match = re.fullmatch(r"package-(\d+)(?:-die-(\d+))?", label)
    if match is None:
        number = re.findall(r":(\d+)", directory.name)
        return f"cpu:{number[0] if number else 0}"
    package, die = match.groups()
    return f"cpu:{package}" if die is None else f"cpu:{package}/die:{die}"


def _parent(directory: Path) -> str | None:
    """Socket name of the package that holds zone `intel-rapl:P:Z`."""
    match = re.fullmatch(r"(.+:\d+):\d+", directory.name)
    if match is None:
        return None
    for candidate in (directory.parent, directory.parent / match.group(1)):
        label = read_text(candidate / "name") if candidate.name == match.group(1) else ""
        if label.startswith("package"):
            return _socket(candidate, label)
    return None


JOULES_PER_UNIT = 1e-6
UPDATE_PERIOD_S = 0.001
"""Intel documents about 1 ms between updates of the energy status registers."""
BURST = 2.0
"""No package draws more than this many times its highest power limit, not even for 1 ms."""
READ_PERMISSION_REMEDY = (
    "since CVE-2020-8694 only root may read it: run 'sudo chmod a+r {path}' "
    "(a udev rule keeps it after a reboot, see docs/meters/rapl.md)"
)


def detect(context: Context) -> Sequence["Rapl"]:
    """Find the powercap zones that can be read."""
    zones = find_zones(context.host)
    if not zones:
        raise MeterUnavailable(
            "rapl",
            f"no energy zone under {context.host.sysfs / POWERCAP}",
            "load it with 'sudo modprobe intel_rapl_msr'; virtual machines and most ARM "
            "machines have none",
            parts=("cpu",),
        )
    readable = [zone for zone in zones if not zone.refusal]
    if not readable:
        raise MeterUnavailable(
            "rapl", zones[0].refusal, _remedy(zones[0]), parts=tuple(zone.name for zone in zones)
        )
    readable = without_mirrors(readable, context.clock.sleep)
    return [Rapl(readable, refused=[zone for zone in zones if zone.refusal])]


def readable_names(host: Host) -> frozenset[str]:
    """Return names of the domains that `detect` would offer; other meters then leave them out."""
    return frozenset(zone.name for zone in find_zones(host) if not zone.refusal)


class Rapl(Meter):
    """Meter of `energy_uj` files that are kept open."""

    name: ClassVar[str] = "rapl"
    shared: ClassVar[bool] = True

    def __init__(self, zones: Sequence[Zone], refused: Sequence[Zone] = ()) -> None:
        self._files = [NumberFile(zone.path) for zone in zones]
        self._domains = tuple(_domain(zone) for zone in zones)
        self._refused = tuple(Missing(zone.name, zone.refusal, _remedy(zone)) for zone in refused)

    def read(self) -> Sequence[Reading]:
        return [_joules(file.read()) for file in self._files]

    def sample(self) -> list[bytes | float | Gap]:
        return [file.sample() for file in self._files]

    def decoded(self, sampled: list[bytes | float | Gap]) -> Sequence[Reading]:
        files = self._files
        return [_joules(files[i].decoded(text)) for i, text in enumerate(sampled)]

    def close(self) -> None:
        for file in self._files:
            file.close()


def _joules(microjoules: float | Gap) -> Reading:
    return microjoules if isinstance(microjoules, Gap) else microjoules * JOULES_PER_UNIT


def _remedy(zone: Zone) -> str:
    denied = zone.refusal.endswith("permission denied")
    return READ_PERMISSION_REMEDY.format(path=zone.path) if denied else ""


def _domain(zone: Zone) -> Domain:
    tdp_w, tdp_note = _design_power(zone)
    return Domain(
        name=zone.name,
        kind=DomainKind.COUNTER,
        scope=zone.scope,
        source=" = ".join((f"powercap {zone.directory.name}", *zone.mirrors)),
        inside=zone.inside,
        # The register counts in units of 2^-14 J (61 uJ) or 15.3 uJ; the file shows microjoules.
        resolution=61e-6,
        update_period_s=UPDATE_PERIOD_S,
        wrap_j=zone.range_uj * JOULES_PER_UNIT if zone.range_uj else None,
        read_cost_s=2e-6,
        max_power_w=zone.highest_limit_w * BURST if zone.highest_limit_w else None,
        tdp_w=tdp_w,
        tdp_note=tdp_note,
    )


def _design_power(zone: Zone) -> tuple[float | None, str]:
    """Return the design power of a zone, or the lower limit that is enforced on it."""
    maximum_w, limit_w = zone.long_term_w
    if maximum_w is None:
        return None, ""
    if limit_w is not None and limit_w < maximum_w:
        return limit_w, f"enforced RAPL limit {limit_w:g} W of {maximum_w:g} W"
    return maximum_w, "RAPL maximum power (TDP)"
