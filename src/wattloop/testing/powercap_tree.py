"""A powercap tree of real files, and a thread that makes its counters run and wrap.

What a driver's counter gained between two moments is known exactly: `true_energy_j` is the
closed-form integral of the power, on the same CLOCK_MONOTONIC line as `RealClock.now_s`. The
file itself holds the value of the last update, as the hardware's register does.
"""

import gc
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from wattloop.testing.power_curves import PowerCurve

__all__ = ["Driver", "Layout", "PowercapTree", "TreeZone", "Writing"]

DEFAULT_RANGE_UJ = 262_143_328_850
"""What a Xeon shows: 2^32 units of 61 uJ."""
MEMORY = Path("/dev/shm")
"""A file system without a disk, where there is one."""


class Layout(StrEnum):
    """How zones lie below `class/powercap`."""

    FLAT = "flat"
    """`intel-rapl:0` and `intel-rapl:0:0` side by side."""
    NESTED = "nested"
    """`intel-rapl/intel-rapl:0/intel-rapl:0:0`."""
    LINKED = "linked"
    """As the kernel does it: nested directories elsewhere, and flat links to all of them."""


class Writing(StrEnum):
    """How a new value gets into the file."""

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
        """Its counter."""
        return self.directory / "energy_uj"

    def set_energy_uj(self, value: int, writing: Writing = Writing.REPLACE) -> None:
        """Write the counter as it stands (the caller wraps it)."""
        _write(self.energy_file, f"{value}\n".encode(), writing)


class PowercapTree:
    """Builds `ROOT/class/powercap`; give `ROOT` to `Host(sysfs=...)`."""

    def __init__(self, root: Path, layout: Layout = Layout.LINKED) -> None:
        self.root = root.absolute()  # links in it must lead somewhere from anywhere
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
        """A package, with its long-term constraint where `max_power_w` or `limit_w` is given."""
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
        """A zone at the top of a control type: a package or `psys`."""
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
        """`core`, `uncore` or `dram` of a package."""
        number = self._children.get(parent.directory, 0)
        self._children[parent.directory] = number + 1
        name = f"{parent.directory.name}:{number}"
        home = self._powercap if self.layout is Layout.FLAT else parent.directory
        return self._add(home, name, label, energy_uj, range_uj)

    @staticmethod
    def add_constraint(
        zone: TreeZone, number: int, name: str, max_power_w: float | None, limit_w: float | None
    ) -> None:
        """The files of one power constraint."""
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


class Driver:
    """A thread that lets zones follow their power curves, from the moment it is made.

    Args:
        curves: the power of each zone.
        update_period_s: how often the files change.
        writing: how a new value gets into the file.
        resolution_uj: the register counts in steps of this; the file shows whole steps.
        lost_share: share of updates that leave the file empty until the next one.
        seed: which updates those are.
    """

    def __init__(
        self,
        curves: Mapping[TreeZone, PowerCurve],
        *,
        update_period_s: float = 0.001,
        writing: Writing = Writing.REPLACE,
        resolution_uj: float = 61.03515625,
        lost_share: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._curves = dict(curves)
        self._period_s = update_period_s
        self._writing = writing
        self._resolution_uj = resolution_uj
        self._lost_share = lost_share
        self._random = random.Random(seed)
        self._offsets_uj = {zone: int(zone.energy_file.read_text()) for zone in self._curves}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="powercap-driver", daemon=True)
        self._memory: Path | None = None
        self._shown: dict[TreeZone, Path] = {}
        self.updates = 0
        self.start_s = time.monotonic()
        """The curves' 0 s."""

    def __enter__(self) -> "Driver":
        # A collection in a big test process would hold the thread up for a tenth of a second.
        gc.freeze()
        self._move_into_memory()
        self.update()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the thread; the files keep their last value."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._move_back()
        gc.unfreeze()

    def true_energy_j(self, zone: TreeZone, begin_s: float, end_s: float) -> float:
        """Joules between two moments of CLOCK_MONOTONIC: exact, whatever the file showed."""
        if begin_s < self.start_s:
            raise ValueError(f"the driver started at {self.start_s}, after {begin_s}")
        curve = self._curves[zone]
        return curve.energy_j(end_s - self.start_s) - curve.energy_j(begin_s - self.start_s)

    def counter_uj(self, zone: TreeZone, at_s: float) -> int:
        """What the counter stands at, wrapped and in whole steps of the register."""
        gained_uj = self._curves[zone].energy_j(at_s - self.start_s) * 1e6
        steps = int(gained_uj / self._resolution_uj)
        return (self._offsets_uj[zone] + int(steps * self._resolution_uj)) % zone.range_uj

    def update(self, at_s: float | None = None) -> None:
        """Write every counter as it stands now (or stood at `at_s`)."""
        for zone in self._curves:
            lost = self._lost_share > 0 and self._random.random() < self._lost_share
            value = self.counter_uj(zone, time.monotonic() if at_s is None else at_s)
            data = b"" if lost else f"{value}\n".encode()
            _write(self._shown.get(zone, zone.energy_file), data, self._writing)
        self.updates += 1

    def _move_into_memory(self) -> None:
        """A busy disk holds a write up for a tenth of a second; a register never is."""
        if not os.access(MEMORY, os.W_OK):
            return
        self._memory = Path(tempfile.mkdtemp(prefix="wattloop-counters-", dir=MEMORY))
        self._memory.chmod(0o755)
        for number, zone in enumerate(self._curves):
            shown = self._shown[zone] = self._memory / str(number)
            shutil.copy(zone.energy_file, shown)
            zone.energy_file.unlink()
            zone.energy_file.symlink_to(shown)

    def _move_back(self) -> None:
        if self._memory is None:
            return
        for zone, shown in self._shown.items():
            if zone.energy_file.is_symlink():  # else a test has put something in its place
                fresh = zone.directory / ".energy_uj.new"
                shutil.copy(shown, fresh)
                fresh.replace(zone.energy_file)
        shutil.rmtree(self._memory)
        self._shown.clear()
        self._memory = None

    def _run(self) -> None:
        # Ticks lie on a fixed grid, so that lateness of one does not move the others.
        tick = 1
        while not self._ended.is_set():
            due_s = self.start_s + tick * self._period_s
            wait_s = due_s - time.monotonic()
            if wait_s > 0 and self._ended.wait(wait_s):
                return
            self.update()
            tick = max(tick + 1, int((time.monotonic() - self.start_s) / self._period_s) + 1)


_WIDTH = 24


def _put(path: Path, text: str) -> None:
    path.write_text(text + "\n")


def _write(path: Path, data: bytes, writing: Writing) -> None:
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
