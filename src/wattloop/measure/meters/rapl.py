"""CPU and DRAM energy from the kernel's powercap tree (Intel RAPL; AMD since Linux 5.8)."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Scope
from wattloop.hardware.host import Host
from wattloop.measure.meter import Context, Meter, Reading

__all__ = ["Rapl", "detect"]

POWERCAP = "class/powercap"
JOULES_PER_UNIT = 1e-6
UPDATE_PERIOD_S = 0.001
"""Intel documents about 1 ms between updates of the energy status registers."""
READ_PERMISSION_REMEDY = (
    "since CVE-2020-8694 only root may read it: run 'sudo chmod a+r {path}' "
    "(a udev rule keeps it after a reboot, see docs/meters/rapl.md)"
)


def detect(context: Context) -> Sequence["Rapl"]:
    """The powercap zones that can be read."""
    zones = list(find_zones(context.host))
    if not zones:
        raise MeterUnavailable(
            "rapl",
            f"no energy zone under {context.host.sysfs / POWERCAP}",
            "load it with 'sudo modprobe intel_rapl_msr'; virtual machines and most ARM "
            "machines have none",
            parts=("cpu",),
        )
    readable = [zone for zone in zones if os.access(zone.path, os.R_OK)]
    if not readable:
        raise MeterUnavailable(
            "rapl",
            f"{zones[0].path} is not readable",
            READ_PERMISSION_REMEDY.format(path=zones[0].path),
            parts=tuple(zone.name for zone in zones),
        )
    return [Rapl(readable)]


class Zone:
    """One `energy_uj` file of the tree: its path, domain name and range."""

    __slots__ = ("directory", "inside", "name", "path", "scope", "wrap_j")

    def __init__(self, directory: Path, name: str, scope: Scope, inside: str | None) -> None:
        self.directory = directory
        self.path = directory / "energy_uj"
        self.name = name
        self.scope = scope
        self.inside = inside
        self.wrap_j = _range_j(directory)


def find_zones(host: Host) -> Iterator[Zone]:
    """Every zone of the powercap tree, packages before what lies inside them.

    The same package may be offered by several control types (`intel-rapl` and
    `intel-rapl-mmio`); the first one wins, since both count the same joules.
    """
    seen: set[str] = set()
    for directory in sorted(_zone_directories(host.sysfs / POWERCAP), key=_tree_order):
        zone = _zone(directory)
        if zone is not None and zone.name not in seen:
            seen.add(zone.name)
            yield zone


class Rapl(Meter):
    """Reads `energy_uj` files that are kept open."""

    name: ClassVar[str] = "rapl"

    def __init__(self, zones: Sequence[Zone]) -> None:
        self._zones = tuple(zones)
        self._files = [_CounterFile(zone.path) for zone in zones]
        self._domains = tuple(_domain(zone) for zone in zones)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """Packages, cores, uncore, DRAM and psys, as far as the processor has them."""
        return self._domains

    def read(self) -> Sequence[Reading]:
        """Joules of each zone."""
        return [file.read_j() for file in self._files]

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


class _CounterFile:
    """An `energy_uj` file kept open: reading it again is one system call."""

    __slots__ = ("_fd", "_last", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._last = b""

    def read_j(self) -> Reading:
        try:
            data = os.pread(self._fd, 24, 0) if self._fd >= 0 else b""
            # An unchanged value may mean that the file was replaced under us.
            if data == self._last and (self._fd < 0 or os.fstat(self._fd).st_nlink == 0):
                self._reopen()
                data = os.pread(self._fd, 24, 0)
            if not data.strip():
                data = os.pread(self._fd, 24, 0)
            self._last = data
            return int(data) * JOULES_PER_UNIT
        except PermissionError:
            self.close()
            return Gap(f"{self._path}: permission denied")
        except FileNotFoundError:
            self.close()
            return Gap(f"{self._path} is gone", lost=True)
        except OSError as error:
            self.close()
            return Gap(f"{self._path}: {error.strerror}")
        except ValueError:
            return Gap(f"{self._path} holds no number")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _reopen(self) -> None:
        self.close()
        self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)


def _zone_directories(root: Path) -> Iterator[Path]:
    """Zones are directories with an `energy_uj`, whether flat (links) or nested."""
    for pattern in ("*:*", "*/*:*", "*/*:*/*:*:*"):
        for directory in root.glob(pattern):
            if (directory / "energy_uj").exists():
                yield directory


def _tree_order(directory: Path) -> tuple[bool, list[int], str]:
    """`intel-rapl` before `intel-rapl-mmio`, package before its parts, in numeric order."""
    numbers = [int(n) for n in re.findall(r":(\d+)", directory.name)]
    return ("mmio" in directory.name, numbers, str(directory))


def _zone(directory: Path) -> Zone | None:
    try:
        label = (directory / "name").read_text().strip()
    except OSError:
        return None
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
        if candidate.name == match.group(1):
            try:
                label = (candidate / "name").read_text().strip()
            except OSError:
                continue
            return _socket(candidate, label) if label.startswith("package") else None
    return None


def _range_j(directory: Path) -> float | None:
    try:
        return int((directory / "max_energy_range_uj").read_text()) * JOULES_PER_UNIT
    except (OSError, ValueError):
        return None


def _domain(zone: Zone) -> Domain:
    return Domain(
        name=zone.name,
        kind=DomainKind.COUNTER,
        scope=zone.scope,
        source=f"powercap {zone.directory.name}",
        inside=zone.inside,
        # The register counts in units of 2^-14 J (61 uJ) or 15.3 uJ; the file shows microjoules.
        resolution=61e-6,
        update_period_s=UPDATE_PERIOD_S,
        wrap_j=zone.wrap_j,
        read_cost_s=2e-6,
    )
