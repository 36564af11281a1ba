"""A domain together with the files it is read from."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from wattloop.core.records import Domain, Gap
from wattloop.hardware.number_file import NumberFile
from wattloop.measure.meter import Reading

__all__ = ["BatterySensor", "FileSensor", "Gauge", "Sensor"]


class Sensor(Protocol):
    """Something that gives watts or joules."""

    def read(self) -> Reading:
        """Watts or joules, or a gap."""
        ...

    def refusal(self) -> tuple[str, Path | None]:
        """Why it cannot be read at all and which file is to blame; ("", None) when it can."""
        ...

    def close(self) -> None:
        """Close its files."""
        ...


class Gauge(NamedTuple):
    """One domain and its sensor."""

    domain: Domain
    sensor: Sensor


class FileSensor:
    """The product of one or more files and a factor: a power, or a voltage times a current."""

    __slots__ = ("_factor", "_files", "_magnitude")

    def __init__(
        self, files: Sequence[NumberFile], factor: float, *, magnitude: bool = False
    ) -> None:
        self._files = tuple(files)
        self._factor = factor
        self._magnitude = magnitude

    def read(self) -> Reading:
        """The product, or the first file's gap."""
        product = self._factor
        for file in self._files:
            value = file.read()
            if isinstance(value, Gap):
                return value
            product *= value
        return abs(product) if self._magnitude else product

    def refusal(self) -> tuple[str, Path | None]:
        """Why one of the files cannot be read."""
        for file in self._files:
            reason = file.refusal()
            if reason:
                return reason, file.path
        return "", None

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


class BatterySensor:
    """A battery's power, which is the machine's only while nothing else feeds the machine."""

    __slots__ = ("_power", "_status")

    def __init__(self, status: Path, power: FileSensor) -> None:
        self._status = status
        self._power = power

    def read(self) -> Reading:
        """Watts while discharging, else a gap."""
        status = self.status()
        if status == "Discharging":
            return self._power.read()
        if not status:
            return Gap(f"{self._status} is not readable")
        return Gap(
            f"battery {self._status.parent.name} is '{status}': it shows the machine's power only "
            "while it is discharging"
        )

    def status(self) -> str:
        """What the kernel says the battery does."""
        try:
            return self._status.read_text(errors="replace").strip()
        except OSError:
            return ""

    def refusal(self) -> tuple[str, Path | None]:
        """Why the power cannot be read."""
        return self._power.refusal()

    def close(self) -> None:
        """Close the files."""
        self._power.close()
