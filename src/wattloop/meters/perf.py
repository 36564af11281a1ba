"""Perf events of the kernel: RAPL counters, and what programs do: cycles, instructions, memory."""

import errno
import math
import os
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Scope
from wattloop.core.results import Missing
from wattloop.hardware.host import Host, read_whole
from wattloop.meters import rapl
from wattloop.meters.base import Context, Meter, Reading

SYSCALL_NUMBERS = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331, "riscv64": 241}
PERF_FLAG_FD_CLOEXEC = 8
ATTRIBUTES = struct.Struct("=IIQQQQQIIQ")
"""`struct perf_event_attr` as first published (64 bytes), which every kernel takes: type, size,
config, sample_period, sample_type, read_format, flags, wakeup_events, bp_type, bp_addr."""
COUNT = struct.Struct("=Q")


class PerfCounter:
    """Counts one event from now on.

    Args:
        kind: number of the event source (`type` in sysfs).
        config: number of the event within it.
        cpu: which CPU; -1 for wherever the process runs.
        pid: which process; -1 for all (needs `cpu`), 0 for this one.
        flags: bits of `struct perf_event_attr`, such as 2 to count what it starts as well.

    Raises:
        OSError: the kernel refuses; `errno` says why (EACCES or EPERM: permission).
    """

    __slots__ = ("_fd",)

    def __init__(self, kind: int, config: int, cpu: int, pid: int = -1, flags: int = 0) -> None:
        self._fd = -1
        self._fd = _open(kind, config, cpu, pid, flags)

    def read(self) -> int:
        """The count since it was opened. Raises OSError when the CPU went away."""
        data = os.read(self._fd, COUNT.size)
        if len(data) != COUNT.size:
            # The kernel answers with nothing when the event is in an error state.
            raise OSError("the kernel no longer counts this event")
        (count,) = COUNT.unpack(data)
        return int(count)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open(kind: int, config: int, cpu: int, pid: int, flags: int) -> int:
    import ctypes  # costs milliseconds that machines without perf need not pay

    machine = os.uname().machine
    number = SYSCALL_NUMBERS.get(machine)
    if number is None:
        raise OSError(f"the number of perf_event_open is not known for {machine}")
    attributes = ATTRIBUTES.pack(kind, ATTRIBUTES.size, config, 0, 0, 0, flags, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    fd: int = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_char_p(attributes),
        ctypes.c_int(pid),
        ctypes.c_int(cpu),
        ctypes.c_int(-1),
        ctypes.c_ulong(PERF_FLAG_FD_CLOEXEC),
    )
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return fd


HARDWARE = 0
"""PERF_TYPE_HARDWARE."""
CYCLES, INSTRUCTIONS, CACHE_MISSES = (HARDWARE, 0), (HARDWARE, 1), (HARDWARE, 3)
INHERIT, PINNED, EXCLUDE_KERNEL, EXCLUDE_HYPERVISOR = 1 << 1, 1 << 2, 1 << 5, 1 << 6
USER_CODE = INHERIT | PINNED | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR
"""Only the program's own code, which a plain user may count. Pinned: it counts all the time or
not at all, never a part that would have to be scaled."""
LINE_B = 64
"""Bytes that a miss of the last cache brings from memory."""


class ThreadCounters:
    """Count of one event in threads, and in those that they start from now on.

    Args:
        event: kind and number of the event.
        threads: which ones; None for all of this process.
        flags: bits of `struct perf_event_attr`.

    Raises:
        OSError: the kernel refuses.
    """

    def __init__(
        self, event: tuple[int, int], threads: Sequence[int] | None = None, flags: int = USER_CODE
    ) -> None:
        self._counters: list[PerfCounter] = []
        try:
            for thread in _own_threads() if threads is None else threads:
                with suppress(ProcessLookupError):  # it has just ended
                    self._counters.append(PerfCounter(*event, cpu=-1, pid=thread, flags=flags))
        except OSError:
            self.close()
            raise

    def read(self) -> int:
        """Raise OSError when another program uses the processor's counter."""
        return sum(counter.read() for counter in self._counters)

    def close(self) -> None:
        for counter in self._counters:
            counter.close()


def _own_threads() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/task")]  # noqa: PTH208 - names only
    except OSError:
        return [0]


PROGRAM_EVENTS = {"cycles": CYCLES, "instructions": INSTRUCTIONS, "cache_misses": CACHE_MISSES}
CONTROLLERS = ("cas_count_read", "cas_count_write", "data_read", "data_write")
"""Names of a memory controller's events in sysfs (`uncore_imc*` of Intel)."""
SIZES = {"MiB": 2**20, "MB": 10**6, "64Bytes": 64}


