"""The power rails of NVIDIA Jetson boards: INA3221 sensors on the I2C bus."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from wattloop.core.records import Domain, DomainKind, Scope
from wattloop.hardware.host import Host
from wattloop.hardware.hwmon import Chip, find_chips
from wattloop.hardware.number_file import NumberFile
from wattloop.hardware.text_file import read_text, whole_number
from wattloop.measure.gauges.gauge import FileSensor, Gauge

__all__ = ["rails"]

MODULE_INPUTS = ("VDD_IN", "POM_5V_IN", "5V_IN")
"""The rail that feeds the whole module: it contains all the module's other rails."""
CARRIER_INPUT = "VDD_MUX"
CARRIER_RAILS = re.compile(r"VDD_(5V0?_IO_SYS|3V3_SYS|3V3_IO|1V8_IO|M2_IN|3V3_IO_SLP|3V3_SYS_M2)")
SYSTEM_5V = "VIN_SYS_5V0"
SYSTEM_5V_PART = "VDDQ_VDD2_1V8AO"
KNOWN_ERROR = 0.05
"""Our allowance for chip, shunt resistor and rounding."""
SHUNT_STEP_V = 40e-6
"""What one step of the chip means over the shunt."""
USUAL_SHUNT_OHM, USUAL_RAIL_V = 0.005, 5.0


def rails(host: Host) -> Iterator[Gauge]:
    """Every labelled rail, through hwmon (JetPack 5 on) or iio (before)."""
    found = list(_unique([*_hwmon_rails(host), *_iio_rails(host)]))
    labels = {rail.label for rail in found}
    for rail in found:
        container = _container(rail.label, labels)
        domain = Domain(
            name=_name(rail.label),
            kind=DomainKind.GAUGE,
            scope=_scope(rail.label),
            source=f"INA3221 {rail.label}",
            inside=_name(container) if container else None,
            resolution=rail.resolution_w,
            update_period_s=0.1,
            known_error=KNOWN_ERROR,
            # Each read is a transfer over the I2C bus.
            read_cost_s=1e-3,
            device="NVIDIA Jetson",
        )
        yield Gauge(domain, rail.sensor)


class _Rail(NamedTuple):
    label: str
    sensor: FileSensor
    resolution_w: float


def _hwmon_rails(host: Host) -> Iterator[_Rail]:
    for chip in find_chips(host):
        if not chip.name.startswith("ina3221"):
            continue
        for number, path in chip.channels("in*_label"):
            volts = chip.directory / f"in{number}_input"
            amperes = chip.directory / f"curr{number}_input"
            label = chip.text(path.name)
            # The chip also lists the drop over each shunt, and the sum of the currents.
            is_rail = number <= 3 and amperes.exists() and chip.text(f"in{number}_enable") != "0"
            if is_rail and label not in ("", "NC"):
                # mV x mA = uW
                sensor = FileSensor([NumberFile(volts), NumberFile(amperes)], 1e-6)
                yield _Rail(label, sensor, _resolution_w(chip, number))


def _iio_rails(host: Host) -> Iterator[_Rail]:
    for path in sorted(host.sysfs.glob("bus/i2c/drivers/ina3221x/*/iio:device*/rail_name_*")):
        label = read_text(path)
        power = path.with_name(f"in_power{path.name.removeprefix('rail_name_')}_input")
        if label not in ("", "NC") and power.exists():
            yield _Rail(
                label,
                FileSensor([NumberFile(power)], 1e-3),
                USUAL_RAIL_V * SHUNT_STEP_V / USUAL_SHUNT_OHM,
            )


def _resolution_w(chip: Chip, number: int) -> float:
    """One step of current times the rail's voltage."""
    shunt_ohm = (whole_number(chip.text(f"shunt{number}_resistor")) or 0) * 1e-6
    rail_v = (whole_number(chip.text(f"in{number}_input")) or 0) * 1e-3
    return (rail_v or USUAL_RAIL_V) * SHUNT_STEP_V / (shunt_ohm or USUAL_SHUNT_OHM)


def _unique(found: Iterable[_Rail]) -> Iterator[_Rail]:
    seen: set[str] = set()
    for rail in found:
        if rail.label not in seen:
            seen.add(rail.label)
            yield rail


def _container(label: str, labels: set[str]) -> str | None:
    if label in MODULE_INPUTS or label == CARRIER_INPUT:
        return None
    if CARRIER_RAILS.fullmatch(label):
        return CARRIER_INPUT if CARRIER_INPUT in labels else None
    if label == SYSTEM_5V_PART and SYSTEM_5V in labels:
        return SYSTEM_5V
    return next((whole for whole in MODULE_INPUTS if whole in labels), None)


def _scope(label: str) -> Scope:
    if label in MODULE_INPUTS:
        return Scope.NODE
    has_cpu, has_gpu = "CPU" in label, "GPU" in label
    if has_cpu != has_gpu:
        return Scope.CPU if has_cpu else Scope.GPU
    return Scope.DRAM if re.search(r"DDR|VDDQ", label) else Scope.OTHER


def _name(label: str) -> str:
    return f"rail/{label.lower()}"
