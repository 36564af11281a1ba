"""Main memory: its modules, its use, and its power where nothing measures it (thesis 4.2)."""

import math
import os
import re
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, NamedTuple

from wattloop.core.errors import CommandError, ConfigError, MeterUnavailable
from wattloop.core.files import CLOSE_ON_EXEC
from wattloop.core.records import Domain, DomainKind, Gap, Provenance, Scope, Signal
from wattloop.hardware.host import Host, whole_number
from wattloop.meters import perf, rapl
from wattloop.meters.base import Context, Meter, Reading
from wattloop.meters.gauge_files import has_grace

DMIDECODE = "dmidecode"
"""Value of the setting that runs dmidecode."""
TABLE = "firmware/dmi/tables/DMI"
ENTRIES = "firmware/dmi/entries"
MIB_PER_GIB = 1024
MEMORY_DEVICE = 17
"""SMBIOS structure type (DMTF DSP0134, section 7.18)."""
TYPES = {
    0x07: "RAM", 0x0F: "SDRAM", 0x12: "DDR", 0x13: "DDR2", 0x18: "DDR3", 0x1A: "DDR4",
    0x1B: "LPDDR", 0x1C: "LPDDR2", 0x1D: "LPDDR3", 0x1E: "LPDDR4", 0x20: "HBM", 0x21: "HBM2",
    0x22: "DDR5", 0x23: "LPDDR5", 0x24: "HBM3",
}  # fmt: skip
FORMS = {0x09: "DIMM", 0x0B: "Row Of Chips", 0x0D: "SODIMM", 0x0F: "FB-DIMM", 0x10: "Die"}
NOT_MEMORY = (0x08, 0x09, 0x0A, 0x0B, 0x1F)
"""ROM, flash, EEPROM, FEPROM and logical non-volatile devices share the structure."""
NOT_MEMORY_NAMES = ("ROM", "Flash", "EEPROM", "FEPROM", "Logical non-volatile device")
"""The same as dmidecode calls them."""
PERSISTENT = (0x05, 0x06, 0x07)
"""Memory technologies without DRAM: NVDIMM-F, NVDIMM-P, Intel Optane."""


class Dimm(NamedTuple):
    """One installed module."""

    capacity_gib: float
    technology: str = ""
    """`DDR4`, `LPDDR5`, ...; empty when not known."""
    form: str = ""
    """`DIMM`, `SODIMM`, `Row Of Chips`, ...; empty when not known."""
    speed_mts: int | None = None
    locator: str = ""


def dimms_from_smbios(host: Host) -> tuple[Dimm, ...]:
    """Return modules in the firmware's tables; empty when there are none or they cannot be read.

    Raises:
        PermissionError: the tables are there, for root only.
    """
    table = _bytes(host.sysfs / TABLE)
    if table:
        return parse_smbios(table)
    entries = sorted((host.sysfs / ENTRIES).glob(f"{MEMORY_DEVICE}-*/raw"), key=_instance)
    return parse_smbios(b"".join(_bytes(entry) for entry in entries))


def parse_smbios(table: bytes) -> tuple[Dimm, ...]:
    """Parse installed modules from consecutive SMBIOS structures."""
    dimms = []
    start = 0
    while start + 4 <= len(table):
        kind, length = table[start], table[start + 1]
        if length < 4 or start + length > len(table):
            break
        # Strings follow the structure and end with two zero bytes.
        end = table.find(b"\0\0", start + length)
        end = len(table) if end < 0 else end + 2
        if kind == MEMORY_DEVICE:
            strings = table[start + length : end].split(b"\0")
            dimm = _memory_device(table[start : start + length], strings)
            if dimm is not None:
                dimms.append(dimm)
        start = end
    return tuple(dimms)