class ProgramCounters:
    """Cycles, instructions and misses of the last cache by this process's own code, and bytes that
    the memory controllers move for the whole machine, as far as the kernel counts them.

    Attributes:
        reasons: what is not counted -> why, with the remedy.
    """

    def __init__(self, host: Host, events: Mapping[str, tuple[int, int]] = PROGRAM_EVENTS) -> None:
        self.reasons: dict[str, str] = {}
        self._counters: dict[str, list[tuple[ThreadCounters | PerfCounter, float]]] = {}
        for name, event in events.items():
            try:
                self._counters[name] = [(ThreadCounters(event), 1.0)]
            except OSError as error:
                self.reasons[name] = _why_not(error)
        parts: list[tuple[ThreadCounters | PerfCounter, float]] = []
        try:
            for kind, config, cpu, scale_b in find_memory_events(host):
                parts.append((PerfCounter(kind, config, cpu), scale_b))
        except OSError as error:
            self._close(parts)
            self.reasons["memory_b"] = _why_not(error)
        else:
            if parts:
                self._counters["memory_b"] = parts

    def read(self) -> dict[str, float]:
        """Return counts since the counters were opened; without those that stopped counting."""
        found = {}
        for name, parts in list(self._counters.items()):
            try:
                found[name] = sum(counter.read() * scale for counter, scale in parts)
            except OSError:
                self.reasons[name] = "another program uses the processor's counters"
                self._close(self._counters.pop(name))
        return found

    def close(self) -> None:
        for parts in self._counters.values():
            self._close(parts)

    @staticmethod
    def _close(parts: Sequence[tuple[ThreadCounters | PerfCounter, float]]) -> None:
        for counter, _ in parts:
            counter.close()


def find_memory_events(host: Host) -> list[tuple[int, int, int, float]]:
    """Return reads and writes of every memory controller: kind, config, CPU and bytes per count."""
    found = []
    for source in sorted((host.sysfs / "bus/event_source/devices").glob("uncore_imc*")):
        kind = read_whole(source / "type")
        for name in CONTROLLERS:
            config = _event_config(source, _read(source / f"events/{name}"))
            size = SIZES.get(_read(source / f"events/{name}.unit"))
            scale = _positive(_read(source / f"events/{name}.scale"))
            if kind is not None and config is not None and size and scale is not None:
                cpus = _cpu_list(_read(source / "cpumask"))
                found += [(kind, config, cpu, scale * size) for cpu in cpus]
    return found


def _event_config(source: Path, text: str) -> int | None:
    """Return `event=0x04,umask=0x03` as a number; `format` of the source says which bits."""
    config = 0
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        bits = re.fullmatch(r"config:(\d+)(?:-\d+)?", _read(source / f"format/{name}"))
        if bits is None or not re.fullmatch(r"0x[0-9a-fA-F]+|\d+", value):
            return None
        config |= int(value, 0) << int(bits[1])
    return config if text else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _why_not(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{error.strerror}; {REMEDY}"
    if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV):
        return "the kernel has no such event here, as in most virtual machines"
    return error.strerror or str(error)


POWER = "bus/event_source/devices/power"
UPDATE_PERIOD_S = 0.001
MOST_CPUS = 65_536
"""Above any number of CPUs that Linux is built for; a mask that names more is garbage."""
REMEDY = (
    "run 'sudo sysctl kernel.perf_event_paranoid=0' (or give the program CAP_PERFMON), "
    "see docs/meters/perf.md"
)
LEAVES = {
    "energy-pkg": "package",
    "energy-cores": "core",
    # powercap calls the same register "uncore" (thesis, section 3.3.3).
    "energy-gpu": "uncore",
    "energy-ram": "dram",
    "energy-psys": "psys",
}


def detect(context: Context) -> Sequence["Perf"]:
    """Find the energy events of domains that powercap does not read already."""
    events = find_events(context.host)
    taken = rapl.readable_names(context.host)
    left = [event for event in events if event.name not in taken]
    if events and not left:
        raise MeterUnavailable(
            "perf",
            "powercap already reads the same counters; perf is kept for cross-checking",
            "compare the two with 'wattloop devices --verify'",
        )
    return _opened(context.host, left)


def detect_second_source(context: Context) -> Sequence["Perf"]:
    """Find the energy events, whether or not powercap reads the same domains."""
    return _opened(context.host, find_events(context.host))


class PowerEvent(NamedTuple):
    """One energy event on one CPU, which stands for its package."""

    name: str
    label: str
    kind: int
    config: int
    cpu: int
    joules_per_count: float


def find_events(host: Host) -> list[PowerEvent]:
    """The energy events in sysfs, one for each package (or die) that counts by itself."""
    kind = read_whole(host.sysfs / POWER / "type")
    cpus = _cpu_list(host.read_text("sys", f"{POWER}/cpumask") or "")
    if kind is None:
        return []
    events: list[PowerEvent] = []
    sockets = _sockets(host, cpus)
    for label, leaf in LEAVES.items():
        config = _config(host.read_text("sys", f"{POWER}/events/{label}"))
        scale = _scale(host, label)
        if config is None or scale is None:
            continue
        for cpu, socket in sockets.items():
            events.append(PowerEvent(_name(socket, leaf), label, kind, config, cpu, scale))
            if leaf == "psys":
                break
    if not any(event.label == "energy-pkg" for event in events):
        # Seen in virtual machines: psys alone, and it never moves. Real ones count packages too.
        events = [event for event in events if event.label != "energy-psys"]
    return events


