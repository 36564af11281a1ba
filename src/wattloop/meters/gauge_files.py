"""Sensors that are plain files: Intel GPUs, NVIDIA Grace and Jetson, batteries, and custom ones."""

import glob
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from wattloop.core.errors import ConfigError, MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Provenance, Scope
from wattloop.core.results import Missing
from wattloop.hardware.host import (
    Chip,
    DecimalFile,
    Host,
    NumberFile,
    find_chips,
    read_text,
    read_whole,
    whole_number,
)
from wattloop.meters.base import Context, Meter, Reading


class GaugeSensor(Protocol):
    """Interface of a sensor that gives watts or joules."""

    def read(self) -> Reading:
        """Watts or joules, or a gap."""
        ...

    def refusal(self) -> tuple[str, Path | None]:
        """Return why it cannot be read, and the file; ("", None) when it can."""
        ...

    def close(self) -> None: ...


class Gauge(NamedTuple):
    """One domain and its sensor."""

    domain: Domain
    sensor: GaugeSensor


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
        """Return the battery's state from the kernel."""
        try:
            return self._status.read_text(errors="replace").strip()
        except OSError:
            return ""

    def refusal(self) -> tuple[str, Path | None]:
        """Why the power cannot be read."""
        return self._power.refusal()

    def close(self) -> None:
        self._power.close()


UNITS = {"W": 1.0, "mW": 1e-3, "uW": 1e-6, "J": 1.0, "mJ": 1e-3, "uJ": 1e-6}
LARGEST_SCALE = 1e12
KEYS = ("name", "path", "unit", "scale", "scope", "kind", "inside", "provenance")
Choice = TypeVar("Choice", bound=StrEnum)


def configured_gauges(
    entries: Sequence[Mapping[str, Any]], host: Host
) -> tuple[list[Gauge], list[Missing]]:
    """Return a gauge for every file that the entries name, and the entries without a file.

    Raises:
        ConfigError: an entry is wrong; the message names it and what is allowed.
    """
    gauges: list[Gauge] = []
    missing: list[Missing] = []
    for number, entry in enumerate(entries, start=1):
        domain, pattern, factor = _checked(entry, f"gauges[{number}]")
        paths = sorted(glob.glob(str(host.sysfs / pattern)))  # noqa: PTH207 - the pattern may be absolute, which Path.glob refuses
        if not paths:
            missing.append(
                Missing(
                    domain["name"],
                    f"no file matches {host.sysfs / pattern}",
                    f"correct 'path' of gauge '{domain['name']}' in your settings, or remove it",
                )
            )
        for index, path in enumerate(paths):
            name = domain["name"] if len(paths) == 1 else f"{domain['name']}:{index}"
            sensor = FileSensor([DecimalFile(Path(path))], factor)
            gauges.append(Gauge(Domain(**{**domain, "name": name, "source": path}), sensor))
    _refuse_twins(gauges)
    return gauges, missing


def _checked(entry: Mapping[str, Any], where: str) -> tuple[dict[str, Any], str, float]:
    """Fields of the domain, pattern of the path, and factor to SI units."""
    name = _text(entry, "name", where)
    where = f"{where} '{name}'"
    unknown = [key for key in entry if key not in KEYS]
    if unknown:
        raise ConfigError(f"{where}: unknown key '{unknown[0]}'; known are {', '.join(KEYS)}")
    path = _text(entry, "path", where)
    unit = _text(entry, "unit", where)
    if unit not in UNITS:
        raise ConfigError(f"{where}: unit is {unit!r}; use one of {', '.join(UNITS)}")
    natural = DomainKind.COUNTER if unit.endswith("J") else DomainKind.GAUGE
    kind = _choice(DomainKind, entry.get("kind", natural), "kind", where)
    if kind is not natural:
        raise ConfigError(
            f"{where}: kind is '{kind}' but unit is {unit}; a counter is in J, mJ or uJ, "
            "a gauge in W, mW or uW"
        )
    inside = entry.get("inside")
    if inside is not None and not isinstance(inside, str):
        raise ConfigError(f"{where}: inside must be the name of a domain, not {inside!r}")
    fields = {
        "name": name,
        "kind": kind,
        "scope": _choice(Scope, entry.get("scope", Scope.OTHER), "scope", where),
        "inside": inside or None,
        "provenance": _choice(
            Provenance, entry.get("provenance", Provenance.MEASURED), "provenance", where
        ),
        "resolution": UNITS[unit] * _scale(entry, where),
        # Nothing is known of the sensor: windows are told not to trust it below this.
        "update_period_s": 0.1,
        "read_cost_s": 20e-6,
    }
    return fields, path, UNITS[unit] * _scale(entry, where)


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        given = f"is {value!r}" if key in entry else "is missing"
        raise ConfigError(
            f"{where}: '{key}' {given}; a gauge needs name, path and unit, such as "
            "{name: fan, path: class/hwmon/hwmon2/power1_input, unit: uW}"
        )
    return value.strip()