def dimms_from_dmidecode(text: str) -> tuple[Dimm, ...]:
    """Parse installed modules from the output of `dmidecode --type 17`."""
    dimms = []
    for block in re.split(r"\n\s*\n", text):
        if not re.search(r"^\s*Memory Device\s*$", block, re.MULTILINE):
            continue
        fields = dict(re.findall(r"^\s+([\w ]+): (.*?)\s*$", block, re.MULTILINE))
        size = re.fullmatch(r"(\d+) ([kKMGT])i?B", fields.get("Size", ""))
        technology = fields.get("Type", "")
        persistent = "Optane" in fields.get("Memory Technology", "")
        if size is None or persistent or technology in NOT_MEMORY_NAMES:
            continue
        unit_gib = {"K": 2**-20, "M": 2**-10, "G": 1.0, "T": 2.0**10}[size.group(2).upper()]
        speed = re.match(r"(\d+) M", fields.get("Speed", ""))
        dimms.append(
            Dimm(
                capacity_gib=int(size.group(1)) * unit_gib,
                technology="" if technology in ("Unknown", "Other") else technology,
                form=fields.get("Form Factor", ""),
                speed_mts=int(speed.group(1)) if speed else None,
                locator=fields.get("Locator", ""),
            )
        )
    return tuple(dimms)


def dimms_from_setting(text: str) -> tuple[Dimm, ...]:
    """Parse modules as a user writes them: `8x32`, or `4x16+2x32`, in GiB; or run dmidecode.

    Raises:
        ConfigError: it is neither.
        CommandError: dmidecode was to be asked, and fails.
    """
    if text == DMIDECODE:
        return run_dmidecode()
    dimms: list[Dimm] = []
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(\d{1,4})\s*[xX*]\s*(\d{1,5}(?:\.\d+)?)\s*(?:Gi?B?)?\s*", part)
        if match is None or int(match.group(1)) == 0 or float(match.group(2)) == 0:
            raise ConfigError(
                f"dimms is {text!r}; write COUNTxCAPACITY in GiB, such as 8x32, or 4x16+2x32 "
                "for modules of two sizes, or dmidecode to ask that program"
            )
        dimms += [Dimm(float(match.group(2)))] * int(match.group(1))
    return tuple(dimms)


def describe(dimms: Iterable[Dimm]) -> str:
    """For people: `8 x 32 GiB DDR4`."""
    kinds = Counter((dimm.capacity_gib, dimm.technology) for dimm in dimms)
    parts = (f"{n} x {size:g} GiB {technology}".strip() for (size, technology), n in kinds.items())
    return " + ".join(parts)


def _memory_device(data: bytes, strings: Sequence[bytes]) -> Dimm | None:
    if len(data) < 0x13 or data[0x12] in NOT_MEMORY:
        return None
    if len(data) > 0x28 and data[0x28] in PERSISTENT:
        return None
    capacity_gib = _capacity_gib(data)
    if not capacity_gib:
        return None
    index = data[0x10]
    locator = strings[index - 1].decode(errors="replace") if 0 < index <= len(strings) else ""
    return Dimm(
        capacity_gib=capacity_gib,
        technology=TYPES.get(data[0x12], ""),
        form=FORMS.get(data[0x0E], ""),
        speed_mts=_speed_mts(data),
        locator=locator.strip(),
    )


def _capacity_gib(data: bytes) -> float | None:
    """Size of the module; None for an empty slot or an unknown size."""
    size = _word(data, 0x0C)
    if size in (None, 0, 0xFFFF):
        return None
    if size == 0x7FFF:
        # Too large for 15 bits: the extended size, in MiB, follows.
        extended = _double_word(data, 0x1C)
        return (extended & 0x7FFF_FFFF) / MIB_PER_GIB if extended else None
    assert size is not None
    if size & 0x8000:
        return (size & 0x7FFF) / MIB_PER_GIB**2
    return size / MIB_PER_GIB


def _speed_mts(data: bytes) -> int | None:
    speed = _word(data, 0x15)
    if speed == 0xFFFF:
        speed = _double_word(data, 0x54)
    return speed or None


def _word(data: bytes, offset: int) -> int | None:
    return struct.unpack_from("<H", data, offset)[0] if len(data) >= offset + 2 else None


def _double_word(data: bytes, offset: int) -> int | None:
    return struct.unpack_from("<I", data, offset)[0] if len(data) >= offset + 4 else None


def _instance(raw: Path) -> int:
    return whole_number(raw.parent.name.partition("-")[2]) or 0


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except PermissionError:
        raise
    except OSError:
        return b""


