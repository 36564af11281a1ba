"""Model of main memory power (thesis, section 4.2, equation 4.1), and the memory in use."""

import math
import os
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from wattloop.core.records import Gap
from wattloop.hardware.dimms import Dimm


class MemoryUse:
    """Reader of `meminfo`: (MemTotal - MemAvailable) / MemTotal."""

    def __init__(self, procfs: Path) -> None:
        self.path = procfs / "meminfo"

    def used_fraction(self) -> float | Gap:
        """Share of the memory in use, 0 to 1."""
        try:
            # The kernel generates the file for each open; only its first lines are needed.
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                head = os.read(fd, 512)
            finally:
                os.close(fd)
        except OSError as error:
            return Gap(f"{self.path}: {error.strerror or error}")
        total = re.search(rb"^MemTotal:\s+(\d+) kB", head, re.MULTILINE)
        available = re.search(rb"^MemAvailable:\s+(\d+) kB", head, re.MULTILINE)
        if total is None or available is None or not int(total[1]):
            return Gap(f"{self.path} has no MemTotal and MemAvailable")
        return min(1.0, max(0.0, 1 - int(available[1]) / int(total[1])))


BASE_POWER_W = {16: 4.0, 32: 5.0, 64: 6.0, 128: 8.0, 256: 10.0}
"""Power_base by capacity in GiB, as the thesis gives it (4.2.2)."""

SMALL_STEP_W = 1.0
"""Below 16 GiB we go on with the table's step at its lower end: 1 W per halving, 1 W at least."""

LARGE_STEP_W = 2.0
"""Above 256 GiB with the step at its upper end: 2 W per doubling."""

LOW_POWER_SHARE = 0.25
"""Laptop modules and soldered memory, relative to the server modules of the table."""

TIERS = ((0.05, 0.30), (0.15, 0.60), (0.25, 0.70))
"""mem_use for usage below each bound (4.2.2); 0.75 up to a half, 0.80 above."""


def dram_power_w(dimms: Iterable[Dimm], used_fraction: float) -> float:
    """Power_RAM = Power_base x nb_slots x mem_use (4.1), summed over modules of any size."""
    return sum(base_power_w(dimm) for dimm in dimms) * memory_use_factor(used_fraction)


def memory_use_factor(used_fraction: float) -> float:
    """Return mem_use: the share of the base power at this usage."""
    for bound, factor in TIERS:
        if used_fraction < bound:
            return factor
    return 0.75 if used_fraction <= 0.50 else 0.80


def base_power_w(dimm: Dimm) -> float:
    """Power_base of one module; between two rows of the table, linear in log2(capacity)."""
    share = LOW_POWER_SHARE if is_low_power(dimm) else 1.0
    return share * _table_w(math.log2(dimm.capacity_gib))


def is_low_power(dimm: Dimm) -> bool:
    """Return True for the kind of memory that laptops have."""
    return dimm.technology.startswith("LPDDR") or dimm.form in ("SODIMM", "Row Of Chips")


def _table_w(doublings: float) -> float:
    rows = [(math.log2(capacity), power_w) for capacity, power_w in BASE_POWER_W.items()]
    (first, first_w), (last, last_w) = rows[0], rows[-1]
    if doublings <= first:
        return max(1.0, first_w - SMALL_STEP_W * (first - doublings))
    if doublings >= last:
        return last_w + LARGE_STEP_W * (doublings - last)
    for (low, low_w), (high, high_w) in pairwise(rows):
        if doublings <= high:
            return low_w + (high_w - low_w) * (doublings - low) / (high - low)
    raise AssertionError("unreachable")
