"""Share of a run in the energy of devices that it shares: `share: process`.

    E_run = sum over intervals of E_device x w_run / w_all

CPU and memory: w is CPU time, of the run's processes and of everything that runs on the machine.
GPU: w is the SM utilisation that NVML samples per process. An idle GPU is divided evenly among the
processes that have a context on it. The reading of the sensor is measured; the division is a model.
"""

from __future__ import annotations

import itertools
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, Missing, WindowResult, non_overlapping
from wattloop.hardware.host import Host
from wattloop.measure.meter_stream import DomainSource

EVENT = "share"
"""Type of the events that record the run's share in a journal without an end."""
EVENT_EVERY_S = 5.0
CPU = "cpu"
TRIES = 5
"""A process that ends while the tree is read makes the reading useless."""
MOST_POINTS = 8_192
MOST_CHUNKS = 240
IDLE_WEIGHT = 1e-6
"""Weight of an idle interval: small, so that it matters only without any work."""
BUSY_FIELDS = (0, 1, 2, 5, 6)
"""user, nice, system, irq, softirq of /proc/stat; idle, iowait and stolen time are not work."""
NO_CHILDREN = (
    "the processes of this run cannot be found: the kernel does not list the children of a process "
    "(CONFIG_PROC_CHILDREN)"
)
HOW = {CPU: "share by CPU time", "gpu": "share by SM utilisation"}