class Perf(Meter):
    """Counters that run from the moment the meter is opened."""

    name: ClassVar[str] = "perf"

    def __init__(self, events: Sequence[PowerEvent]) -> None:
        self._counters: list[tuple[PowerEvent, PerfCounter]] = []
        refused = []
        for event in events:
            try:
                counter = PerfCounter(event.kind, event.config, event.cpu)
            except OSError as error:
                refused.append(_refusal(event, error))
            else:
                self._counters.append((event, counter))
        self._refused = tuple(refused)
        self._domains = tuple(_domain(event) for event, _ in self._counters)

    def read(self) -> Sequence[Reading]:
        """Joules of each event since the meter was opened."""
        return [_joules(event, counter) for event, counter in self._counters]

    def close(self) -> None:
        for _, counter in self._counters:
            counter.close()


def _opened(host: Host, events: Sequence[PowerEvent]) -> Sequence[Perf]:
    if not events:
        directory = host.sysfs / POWER
        raise MeterUnavailable(
            "perf",
            f"{directory / 'events'} has no energy event"
            if directory.is_dir()
            else f"{directory} does not exist",
            "load it with 'sudo modprobe rapl'; virtual machines have none",
            parts=("cpu",),
        )
    meter = Perf(events)
    if not meter.domains:
        first = meter.refused[0]
        raise MeterUnavailable(
            "perf", first.reason, first.remedy, parts=tuple(m.name for m in meter.refused)
        )
    return [meter]


def _joules(event: PowerEvent, counter: PerfCounter) -> Reading:
    try:
        return counter.read() * event.joules_per_count
    except OSError as error:
        return Gap(f"perf {event.label} on CPU {event.cpu}: {error.strerror or error}")


def _refusal(event: PowerEvent, error: OSError) -> Missing:
    reason = f"perf power/{event.label}/ on CPU {event.cpu}: {error.strerror or error}"
    denied = error.errno in (errno.EACCES, errno.EPERM)
    return Missing(event.name, reason, REMEDY if denied else "")


def _domain(event: PowerEvent) -> Domain:
    socket, _, leaf = event.name.rpartition("/")
    scopes = {"energy-ram": Scope.DRAM, "energy-psys": Scope.NODE}
    is_part = event.label in ("energy-cores", "energy-gpu")
    return Domain(
        name=event.name,
        kind=DomainKind.COUNTER,
        scope=scopes.get(event.label, Scope.CPU),
        source=f"perf power/{event.label}/ on CPU {event.cpu}",
        inside=f"{socket}/package" if is_part and leaf else None,
        # The event counts in 2^-32 J, the register below it in 61 uJ.
        resolution=61e-6,
        update_period_s=UPDATE_PERIOD_S,
        read_cost_s=3e-6,
    )


def _name(socket: str, leaf: str) -> str:
    if leaf == "psys":
        return "psys"
    if leaf == "dram":
        return f"dram:{socket.removeprefix('cpu:')}"
    return f"{socket}/{leaf}"


def _sockets(host: Host, cpus: Sequence[int]) -> dict[int, str]:
    """Return the socket (or die) that each CPU of the mask represents.

    Intel counts by die where a package has several. AMD counts by package, though some kernels
    (6.9 to 6.11) list one CPU for each core complex: their counts are the same joules again.
    """
    packages: dict[int, list[int]] = {}
    for cpu in cpus:
        packages.setdefault(_topology(host, cpu, "physical_package_id"), []).append(cpu)
    one_each = "AuthenticAMD" in (host.read_text("proc", "cpuinfo") or "")
    sockets = {}
    for package, members in packages.items():
        if len(members) == 1 or one_each:
            sockets[members[0]] = f"cpu:{package}"
        else:
            for cpu in members:
                sockets[cpu] = f"cpu:{package}/die:{_topology(host, cpu, 'die_id')}"
    return sockets


def _topology(host: Host, cpu: int, leaf: str) -> int:
    return read_whole(host.sysfs / f"devices/system/cpu/cpu{cpu}/topology/{leaf}") or 0


def _cpu_list(text: str) -> list[int]:
    """`0,18` or `0-1` as numbers."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            return []
        low, high = int(match[1]), int(match[2] or match[1])
        if high >= MOST_CPUS:
            return []
        cpus.extend(range(low, high + 1))
    return cpus


def _config(text: str | None) -> int | None:
    """`event=0x02` as a number."""
    match = re.fullmatch(r"event=(0x[0-9a-fA-F]+|\d+)", text or "")
    return int(match.group(1), 0) if match else None


def _scale(host: Host, label: str) -> float | None:
    """Joules per count; None when the unit is not joules, so that nothing is guessed."""
    if host.read_text("sys", f"{POWER}/events/{label}.unit") != "Joules":
        return None
    return _positive(host.read_text("sys", f"{POWER}/events/{label}.scale") or "")


def _positive(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None
