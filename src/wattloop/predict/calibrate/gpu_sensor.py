"""Sensor of energy, power and clock of the GPU under calibration. Read only."""

import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wattloop.core.errors import MeterUnavailable
from wattloop.core.process import BackgroundThread
from wattloop.core.records import DomainKind, Gap
from wattloop.hardware.host import Host
from wattloop.meters import nvidia
from wattloop.meters.base import Meter
from wattloop.meters.nvidia import partitioned

CLOCK_SM = 1
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Where these are set, torch's numbers of GPUs are not the driver's."""


class GpuSensor:
    """Readings of one GPU; missing ones are None, with a `reason`.

    This one reads nothing: for work that no sensor covers.
    """

    name = "none"

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def energy_j(self) -> float | None:
        return None

    def power_w(self) -> float | None:
        return None

    def clock_mhz(self) -> float | None:
        return None

    def temp_c(self) -> float | None:
        return None

    def limit_w(self) -> float | None:
        return None

    def busy_share(self) -> float | None:
        """Return the recent utilisation of the GPU by any process."""
        return None

    def driver(self) -> str | None:
        return None

    def close(self) -> None:
        """Release the library."""


class NvmlGpuSensor(GpuSensor):
    """NVML's readings of an NVIDIA GPU.

    Args:
        index: of the GPU; used without an identifier.
        uuid: torch's identifier of the GPU, since NVML counts GPUs that torch may not see.
    """

    name = "NVML"

    def __init__(self, index: int = 0, uuid: str = "") -> None:
        super().__init__()
        self._nvml: Any = None
        self._handle: Any = None
        try:
            self._nvml = nvidia.open_nvml(Host())
        except MeterUnavailable as error:
            self.reason = str(error)
            return
        try:
            self._handle = self._readable(index, uuid)
        except self._nvml.NVMLError as error:
            self.reason = "; ".join(filter(None, nvidia.explain(error)))

    def energy_j(self) -> float | None:
        """Return the counter; a call takes 4 ms on an H200, its value changes every 100 ms."""
        return self._read(lambda nvml, h: nvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3)

    def power_w(self) -> float | None:
        """Return the power, a mean of the past second on recent GPUs."""
        return self._read(lambda nvml, h: nvml.nvmlDeviceGetPowerUsage(h) / 1e3)

    def clock_mhz(self) -> float | None:
        return self._read(lambda nvml, h: float(nvml.nvmlDeviceGetClockInfo(h, CLOCK_SM)))

    def temp_c(self) -> float | None:
        return self._read(lambda nvml, h: float(nvml.nvmlDeviceGetTemperature(h, 0)))

    def limit_w(self) -> float | None:
        return self._read(lambda nvml, h: nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1e3)

    def busy_share(self) -> float | None:
        return self._read(lambda nvml, h: nvml.nvmlDeviceGetUtilizationRates(h).gpu / 100)

    def driver(self) -> str | None:
        if self._nvml is None:
            return None
        try:
            version = self._nvml.nvmlSystemGetDriverVersion()
        except self._nvml.NVMLError:
            return None
        return version.decode() if isinstance(version, bytes) else str(version)

    def close(self) -> None:
        if self._nvml is not None:
            nvidia.shut_down(self._nvml)
            self._nvml = self._handle = None

    def _readable(self, index: int, uuid: str) -> Any:
        """Return the GPU, if its power can be read and is its own; else None, and a reason."""
        nvml = self._nvml
        handle = self._found(index, uuid)
        if handle is None:
            self.reason = (
                "NVML does not tell which of its GPUs torch uses; unset CUDA_VISIBLE_DEVICES and "
                "name the GPU with --gpu"
            )
            return None
        refusal = partitioned(nvml, handle, f"gpu:{index}", "the GPU")
        if refusal is not None:
            self.reason = f"{refusal.reason}; {refusal.remedy}"
            return None
        nvml.nvmlDeviceGetPowerUsage(handle)
        return handle

    def _found(self, index: int, uuid: str) -> Any:
        """Find it by identifier; by number only where that cannot be another GPU."""
        nvml = self._nvml
        alone = nvml.nvmlDeviceGetCount() == 1
        if uuid:
            try:
                return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
            except nvml.NVMLError:  # a part of a GPU (MIG) has an identifier of its own
                return nvml.nvmlDeviceGetHandleByIndex(0) if alone else None
        if alone or not os.environ.get("CUDA_VISIBLE_DEVICES"):
            return nvml.nvmlDeviceGetHandleByIndex(0 if alone else index)
        return None

    def _read(self, call: Callable[[Any, Any], float]) -> float | None:
        if self._handle is None:
            return None
        try:
            return float(call(self._nvml, self._handle))
        except self._nvml.NVMLError as error:
            self.reason = nvidia.explain(error)[0]
            return None


class MeterGpuSensor(GpuSensor):
    """Sensor of a GPU that one of Wattloop's meters reads, such as an AMD card.

    Args:
        meters: those that `detect` of a meter's module gave.
        index: of the GPU among theirs.
    """

    name = "meters"

    def __init__(self, meters: Sequence[Meter], index: int = 0) -> None:
        super().__init__()
        self._meters = meters
        named = sorted(
            {domain.name for meter in meters for domain in meter.domains},
            key=lambda name: (len(name), name),  # gpu:10 comes after gpu:2
        )
        self._domain = named[index] if index < len(named) else ""
        if not self._domain:
            self.reason = f"GPU {index} is not among those that can be read: {', '.join(named)}"
        elif len(named) > 1 and any(map(os.environ.get, HIDING)):
            self._domain = ""
            self.reason = (
                f"which of {', '.join(named)} torch uses is not known where GPUs are hidden; unset "
                f"{', '.join(filter(os.environ.get, HIDING))} and name the GPU with --gpu"
            )

    def energy_j(self) -> float | None:
        return self._read(DomainKind.COUNTER)

    def power_w(self) -> float | None:
        return self._read(DomainKind.GAUGE)

    def clock_mhz(self) -> float | None:
        return self._signal("sm_clock")

    def temp_c(self) -> float | None:
        return self._signal("temperature")

    def limit_w(self) -> float | None:
        return self._signal("power_limit")

    def busy_share(self) -> float | None:
        return self._signal("utilisation")

    def close(self) -> None:
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


PAUSE_S = 2e-3
LONG_PAUSE_S = 0.02
"""Period of samples of a sensor without a counter."""


@dataclass(frozen=True, slots=True)
class SensorReading:
    """Energy readings of the GPU over a window; None where it cannot be read.

    Attributes:
        power_w: the energy counter's difference between two of its changes; the mean of the power
            readings for a GPU without a counter.
        polled_w: mean of the power readings.
        clock_mhz, temp_c: mean clock, temperature at the end.
        window_s: duration that the power covers.
    """

    power_w: float | None
    polled_w: float | None
    clock_mhz: float | None
    temp_c: float | None
    window_s: float


class _Sample(NamedTuple):
    time_s: float
    energy_j: float | None
    power_w: float | None
    clock_mhz: float | None


class SensorSampler(BackgroundThread):
    """Sampler while its block runs: `with Watch(sensor) as watch: ...`."""

    def __init__(self, sensor: GpuSensor) -> None:
        super().__init__("wattloop-watch")
        self._sensor = sensor
        self._samples: list[_Sample] = []

    def drawn(self, begin_s: float, end_s: float) -> SensorReading:
        """Return the readings between two times of `time.perf_counter`.

        The counter changes every 100 ms: power is taken from its first change inside the window to
        its last, so that neither edge is a stale value.
        """
        inside = [sample for sample in self._samples if begin_s <= sample.time_s <= end_s]
        polled_w = _mean([sample.power_w for sample in inside])
        power_w, window_s = None, end_s - begin_s
        changes = [
            (now.time_s, now.energy_j)
            for before, now in itertools.pairwise(inside)
            if before.energy_j is not None
            and now.energy_j is not None
            and now.energy_j != before.energy_j
        ]
        if len(changes) >= 2:
            (first_s, first_j), (last_s, last_j) = changes[0], changes[-1]
            window_s = last_s - first_s
            power_w = (last_j - first_j) / window_s
        elif all(sample.energy_j is None for sample in inside):
            power_w = polled_w
        return SensorReading(
            power_w,
            polled_w,
            _mean([sample.clock_mhz for sample in inside]),
            self._sensor.temp_c(),
            window_s,
        )

    def _work(self) -> None:
        sensor = self._sensor
        while not self._stop.is_set():
            energy_j = sensor.energy_j()
            now_s = time.perf_counter()
            sample = _Sample(now_s, energy_j, sensor.power_w(), sensor.clock_mhz())
            self._samples.append(sample)
            self._stop.wait(LONG_PAUSE_S if energy_j is None else PAUSE_S)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