def _scale(entry: Mapping[str, Any], where: str) -> float:
    value = entry.get("scale", 1.0)
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 < value <= LARGEST_SCALE:
        raise ConfigError(f"{where}: scale is {value!r}; use a number above 0, such as 0.5")
    return float(value)


def _choice(choices: type[Choice], value: Any, key: str, where: str) -> Choice:
    try:
        return choices(value)
    except ValueError:
        allowed = ", ".join(choice.value for choice in choices)
        raise ConfigError(f"{where}: {key} is {value!r}; use one of {allowed}") from None


def _refuse_twins(gauges: Iterable[Gauge]) -> None:
    seen: dict[str, str] = {}
    for gauge in gauges:
        name, source = gauge.domain.name, gauge.domain.source
        if name in seen:
            raise ConfigError(f"gauges: two are called '{name}' ({seen[name]} and {source})")
        seen[name] = source


MODULE_INPUTS = ("VDD_IN", "POM_5V_IN", "5V_IN")
"""The rail that feeds the whole module: it contains all the module's other rails."""
CARRIER_INPUT = "VDD_MUX"
CARRIER_RAILS = re.compile(r"VDD_(5V0?_IO_SYS|3V3_SYS|3V3_IO|1V8_IO|M2_IN|3V3_IO_SLP|3V3_SYS_M2)")
SYSTEM_5V = "VIN_SYS_5V0"
SYSTEM_5V_PART = "VDDQ_VDD2_1V8AO"
KNOWN_ERROR = 0.05
"""Our allowance for chip, shunt resistor and rounding."""
SHUNT_STEP_V = 40e-6
"""Voltage over the shunt of one step of the chip."""
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


MICRO = 1e-6
BATTERY_PERIOD_S = 5.0
"""Embedded controllers renew the figure every one to several seconds."""


def intel_gpus(host: Host) -> Iterator[Gauge]:
    """The energy counter of each discrete Intel GPU (drivers i915 and xe)."""
    chips = [chip for chip in find_chips(host) if chip.name in ("i915", "xe")]
    for number, chip in enumerate(chips):
        path = _card_counter(chip)
        if path is None:
            continue
        tdp_w, tdp_note = _power_limit(chip)
        domain = Domain(
            name=f"gpu:intel{number}",
            kind=DomainKind.COUNTER,
            scope=Scope.GPU,
            source=f"hwmon {chip.name} {path.name}",
            resolution=61e-6,
            tdp_w=tdp_w,
            tdp_note=tdp_note,
            device="Intel GPU",
        )
        yield Gauge(domain, FileSensor([NumberFile(path)], MICRO))


GRACE_PARTS: dict[str, tuple[str, Scope, bool]] = {
    # What NVIDIA calls it: our name, scope, whether it lies inside the socket's power.
    "Module": ("module:{0}", Scope.NODE, False),
    "Grace": ("cpu:{0}/package", Scope.CPU, False),
    "CPU": ("cpu:{0}/core", Scope.CPU, True),
    "SysIO": ("cpu:{0}/uncore", Scope.CPU, True),
}