def run_dmidecode(program: str = "dmidecode", timeout_s: float = 10.0) -> tuple[Dimm, ...]:
    """Return modules that dmidecode finds. It needs root; its message is in the error if it fails.

    Raises:
        CommandError: it is not there, fails, or lists none.
    """
    import subprocess  # rarely needed, and slow to load

    try:
        done = subprocess.run(
            [program, "--type", "17"],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise CommandError(
            f"{program} is not installed; install it, or set 'dimms' (such as 8x32)", 127
        ) from None
    except PermissionError:
        raise CommandError(f"{program} may not be run by you; use sudo", 126) from None
    except subprocess.TimeoutExpired:
        raise CommandError(f"{program} did not answer in {timeout_s:g} s", 124) from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        last = words[-1] if words else "no message"
        raise CommandError(f"{program} failed: {last}; run it with sudo", done.returncode)
    dimms = dimms_from_dmidecode(done.stdout)
    if not dimms:
        raise CommandError(f"{program} lists no memory module; set 'dimms' (such as 8x32)", 1)
    return dimms


class MemoryUse:
    """Reader of `meminfo`: (MemTotal - MemAvailable) / MemTotal."""

    def __init__(self, procfs: Path) -> None:
        self.path = procfs / "meminfo"

    def used_fraction(self) -> float | Gap:
        try:
            # The kernel generates the file for each open; only its first lines are needed.
            fd = os.open(self.path, os.O_RDONLY | CLOSE_ON_EXEC)
            try:
                head = os.read(fd, 512)
            finally:
                os.close(fd)
        except OSError as error:
            return Gap(f"{self.path}: {error.strerror or error}")
        total = re.search(rb"^MemTotal:\s+(\d+) kB", head, re.MULTILINE)
        available = re.search(rb"^MemAvailable:\s+(\d+) kB", head, re.MULTILINE)
        if total is None or available is None or not int(total[1]):
            return Gap(f"{self.path} has no MemTotal and MemAvailable")
        return min(1.0, max(0.0, 1 - int(available[1]) / int(total[1])))


BASE_POWER_W = {16: 4.0, 32: 5.0, 64: 6.0, 128: 8.0, 256: 10.0}
"""Power_base by capacity in GiB, as the thesis gives it (4.2.2)."""
SMALL_STEP_W = 1.0
"""Below 16 GiB we go on with the table's step at its lower end: 1 W per halving, 1 W at least."""
LARGE_STEP_W = 2.0
"""Above 256 GiB with the step at its upper end: 2 W per doubling."""
LOW_POWER_SHARE = 0.25
"""Laptop modules and soldered memory, relative to the server modules of the table."""
TIERS = ((0.05, 0.30), (0.15, 0.60), (0.25, 0.70))
"""mem_use for usage below each bound (4.2.2); 0.75 up to a half, 0.80 above."""


def dram_power_w(dimms: Iterable[Dimm], used_fraction: float) -> float:
    """Power_RAM = Power_base x nb_slots x mem_use (4.1), summed over modules of any size."""
    return sum(base_power_w(dimm) for dimm in dimms) * memory_use_factor(used_fraction)


def memory_use_factor(used_fraction: float) -> float:
    """Return mem_use: the share of the base power at this usage."""
    for bound, factor in TIERS:
        if used_fraction < bound:
            return factor
    return 0.75 if used_fraction <= 0.50 else 0.80


def base_power_w(dimm: Dimm) -> float:
    """Power_base of one module; between two rows of the table, linear in log2(capacity)."""
    share = LOW_POWER_SHARE if is_low_power(dimm) else 1.0
    return share * _table_w(math.log2(dimm.capacity_gib))


def is_low_power(dimm: Dimm) -> bool:
    """Return True for the kind of memory that laptops have."""
    return dimm.technology.startswith("LPDDR") or dimm.form in ("SODIMM", "Row Of Chips")


def _table_w(doublings: float) -> float:
    rows = [(math.log2(capacity), power_w) for capacity, power_w in BASE_POWER_W.items()]
    (first, first_w), (last, last_w) = rows[0], rows[-1]
    if doublings <= first:
        return max(1.0, first_w - SMALL_STEP_W * (first - doublings))
    if doublings >= last:
        return last_w + LARGE_STEP_W * (doublings - last)
    for (low, low_w), (high, high_w) in pairwise(rows):
        if doublings <= high:
            return low_w + (high_w - low_w) * (doublings - low) / (high - low)
    raise AssertionError("unreachable")


KNOWN_ERROR = 0.7
"""Wide enough for what RAPL read in the thesis's own runs, whichever usage tier applied: 5 % more
than the model when idle, up to 65 % more under load, since the model does not see traffic."""
LOW_POWER_ERROR = 0.8
"""Laptop memory, without a measurement to compare with (docs/meters/dram.md)."""
REMEDY = (
    "set 'dimms' in wattloop.yaml or WATTLOOP_DIMMS, such as 8x32 for eight modules of 32 GiB "
    "('sudo dmidecode --type 17' lists them)"
)


def detect(context: Context) -> Sequence["Dram"]:
    """Return the model, unless the memory's power is measured here."""
    measured_by = _measured_by(context)
    if measured_by:
        raise MeterUnavailable(
            "dram", f"{measured_by} measures the memory; the model is kept for cross-checking"
        )
    return detect_second_source(context)


def detect_second_source(context: Context) -> Sequence["Dram"]:
    """Return the model, whether or not the memory's power is measured too."""
    dimms, origin = _modules(context)
    use = MemoryUse(context.host.procfs)
    reading = use.used_fraction()
    if isinstance(reading, Gap):
        raise MeterUnavailable("dram", reading.reason, parts=("dram",))
    return [Dram(dimms, use, origin)]


class Dram(Meter):
    """Watts from the installed modules and the memory in use."""

    name: ClassVar[str] = "dram"
    shared: ClassVar[bool] = True

    def __init__(self, dimms: Sequence[Dimm], use: MemoryUse, origin: str) -> None:
        self._dimms = tuple(dimms)
        self._use = use
        domain = Domain(
            name="dram",
            kind=DomainKind.GAUGE,
            scope=Scope.DRAM,
            source=f"model of {describe(dimms)} ({origin})",
            provenance=Provenance.MODELLED,
            update_period_s=0.1,
            known_error=LOW_POWER_ERROR if any(map(is_low_power, dimms)) else KNOWN_ERROR,
            read_cost_s=20e-6,
            device=describe(dimms),
        )
        self._domains = (domain,)

    def read(self) -> Sequence[Reading]:
        used = self._use.used_fraction()
        return [used if isinstance(used, Gap) else dram_power_w(self._dimms, used)]


def _measured_by(context: Context) -> str:
    if any(name.startswith("dram") for name in rapl.readable_names(context.host)):
        return "RAPL (powercap)"
    if has_grace(context.host):
        return "the Grace socket's sensor"
    events = [event for event in perf.find_events(context.host) if event.label == "energy-ram"]
    if events:
        meter = perf.Perf(events)
        meter.close()
        if meter.domains:
            return "RAPL (perf)"
    return ""


def _modules(context: Context) -> tuple[tuple[Dimm, ...], str]:
    """Return the modules that the user states, else those of the firmware."""
    host, asked = context.host, context.settings.dimms
    if asked and asked != DMIDECODE:
        return dimms_from_setting(asked), "from the setting dimms"
    if _is_virtual(host):
        raise MeterUnavailable(
            "dram",
            "this is a virtual machine: what it shows as memory modules is not real",
            "set 'dimms' in wattloop.yaml or WATTLOOP_DIMMS to your share of the host's modules, "
            "such as 2x32",
            parts=("dram",),
        )
    try:
        if asked:
            return dimms_from_setting(asked), "from dmidecode"
        dimms = dimms_from_smbios(host)
    except CommandError as error:
        raise MeterUnavailable("dram", str(error), REMEDY, parts=("dram",)) from None
    except PermissionError as error:
        raise MeterUnavailable(
            "dram",
            f"{error.filename} lists the memory modules but is for root only",
            f"run 'sudo chmod a+r {error.filename}', or {REMEDY}",
            parts=("dram",),
        ) from None
    if not dimms:
        raise MeterUnavailable(
            "dram",
            f"no memory module is listed under {host.sysfs / 'firmware/dmi'}",
            REMEDY,
            parts=("dram",),
        )
    return dimms, "from SMBIOS"


def _is_virtual(host: Host) -> bool:
    for line in (host.read_text("proc", "cpuinfo") or "").splitlines():
        if line.startswith("flags"):
            return "hypervisor" in line.split()
    return False


def detect_memory_use(context: Context) -> Sequence["HostMemory"]:
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
