"""A thread that advances and wraps the counters of a powercap tree.

The gain of a driver's counter between two moments is known exactly: `true_energy_j` is the
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
from contextlib import suppress
from pathlib import Path

from .power_curves import PowerCurve
from .powercap_tree import TreeZone, Writing, write_counter

MEMORY = Path("/dev/shm")
"""A file system without a disk, where there is one."""


class Driver:
    """A thread that lets zones follow their power curves, from its creation on.

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
        self._froze = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="powercap-driver", daemon=True)
        self._memory: Path | None = None
        self._shown: dict[TreeZone, Path] = {}
        self.updates = 0
        self.longest_s = 0.0
        """The longest that a file has shown an old value, on a busy machine more than a period."""
        self.start_s = time.monotonic()
        """The curves' 0 s."""

    def __enter__(self) -> "Driver":
        # A collection in a big process would hold the thread up for a tenth of a second. Tests
        # have frozen their modules already, and they stay so.
        self._froze = gc.get_freeze_count() == 0
        if self._froze:
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
        if self._froze:
            gc.unfreeze()

    def true_energy_j(self, zone: TreeZone, begin_s: float, end_s: float) -> float:
        """Return the joules between two moments of CLOCK_MONOTONIC: exact, whatever the file
        showed.
        """
        if begin_s < self.start_s:
            raise ValueError(f"the driver started at {self.start_s}, after {begin_s}")
        curve = self._curves[zone]
        return curve.energy_j(end_s - self.start_s) - curve.energy_j(begin_s - self.start_s)

    def counter_uj(self, zone: TreeZone, at_s: float) -> int:
        """Return the counter's value, wrapped and in whole steps of the register."""
        gained_uj = self._curves[zone].energy_j(at_s - self.start_s) * 1e6
        steps = int(gained_uj / self._resolution_uj)
        return (self._offsets_uj[zone] + int(steps * self._resolution_uj)) % zone.range_uj

    def update(self, at_s: float | None = None) -> None:
        """Write every counter's value of now (or of `at_s`)."""
        for zone in self._curves:
            lost = self._lost_share > 0 and self._random.random() < self._lost_share
            value = self.counter_uj(zone, time.monotonic() if at_s is None else at_s)
            data = b"" if lost else f"{value}\n".encode()
            write_counter(self._shown.get(zone, zone.energy_file), data, self._writing)
        self.updates += 1

    def _move_into_memory(self) -> None:
        """Move the tree into memory: a busy disk delays a write by a tenth of a second, a
        register never.
        """
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
            if zone.energy_file.is_symlink():  # otherwise a test has replaced it
                fresh = zone.directory / ".energy_uj.new"
                shutil.copy(shown, fresh)
                fresh.replace(zone.energy_file)
        shutil.rmtree(self._memory)
        self._shown.clear()
        self._memory = None

    def _run(self) -> None:
        # A register waits for no processor, so the thread gets priority where this is allowed.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)
        # Ticks lie on a fixed grid, so that lateness of one does not move the others.
        tick = 1
        updated_s = self.start_s
        while not self._ended.is_set():
            due_s = self.start_s + tick * self._period_s
            wait_s = due_s - time.monotonic()
            if wait_s > 0 and self._ended.wait(wait_s):
                return
            self.update()
            now_s = time.monotonic()
            self.longest_s = max(self.longest_s, now_s - updated_s)
            updated_s = now_s
            tick = max(tick + 1, int((now_s - self.start_s) / self._period_s) + 1)
