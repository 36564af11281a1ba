"""How much memory this machine has left, and the most this process held."""

import re
from contextlib import suppress
from pathlib import Path

__all__ = ["available_b", "forget_peak", "peak_b"]


def available_b(procfs: Path = Path("/proc")) -> int | None:
    """Bytes that can be allocated without swapping; None if the kernel does not say."""
    return _field(procfs / "meminfo", "MemAvailable")


def peak_b(procfs: Path = Path("/proc")) -> int | None:
    """The most this process had in memory since it began, or since `forget_peak`."""
    return _field(procfs / "self" / "status", "VmHWM")


def forget_peak(procfs: Path = Path("/proc")) -> None:
    """Begin to look for a new peak, where the kernel allows it."""
    with suppress(OSError):
        (procfs / "self" / "clear_refs").write_text("5")


def _field(path: Path, name: str) -> int | None:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1_024
