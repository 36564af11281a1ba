"""Energy, power and clock of the GPU under test, sampled beside the work; nothing is ever set."""

import itertools
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from wattloop.core.errors import MeterUnavailable
from wattloop.hardware.host import Host
from wattloop.measure.meters import nvml_library

__all__ = ["Drawn", "Sensor", "Watch"]

CLOCK_SM = 1
PAUSE_S = 2e-3


@dataclass(frozen=True, slots=True)
class Drawn:
    """What the GPU drew over a stretch of time; None where it cannot be read.

    Attributes:
        power_w: energy counter's difference over the time between two of its changes.
        polled_w: mean of the power readings.
        clock_mhz, temp_c: means.
        window_s: the stretch the counter covers.
    """

    power_w: float | None
    polled_w: float | None
    clock_mhz: float | None
    temp_c: float | None
    window_s: float


class Sensor:
    """NVML's readings of one GPU; a GPU without them has a `reason`.

    Args:
        uuid: torch's identifier of the GPU, since NVML counts GPUs that torch may not see.
        index: taken where there is no identifier.
    """

    def __init__(self, index: int = 0, uuid: str = "") -> None:
        self.reason = ""
        self._handle: Any = None
        try:
            self._nvml = nvml_library.open_nvml(Host())
            self._handle = self._found(index, uuid)
        except MeterUnavailable as error:
            self.reason = str(error)

    @classmethod
    def none(cls, reason: str) -> Self:
        """For work that no sensor covers."""
        sensor = cls.__new__(cls)
        sensor.reason, sensor._handle, sensor._nvml = reason, None, None
        return sensor

    def close(self) -> None:
        """Release the library."""
        if self._handle is not None:
            self._handle = None
            nvml_library.shut_down(self._nvml)

    def energy_j(self) -> float | None:
        """The energy counter; reading it takes milliseconds."""
        return self._read(lambda nvml, h: nvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3)

    def power_w(self) -> float | None:
        """Power now."""
        return self._read(lambda nvml, h: nvml.nvmlDeviceGetPowerUsage(h) / 1e3)

    def clock_mhz(self) -> float | None:
        """Clock of the SMs."""
        return self._read(lambda nvml, h: float(nvml.nvmlDeviceGetClockInfo(h, CLOCK_SM)))

    def temp_c(self) -> float | None:
        """Temperature."""
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

    def _read(self, call: Any) -> float | None:
        if self._handle is None:
            return None
        try:
            return float(call(self._nvml, self._handle))
        except self._nvml.NVMLError as error:
            self.reason = nvml_library.explain(error)[0]
            return None


class Watch:
    """Samples a sensor from a thread while work runs: `with Watch(sensor) as watch: ...`."""

    def __init__(self, sensor: Sensor) -> None:
        self._sensor = sensor
        self._samples: list[tuple[float, float | None, float | None, float | None]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="wattloop-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def drawn(self, begin_s: float, end_s: float) -> Drawn:
        """What was drawn between two times of `time.perf_counter`.

        The counter's value changes every 100 ms: power is taken from its first change inside the
        window to its last, so that neither edge is a stale value.
        """
        inside = [s for s in self._samples if begin_s <= s[0] <= end_s]
        changes = [
            (now[0], now[1])
            for before, now in itertools.pairwise(inside)
            if before[1] is not None and now[1] is not None and now[1] != before[1]
        ]
        power_w, window_s = None, end_s - begin_s
        if len(changes) >= 2:
            (first_s, first_j), (last_s, last_j) = changes[0], changes[-1]
            window_s = last_s - first_s
            power_w = (last_j - first_j) / window_s
        return Drawn(
            power_w,
            _mean([s[2] for s in inside]),
            _mean([s[3] for s in inside]),
            self._sensor.temp_c(),
            window_s,
        )

    def _sample(self) -> None:
        sensor = self._sensor
        while not self._done.is_set():
            energy_j = sensor.energy_j()
            now_s = time.perf_counter()
            self._samples.append((now_s, energy_j, sensor.power_w(), sensor.clock_mhz()))
            self._done.wait(PAUSE_S if energy_j is not None else 0.02)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