class ShareCurves:
    """Work of the run and of all processes, summed up over time, by device.

    A device is `cpu` or the name of a GPU.
    """

    def __init__(self) -> None:
        self._curves: dict[str, tuple[list[float], list[float], list[float]]] = {}
        self._lock = threading.RLock()  # the sampler adds points, the program reads windows
        self.reasons: dict[str, str] = {}
        """Device -> the reason why its energy cannot be divided."""

    def add(self, device: str, time_s: float, own: float, everything: float) -> None:
        """Add the work up to `time_s`; neither sum falls."""
        with self._lock:
            times_s, owns, alls = self._curves.setdefault(device, ([], [], []))
            if times_s and time_s <= times_s[-1]:
                return
            times_s.append(time_s)
            owns.append(max(own, owns[-1]) if owns else own)
            alls.append(max(everything, alls[-1]) if alls else everything)
            if len(times_s) > MOST_POINTS:
                for values in (times_s, owns, alls):
                    del values[1 : MOST_POINTS // 2 : 2]

    def last(self, device: str) -> tuple[float, float]:
        """Return both sums at the last update."""
        _, owns, alls = self._curves.get(device, ([], [0.0], [0.0]))
        return owns[-1], alls[-1]

    def share(self, device: str, begin_s: float, end_s: float) -> float | None:
        """Return the run's share of the work between two instants; None where nothing is known."""
        known = self._curves.get(device)
        if known is None or len(known[0]) < 2:
            return None
        times_s, owns, alls = known
        # the first and the last interval are extended to the edges
        begin_s = min(max(begin_s, times_s[0]), times_s[-2])
        end_s = max(min(end_s, times_s[-1]), times_s[1])
        everything = _at(times_s, alls, end_s) - _at(times_s, alls, begin_s)
        own = _at(times_s, owns, end_s) - _at(times_s, owns, begin_s)
        return min(1.0, own / everything) if everything > 0 else 0.0

    def edges(self, device: str, begin_s: float, end_s: float) -> list[float]:
        """Return instants between which the run's share is taken to be constant."""
        times_s = self._curves.get(device, ([], [], []))[0]
        inner = times_s[bisect_right(times_s, begin_s) : bisect_left(times_s, end_s)]
        stride = max(1, -(-len(inner) // MOST_CHUNKS))
        return [begin_s, *inner[::stride], end_s]

    def applied(self, result: WindowResult, channels: Sequence[DomainSource]) -> WindowResult:
        """Return a window with the run's share of each device instead of the whole."""
        by_name = {channel.domain.name: channel for channel in channels}
        energies: list[DomainEnergy] = []
        missing = list(result.missing)
        for energy in result.domains:
            device = _device_of(energy)
            channel = by_name.get(energy.name)
            if device is None or channel is None:
                missing.append(Missing(energy.name, "a meter of the whole node cannot be divided"))
                continue
            if energy.energy_j is None:
                energies.append(energy)
                continue
            parts = self._parts(device, channel, result.begin_s, result.end_s)
            if parts is None:
                reason = self.reasons.get(device, "nothing is known of the work on it")
                missing.append(Missing(energy.name, reason))
                energies.append(energy._replace(energy_j=None, uncertainty_j=0.0))
                continue
            energies.append(_divided(energy, device, *parts))
        read = [e.name for e in energies if e.energy_j is not None]
        inside = [(name, by_name[name].domain.inside) for name in read]
        totals = non_overlapping(inside)
        domains = tuple(e._replace(in_total=e.name in totals) for e in energies)
        return result._replace(domains=domains, missing=tuple(missing))

    def _parts(
        self, device: str, channel: DomainSource, begin_s: float, end_s: float
    ) -> tuple[float, float] | None:
        """Return (the run's joules, those of the others) of one domain."""
        own_j = others_j = 0.0
        with self._lock:
            edges = self.edges(device, begin_s, end_s)
            shares = [self.share(device, *times_s) for times_s in itertools.pairwise(edges)]
        for (left_s, right_s), share in zip(itertools.pairwise(edges), shares, strict=True):
            if share is None:
                return None
            span = channel.between(left_s, right_s) if right_s > left_s else None
            if span is not None:
                own_j += share * span.energy_j
                others_j += (1 - share) * span.energy_j
        return own_j, others_j

    def cpu_part(
        self, channels: Iterable[DomainSource], begin_s: float, end_s: float
    ) -> float | None:
        """Return the run's part of the CPUs' energy; None where it cannot be divided.

        It is a ratio of joules, not of CPU time: intervals without work hardly count in the latter.
        """
        cpus = [channel for channel in channels if channel.domain.scope is Scope.CPU]
        parts = [self._parts(CPU, channel, begin_s, end_s) for channel in cpus]
        own_j = sum(part[0] for part in parts if part is not None)
        others_j = sum(part[1] for part in parts if part is not None)
        if own_j + others_j > 0:
            return own_j / (own_j + others_j)
        return self.share(CPU, begin_s, end_s)

    def to_event(self, time_s: float) -> dict[str, Any]:
        """Return both sums of every device, for the journal."""
        sums = {device: list(self.last(device)) for device in self._curves}
        return {"type": EVENT, "time_s": time_s, "work": sums, "reasons": self.reasons}

    @classmethod
    def from_events(cls, events: Iterable[Any]) -> ShareCurves:
        """Restore the curves of a crashed run."""
        curves = cls()
        for event in events:
            if isinstance(event, dict) and event.get("type") == EVENT:
                for device, (own, everything) in event["work"].items():
                    curves.add(device, float(event["time_s"]), float(own), float(everything))
                curves.reasons = dict(event["reasons"])
        return curves


def _divided(energy: DomainEnergy, device: str, own_j: float, others_j: float) -> DomainEnergy:
    """Return one domain with the run's share.

    The division of idle power is a matter of definition: the interval is
    E x share x (1 - share), nothing for a run alone and half of its part where two work equally.
    """
    whole_j = own_j + others_j
    part = own_j / whole_j if whole_j > 0 else 0.0
    doubt_j = whole_j * part * (1 - part)
    return energy._replace(
        energy_j=own_j,
        uncertainty_j=part * energy.uncertainty_j + doubt_j,
        provenance=Provenance.weakest((energy.provenance, Provenance.MODELLED)),
        source=f"{energy.source}, {HOW[CPU if device == CPU else 'gpu']}",
        tdp_w=None,  # the limit is that of the whole device
        tdp_note="",
    )


def _device_of(energy: DomainEnergy) -> str | None:
    if energy.scope in (Scope.CPU, Scope.DRAM):
        return CPU
    return energy.name.partition("/")[0] if energy.scope is Scope.GPU else None


def _at(times_s: Sequence[float], values: Sequence[float], time_s: float) -> float:
    i = bisect_right(times_s, time_s)
    if i in (0, len(times_s)):
        return values[max(0, i - 1)]
    left_s, right_s = times_s[i - 1], times_s[i]
    return values[i - 1] + (time_s - left_s) / (right_s - left_s) * (values[i] - values[i - 1])


class ProcessShares(ShareCurves):
    """Shares of this run's processes: this process and its descendants.

    Args:
        host: where /proc/stat is.
        gpus: names of the GPUs that the run counts, with their UUIDs where they have one.
    """

    def __init__(self, host: Host, gpus: Mapping[str, str]) -> None:
        super().__init__()
        self._host = host
        self._gpus: dict[str, _NvmlCard] = {}
        self._nvml: Any = None
        self._event_s = -EVENT_EVERY_S
        self._cpu_times_s: dict[_Process, float] = {}
        self._lists_children = _children_file(os.getpid(), os.getpid()).exists()
        if not self._lists_children:
            self.reasons.update(dict.fromkeys((CPU, *gpus), NO_CHILDREN))
            return
        for name, uuid in gpus.items():
            card = self._card(uuid) if uuid.startswith("GPU-") else None
            if card is None:
                self.reasons[name] = "this GPU does not tell the utilisation of each process"
            else:
                self._gpus[name] = card

    def look(self, now_s: float, write: Callable[[dict[str, Any]], None] | None = None) -> None:
        """Add the work done since the last call."""
        if not self._lists_children:
            return
        times_s = _cpu_times_s(os.getpid(), self._cpu_times_s)
        busy_s = self._busy_s()
        if busy_s is None:
            self.reasons[CPU] = f"{self._host.procfs}/stat cannot be read"
        elif times_s is not None:
            # The sum falls when a process leaves without being waited for. Its work stays counted,
            # and the work of the others counts from the lower sum on.
            gain_s = sum(times_s.values()) - sum(self._cpu_times_s.values())
            self._cpu_times_s = times_s
            self.add(CPU, now_s, self.last(CPU)[0] + max(0.0, gain_s), busy_s)
        pids = frozenset(process.pid for process in times_s or self._cpu_times_s)
        for name, card in self._gpus.items():
            own, everything = card.work(self._nvml, pids)
            before = self.last(name)
            self.add(name, now_s, before[0] + own, before[1] + everything)
            if card.fault:
                self.reasons[name] = card.fault
        if write is not None and now_s >= self._event_s + EVENT_EVERY_S:
            self._event_s = now_s
            write(self.to_event(now_s))

    def close(self) -> None:
        if self._nvml is not None:
            from wattloop.meters import nvidia

            nvidia.shut_down(self._nvml)
            self._nvml = None
            self._gpus.clear()

    def _card(self, uuid: str) -> _NvmlCard | None:
        from wattloop.meters import nvidia

        try:
            self._nvml = self._nvml or nvidia.open_nvml(self._host)
            return _NvmlCard(self._nvml.nvmlDeviceGetHandleByUUID(uuid))
        except MeterUnavailable:
            return None
        except self._nvml.NVMLError:
            return None

    def _busy_s(self) -> float | None:
        text = self._host.read_text("proc", "stat")
        fields = (text or "").partition("\n")[0].split()
        if len(fields) < 8 or fields[0] != "cpu":
            return None
        return sum(int(fields[1 + i]) for i in BUSY_FIELDS) / os.sysconf("SC_CLK_TCK")


class _NvmlCard:
    """The processes of one card, from NVML."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._seen_us = 0
        self.fault = ""

    def work(self, nvml: Any, pids: frozenset[int]) -> tuple[float, float]:
        """Return the SM utilisation since the last call, of these processes and of all."""
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen_us)
        except nvml.NVMLError:  # no new sample, or a card that does not sample
            samples = []
        self._seen_us = max([self._seen_us, *(int(s.timeStamp) for s in samples)])
        everything = float(sum(s.smUtil for s in samples))
        if everything > 0:
            return float(sum(s.smUtil for s in samples if s.pid in pids)), everything
        try:
            users = [int(p.pid) for p in nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)]
        except nvml.NVMLError as error:
            self.fault = f"NVML does not name the processes on it ({error})"
            return 0.0, 0.0
        own = sum(pid in pids for pid in users)
        return IDLE_WEIGHT * own / max(1, len(users)), IDLE_WEIGHT


class _Process(NamedTuple):
    """A process; numbers are used again, but not with the same start."""

    pid: int
    start: bytes


def _cpu_times_s(root: int, known: Iterable[_Process]) -> dict[_Process, float] | None:
    """Return the CPU time of a process and of its descendants, each with that of the children it
    has waited for.

    `known` processes that now belong to another parent are included. None if processes end faster
    than they can be read.
    """
    for _ in range(TRIES):
        found = _read_tree(root)
        if found is not None:
            for process in known:
                if process not in found and (read := _read_process(process.pid)) is not None:
                    found |= {process: read[1]} if read[0] == process else {}
            return found
    return None


def _read_tree(root: int) -> dict[_Process, float] | None:
    """Read a process and its descendants, parents first; None if one of them ended meanwhile.

    The time of a child moves to its parent when the parent has waited for it. A child that ends
    between both readings would be missing now, and counted a second time by the next reading.
    """
    pids = [root]
    for pid in pids:  # grows
        pids += [child for child in _children(pid) if child not in pids]
    read = [_read_process(pid) for pid in pids]
    found = [process for process in read if process is not None]
    return dict(found) if len(found) == len(read) else None


def _read_process(pid: int) -> tuple[_Process, float] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # the name in brackets may contain blanks and brackets
    fields = text.rpartition(b")")[2].split()
    ticks = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return _Process(pid, fields[19]), ticks / os.sysconf("SC_CLK_TCK")


def _children_file(pid: int, task: int | str) -> Path:
    return Path(f"/proc/{pid}/task/{task}/children")


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, _children_file(pid, task.name).read_text().split())
    except OSError:  # it has ended meanwhile
        pass
    return children
