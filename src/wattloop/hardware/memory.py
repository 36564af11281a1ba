"""How much of the main memory is in use."""

import os
import re
from pathlib import Path

from wattloop.core.records import Gap

__all__ = ["MemoryUse"]


class MemoryUse:
    """Reads `meminfo`: (MemTotal - MemAvailable) / MemTotal."""

    def __init__(self, procfs: Path) -> None:
        self.path = procfs / "meminfo"

    def used_fraction(self) -> float | Gap:
        """Share of the memory in use, 0 to 1."""
        try:
            # The kernel makes the file anew for each open; its first lines are all we need.
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
