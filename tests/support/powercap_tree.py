"""Test double of the powercap sysfs tree. A `Driver` advances its counters."""

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

DEFAULT_RANGE_UJ = 262_143_328_850
"""What a Xeon shows: 2^32 units of 61 uJ."""


class Layout(StrEnum):
    """Arrangement of zones below `class/powercap`."""

    FLAT = "flat"
    """`intel-rapl:0` and `intel-rapl:0:0` side by side."""
    NESTED = "nested"
    """`intel-rapl/intel-rapl:0/intel-rapl:0:0`."""
    LINKED = "linked"
    """As the kernel does it: nested directories elsewhere, and flat links to all of them."""


class Writing(StrEnum):
    """Ways of writing a new value into the file."""

    REPLACE = "replace"
    """A new file renamed over the old one: readers never see half a number."""
    IN_PLACE = "in_place"
    """One `pwrite` of fixed width into the same file: cheapest, as sysfs looks to a reader."""
    TRUNCATE = "truncate"
    """Truncate, then write: readers may see an empty file."""


@dataclass(frozen=True, slots=True)
class TreeZone:
    """One zone of the tree."""

    directory: Path
    range_uj: int

    @property
    def energy_file(self) -> Path:
        """Return its counter file."""
        return self.directory / "energy_uj"

    def set_energy_uj(self, value: int, writing: Writing = Writing.REPLACE) -> None:
        """Write the counter's value (the caller wraps it)."""
        write_counter(self.energy_file, f"{value}\n".encode(), writing)


class PowercapTree:
    """Builder of `ROOT/class/powercap`; give `ROOT` to `Host(sysfs=...)`."""

    def __init__(self, root: Path, layout: Layout = Layout.LINKED) -> None:
        self.root = root.absolute()  # links in it must be valid from any folder
        self.layout = layout
        self._powercap = self.root / "class" / "powercap"
        self._powercap.mkdir(parents=True, exist_ok=True)
        self._tops: dict[str, int] = {}
        self._children: dict[Path, int] = {}

    def add_package(
        self,
        socket: int,
        die: int | None = None,
        *,
        energy_uj: int = 0,
        range_uj: int = DEFAULT_RANGE_UJ,
        control: str = "intel-rapl",
        max_power_w: float | None = None,
        limit_w: float | None = None,
        enabled: bool = True,
    ) -> TreeZone:
        """Add a package, with its long-term constraint where `max_power_w` or `limit_w` is
        given.
        """
        label = f"package-{socket}" if die is None else f"package-{socket}-die-{die}"
        zone = self.add_zone(label, control=control, energy_uj=energy_uj, range_uj=range_uj)
        _put(zone.directory / "enabled", str(int(enabled)))
        if max_power_w is not None or limit_w is not None:
            self.add_constraint(zone, 0, "long_term", max_power_w, limit_w)
        return zone

    def add_zone(
        self,
        label: str,
        *,
        control: str = "intel-rapl",
        energy_uj: int = 0,
        range_uj: int = DEFAULT_RANGE_UJ,
    ) -> TreeZone:
        """Add a zone at the top of a control type: a package or `psys`."""
        number = self._tops.get(control, 0)
        self._tops[control] = number + 1
        return self._add(self._home(control), f"{control}:{number}", label, energy_uj, range_uj)

    def add_child(
        self,
        parent: TreeZone,
        label: str,
        *,
        energy_uj: int = 0,
        range_uj: int = DEFAULT_RANGE_UJ,
    ) -> TreeZone:
        """Add `core`, `uncore` or `dram` to a package."""
        number = self._children.get(parent.directory, 0)
        self._children[parent.directory] = number + 1
        name = f"{parent.directory.name}:{number}"
        home = self._powercap if self.layout is Layout.FLAT else parent.directory
        return self._add(home, name, label, energy_uj, range_uj)

    @staticmethod
    def add_constraint(
        zone: TreeZone, number: int, name: str, max_power_w: float | None, limit_w: float | None
    ) -> None:
        """Write the files of one power constraint."""
        _put(zone.directory / f"constraint_{number}_name", name)
        for value_w, leaf in ((max_power_w, "max_power_uw"), (limit_w, "power_limit_uw")):
            if value_w is not None:
                path = zone.directory / f"constraint_{number}_{leaf}"
                _put(path, str(round(value_w * 1e6)))

    def _home(self, control: str) -> Path:
        if self.layout is Layout.FLAT:
            return self._powercap
        if self.layout is Layout.NESTED:
            home = self._powercap / control
            home.mkdir(exist_ok=True)
            return home
        home = self.root / "devices" / "virtual" / "powercap" / control
        home.mkdir(parents=True, exist_ok=True)
        self._link(home)
        return home

    def _add(self, home: Path, name: str, label: str, energy_uj: int, range_uj: int) -> TreeZone:
        directory = home / name
        directory.mkdir()
        _put(directory / "name", label)
        _put(directory / "max_energy_range_uj", str(range_uj))
        _put(directory / "energy_uj", str(energy_uj))
        if self.layout is Layout.LINKED:
            self._link(directory)
        return TreeZone(directory, range_uj)

    def _link(self, target: Path) -> None:
        link = self._powercap / target.name
        if not link.is_symlink():
            link.symlink_to(target, target_is_directory=True)


_WIDTH = 24


def _put(path: Path, text: str) -> None:
    path.write_text(text + "\n")


def write_counter(path: Path, data: bytes, writing: Writing) -> None:
    """Write a new value into a counter's file."""
    if writing is Writing.REPLACE:
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_bytes(data)
        fresh.replace(path)
    elif writing is Writing.TRUNCATE:
        path.write_bytes(data)
    else:
        fd = os.open(path, os.O_WRONLY)
        try:
            # Fixed width: a shorter number after a wrap leaves no digits of the longer one.
            os.pwrite(fd, data.ljust(_WIDTH), 0)
        finally:
            os.close(fd)
