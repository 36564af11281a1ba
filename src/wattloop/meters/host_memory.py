"""Memory in use, as a signal without energy."""

from collections.abc import Sequence
from typing import ClassVar

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Gap, Signal
from wattloop.hardware.dimms import MemoryUse
from wattloop.meters.base import Context, Meter, Reading


def detect(context: Context) -> Sequence["HostMemory"]:
    """The machine's memory, where the kernel tells its use."""
    use = MemoryUse(context.host.procfs)
    reading = use.used_fraction()
    if isinstance(reading, Gap):
        raise MeterUnavailable(
            "memory", reading.reason, "set WATTLOOP_PROCFS_ROOT to a mounted /proc"
        )
    return [HostMemory(use)]


class HostMemory(Meter):
    """Signal `memory/used`; no energy of its own."""

    name: ClassVar[str] = "memory"
    shared: ClassVar[bool] = True

    _domains = ()
    _signals = (Signal("memory/used", "fraction"),)

    def __init__(self, use: MemoryUse) -> None:
        self._use = use

    def read(self) -> Sequence[Reading]:
        return ()

    def read_signals(self) -> Sequence[Reading]:
        return [self._use.used_fraction()]
