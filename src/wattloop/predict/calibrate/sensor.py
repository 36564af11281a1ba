"""Energy, power and clock of the GPU under test; nothing is ever set."""

from collections.abc import Callable, Sequence
from typing import Any

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import DomainKind, Gap
from wattloop.hardware.host import Host
from wattloop.measure.meter import Meter
from wattloop.measure.meters import nvml_library

__all__ = ["MeterSensor", "NvmlSensor", "Sensor"]

CLOCK_SM = 1


class Sensor:
    """Readings of one GPU; what cannot be read is None, and `reason` says why.

    This one reads nothing: for work that no sensor covers.
    """

    name = "none"

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def energy_j(self) -> float | None:
        """The energy counter; reading it may take milliseconds."""
        return None

    def power_w(self) -> float | None:
        """Power now."""
        return None

    def clock_mhz(self) -> float | None:
        """Clock of the multiprocessors."""
        return None

    def temp_c(self) -> float | None:
        """Temperature."""
        return None

    def limit_w(self) -> float | None:
        """Power limit in force."""
        return None

    def driver(self) -> str | None:
        """Version of the driver."""
        return None

    def close(self) -> None:
        """Release the library."""


class NvmlSensor(Sensor):
    """NVML's readings of an NVIDIA GPU.

    Args:
        index: of the GPU; taken where there is no identifier.
        uuid: torch's identifier of the GPU, since NVML counts GPUs that torch may not see.
    """

    name = "NVML"

    def __init__(self, index: int = 0, uuid: str = "") -> None:
        super().__init__()
        self._handle: Any = None
        try:
            self._nvml = nvml_library.open_nvml(Host())
            self._handle = self._found(index, uuid)
        except MeterUnavailable as error:
            self.reason = str(error)

    def energy_j(self) -> float | None:
        """The energy counter; a call takes 4 ms on an H200, its value changes every 100 ms."""
        return self._read(lambda nvml, h: nvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3)

    def power_w(self) -> float | None:
        """Power, a mean of the past second on recent GPUs."""
        return self._read(lambda nvml, h: nvml.nvmlDeviceGetPowerUsage(h) / 1e3)

    def clock_mhz(self) -> float | None:
        """Clock of the SMs."""
        return self._read(lambda nvml, h: float(nvml.nvmlDeviceGetClockInfo(h, CLOCK_SM)))

    def temp_c(self) -> float | None:
        """Temperature of the chip."""
        return self._read(lambda nvml, h: float(nvml.nvmlDeviceGetTemperature(h, 0)))

    def limit_w(self) -> float | None:
        """Power limit in force."""
        return self._read(lambda nvml, h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3)

    def driver(self) -> str | None:
        """Version of the driver."""
        if self._handle is None:
            return None
        version = self._nvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)

    def close(self) -> None:
        """Release the library."""
        if self._handle is not None:
            self._handle = None
            nvml_library.shut_down(self._nvml)

    def _found(self, index: int, uuid: str) -> Any:
        if uuid:
            try:
                return self._nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
            except self._nvml.NVMLError:
                pass  # an older library wants bytes; the index is right unless GPUs are hidden
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._nvml.NVMLError as error:
            self.reason = nvml_library.explain(error)[0]
            return None

    def _read(self, call: Callable[[Any, Any], float]) -> float | None:
        if self._handle is None:
            return None
        try:
            return float(call(self._nvml, self._handle))
        except self._nvml.NVMLError as error:
            self.reason = nvml_library.explain(error)[0]
            return None


class MeterSensor(Sensor):
    """A GPU that one of Wattloop's meters reads, such as an AMD card.

    Args:
        meters: those that `detect` of a meter's module gave.
        index: of the GPU among theirs.
    """

    name = "meters"

    def __init__(self, meters: Sequence[Meter], index: int = 0) -> None:
        super().__init__()
        self._meters = meters
        named = sorted({domain.name for meter in meters for domain in meter.domains})
        self._domain = named[index] if index < len(named) else ""
        if not self._domain:
            self.reason = f"GPU {index} is not among those that can be read: {', '.join(named)}"

    def energy_j(self) -> float | None:
        """The card's accumulator."""
        return self._read(DomainKind.COUNTER)

    def power_w(self) -> float | None:
        """Power now."""
        return self._read(DomainKind.GAUGE)

    def clock_mhz(self) -> float | None:
        """Clock of the compute units."""
        return self._signal("sm_clock")

    def temp_c(self) -> float | None:
        """Temperature of the hottest place."""
        return self._signal("temperature")

    def limit_w(self) -> float | None:
        """Power limit in force."""
        return self._signal("power_limit")

    def close(self) -> None:
        """Release the meters."""
        for meter in self._meters:
            meter.close()

    def _read(self, kind: DomainKind) -> float | None:
        for meter in self._meters:
            for domain, value in zip(meter.domains, meter.read(), strict=True):
                if domain.name == self._domain and domain.kind is kind:
                    return None if isinstance(value, Gap) else value
        return None

    def _signal(self, name: str) -> float | None:
        for meter in self._meters:
            for signal, value in zip(meter.signals, meter.read_signals(), strict=True):
                if signal.name == f"{self._domain}/{name}":
                    return None if isinstance(value, Gap) else value
        return None
