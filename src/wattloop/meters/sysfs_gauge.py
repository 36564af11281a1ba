"""Meter of sensors that are single files: known ones, and those the user names."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, Gap
from wattloop.core.results import Missing
from wattloop.hardware.host import Host
from wattloop.meters import gauge_files
from wattloop.meters.base import Context, Meter, Reading
from wattloop.meters.gauge_files import BatterySensor, Gauge, configured_gauges


def detect(context: Context) -> Sequence["FileGauge"]:
    """Configured gauges, Intel GPUs, Grace, Jetson rails and discharging batteries."""
    host = context.host
    gauges, refused = configured_gauges(context.settings.gauges, host)
    taken = {gauge.domain.name for gauge in gauges}
    gauges += [gauge for gauge in _known(host) if gauge.domain.name not in taken]
    idle = [gauge for gauge in gauges if _is_idle_battery(gauge)]
    readable: list[Gauge] = []
    for gauge in gauges:
        if gauge in idle:
            continue
        reason, path = gauge.sensor.refusal()
        if reason:
            denied = reason.endswith("permission denied")
            remedy = f"run 'sudo chmod a+r {path}'" if denied else ""
            refused.append(Missing(gauge.domain.name, reason, remedy))
        else:
            readable.append(gauge)
    if not readable:
        raise _unavailable(host, idle, refused)
    return [FileGauge(readable, refused)]


class FileGauge(Meter):
    """Reads gauges and counters that are files."""

    name: ClassVar[str] = "file-gauge"
    shared: ClassVar[bool] = True

    def __init__(self, gauges: Sequence[Gauge], refused: Sequence[Missing] = ()) -> None:
        self._gauges = tuple(gauges)
        self._refused = tuple(refused)
        self._domains = tuple(gauge.domain for gauge in gauges)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """Whatever was found or configured."""
        return self._domains

    @property
    def refused(self) -> tuple[Missing, ...]:
        """Gauges whose file cannot be read, or is not there."""
        return self._refused

    def read(self) -> Sequence[Reading]:
        """Watts or joules of each gauge."""
        return [gauge.sensor.read() for gauge in self._gauges]

    def close(self) -> None:
        for gauge in self._gauges:
            gauge.sensor.close()


def _known(host: Host) -> Iterable[Gauge]:
    yield from gauge_files.intel_gpus(host)
    yield from gauge_files.grace_modules(host)
    yield from gauge_files.rails(host)
    yield from gauge_files.batteries(host)


def _is_idle_battery(gauge: Gauge) -> bool:
    """Return True for a battery on mains, which does not show the machine's power: left out, not
    missing.
    """
    sensor = gauge.sensor
    return isinstance(sensor, BatterySensor) and sensor.status() != "Discharging"


def _unavailable(host: Host, idle: Sequence[Gauge], refused: Sequence[Missing]) -> MeterUnavailable:
    if refused:
        parts = tuple(missing.name for missing in refused)
        return MeterUnavailable("file-gauge", refused[0].reason, refused[0].remedy, parts)
    if idle:
        reading = idle[0].sensor.read()
        reason = reading.reason if isinstance(reading, Gap) else f"{idle[0].domain.name} is idle"
        return MeterUnavailable("file-gauge", reason, "unplug the machine to measure by battery")
    return MeterUnavailable(
        "file-gauge",
        f"no Intel GPU, Grace, Jetson or battery sensor under {host.sysfs}, and no gauge is set",
        "name a file in the setting 'gauges', see docs/meters/file-gauge.md",
    )