def grace_modules(host: Host) -> Iterator[Gauge]:
    """Power of NVIDIA Grace sockets and of what is in and around them."""
    for directory, part, socket in _grace_meters(host):
        name, scope, is_part = GRACE_PARTS[part]
        interval_s = (read_whole(directory / "power1_average_interval") or 50) / 1_000
        domain = Domain(
            name=name.format(socket),
            kind=DomainKind.GAUGE,
            scope=scope,
            source=f"hwmon power_meter {part} Power Socket {socket}",
            inside=f"cpu:{socket}/package" if is_part else None,
            resolution=0.001,
            update_period_s=interval_s,
            averaging_s=interval_s,
            # Each read asks the firmware.
            read_cost_s=1e-3,
            device="NVIDIA Grace",
        )
        yield Gauge(domain, FileSensor([NumberFile(directory / "power1_average")], MICRO))


def has_grace(host: Host) -> bool:
    """Return True if a Grace socket is measured, whose power already contains the memory's."""
    return any(part == "Grace" for _, part, _ in _grace_meters(host))


def batteries(host: Host) -> Iterator[Gauge]:
    """Power drawn from the batteries that feed the machine itself."""
    for directory in sorted((host.sysfs / "class/power_supply").glob("*")):
        is_battery = read_text(directory / "type") == "Battery" or directory.name.startswith("BAT")
        # Mice and headsets have batteries too; the kernel gives them the scope "Device".
        if not is_battery or read_text(directory / "scope") == "Device":
            continue
        power = _battery_power(directory)
        if power is None:
            continue
        domain = Domain(
            name=f"battery:{directory.name}",
            kind=DomainKind.GAUGE,
            scope=Scope.NODE,
            source=f"power_supply {directory.name}",
            resolution=0.01,
            update_period_s=BATTERY_PERIOD_S,
            read_cost_s=5e-3,
            device=read_text(directory / "model_name"),
        )
        yield Gauge(domain, BatterySensor(directory / "status", power))


def _card_counter(chip: Chip) -> Path | None:
    """The counter of the whole card; the package's where the card has none."""
    paths = {chip.text(f"energy{n}_label"): path for n, path in chip.channels("energy*_input")}
    for label in ("card", "", "pkg"):
        if label in paths:
            return paths[label]
    return None


def _power_limit(chip: Chip) -> tuple[float | None, str]:
    rated_w = (whole_number(chip.text("power1_rated_max")) or 0) * MICRO
    limit_w = (whole_number(chip.text("power1_max")) or 0) * MICRO
    if 0 < limit_w < rated_w:
        return limit_w, f"enforced power limit {limit_w:g} W of {rated_w:g} W"
    if rated_w > 0:
        return rated_w, "rated power"
    return (limit_w, "power limit") if limit_w > 0 else (None, "")


def _grace_meters(host: Host) -> Iterator[tuple[Path, str, int]]:
    for chip in find_chips(host):
        if chip.name not in ("power_meter", "acpitz"):
            continue
        # The files are next to the name, or with the ACPI device one level down.
        for directory in (chip.directory, chip.directory / "device"):
            label = read_text(directory / "power1_oem_info")
            match = re.fullmatch(r"(Module|Grace|CPU|SysIO) Power Socket (\d+)", label)
            if match:
                yield directory, match.group(1), int(match.group(2))
                break


def _battery_power(directory: Path) -> FileSensor | None:
    # Some drivers show what flows out as a negative number.
    def file(leaf: str) -> NumberFile:
        return NumberFile(directory / leaf, signed=True)

    if (directory / "power_now").exists():
        return FileSensor([file("power_now")], MICRO, magnitude=True)
    if (directory / "current_now").exists() and (directory / "voltage_now").exists():
        files = [file("current_now"), file("voltage_now")]
        return FileSensor(files, MICRO * MICRO, magnitude=True)
    return None


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

    def read(self) -> Sequence[Reading]:
        return [gauge.sensor.read() for gauge in self._gauges]

    def close(self) -> None:
        for gauge in self._gauges:
            gauge.sensor.close()


def _known(host: Host) -> Iterable[Gauge]:
    yield from intel_gpus(host)
    yield from grace_modules(host)
    yield from rails(host)
    yield from batteries(host)


def _is_idle_battery(gauge: Gauge) -> bool:
    """Return True for a battery on mains: its power is not the machine's, nor missing."""
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
