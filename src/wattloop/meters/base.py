"""Contract of meters: domains, readings, signals, and the context of detection."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from wattloop.core.clock import Clock, RealClock
from wattloop.core.records import Domain, Gap, Signal
from wattloop.core.results import Missing
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host

Reading = float | Gap
"""Joules of a counter, watts of a gauge or the value of a signal, or why there is none."""


class Context(NamedTuple):
    """Input of `detect` functions: the machine, the user's settings and the clock."""

    host: Host = Host()
    settings: Settings = Settings()
    clock: Clock = RealClock()


class DeviceProcess(NamedTuple):
    """A process that holds a context on a device.

    Attributes:
        sm: part of the time since the last reading in which its kernels ran, 0 to 1; None where
            the device does not say.
        memory_b: bytes that it holds there; None where the device does not say.
        slices: of a card split by MIG that it has; 0 for a process without an instance of its own.
            0 as a process number stands for slices that no visible instance has, a negative one
            for an instance without a process.
        instance: UUID of the instance that it works in; empty on a card without.
    """

    pid: int
    sm: float | None = None
    memory_b: float | None = None
    slices: float = 0.0
    instance: str = ""


class Meter(ABC):
    """A named source of domains.

    A meter module has a function `detect(context) -> Sequence[Meter]` that returns what can be
    read now, or raises `MeterUnavailable` with reason and remedy. Detection never starts a
    program and takes a few milliseconds at most.

    `read` is called from the sampler's thread and, for cheap meters, from the threads that open
    and close windows; calls of one meter never overlap (its `MeterFeed` holds a lock). Nothing is
    opened at import time.
    """

    name: ClassVar[str]
    """Short name used in settings and messages: `rapl`, `nvml`."""
    shared: ClassVar[bool] = False
    """True if a second process may read the same source at the same time and sees the same
    numbers. Not where reading needs the device for oneself or a counter begins with its opening.
    """
    shared_signals: ClassVar[bool] = False
    """The same for the signals alone."""

    _domains: tuple[Domain, ...]
    _refused: tuple[Missing, ...] = ()
    _signals: tuple[Signal, ...] = ()

    @property
    def domains(self) -> tuple[Domain, ...]:
        """Domains of the meter. Fixed for its life."""
        return self._domains

    @abstractmethod
    def read(self) -> Sequence[Reading]:
        """One value per domain, in order: joules for counters as the sensor gives them (not
        unwrapped), watts for gauges, or a `Gap`. Never raises for a fault of the device.
        """

    def sample(self) -> Any:
        """Take a reading in the cheapest form; `decoded` converts it later.

        Code that runs once in a while runs from a cold cache, ten times slower than in a loop:
        what need not be done at the moment of a reading is done for many readings at once.
        """
        return self.read()

    def decoded(self, sampled: Any) -> Sequence[Reading]:
        """Convert the readings that `sample` took."""
        readings: Sequence[Reading] = sampled
        return readings

    @property
    def refused(self) -> tuple[Missing, ...]:
        """Parts of the node that this meter found but cannot read, and the remedy.

        They belong among the missing parts of every window. Fixed for the life of the meter.
        """
        return self._refused

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Signals that `read_signals` returns, in order."""
        return self._signals

    def read_signals(self) -> Sequence[Reading]:
        """Read one value per signal, or a `Gap`. Never raises for a fault of the device."""
        return ()

    def read_processes(self) -> Mapping[str, Sequence[DeviceProcess] | Gap]:
        """Read the processes on each device since the last call, by domain.

        A device without a new reading is left out. Never raises for a fault of the device.
        """
        return {}

    def close(self) -> None:
        """Release files and handles; called once, after the last read."""

    def after_fork_in_child(self) -> None:
        """Drop handles that a forked child must not share. Most meters have none."""
