"""Share of a run in the energy of devices that it shares: `share: process`, and MIG instances.

    E_run = sum over intervals of E_device x w_run / w_all

CPU and memory: w is CPU time, of the run's processes and of everything that runs on the machine.
GPU: w is the utilisation of each process x the power that it costs, fitted to the card's own
(`accounting.device_shares`); a GPU that does not name the utilisation is divided by memory and
time. A card that MIG splits is divided among its instances by their SM activity, else by their
slices and time, also without `share: process`. The reading of the sensor is measured; the division
is a model.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.accounting.device_shares import (
    DeviceDivision,
    PowerFit,
    SharePart,
    UseInterval,
    fit_power,
    merged,
)
from wattloop.core.files import user_id
from wattloop.core.records import Domain, Gap, Provenance, Scope
from wattloop.core.results import DomainEnergy, Missing, WindowResult, non_overlapping
from wattloop.hardware.host import Host
from wattloop.measure.concurrent_runs import device_key, machine_name
from wattloop.measure.device_book import BookedInterval, Counter, DeviceBook, Measure
from wattloop.measure.meter_stream import DomainSource
from wattloop.meters.base import DeviceProcess, Meter

EVENT = "share"
"""Type of the events that record the run's share in a journal without an end."""
EVENT_EVERY_S = 5.0
CPU = "cpu"
TRIES = 5
"""A process that ends while the tree is read makes the reading useless."""
PRESENT = "/present"
"""Ends the name of the curve of how many processes hold a context, by which idle power goes."""
BOOK_EVERY_S, SETTLED_S = 0.4, 0.01
SILENT_S = 0.75
"""After so long the process that writes the book of a GPU is taken to have ended."""
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
BY_CPU_TIME, BY_USE = "share by CPU time", "share by SM utilisation"
BY_MEMORY, BY_SLICES = "share by memory and time", "share by MIG slices and time"
BY_ACTIVITY = "share by SM activity of MIG instances"
NO_PROCESSES = "this GPU does not name its processes"


class _Look(NamedTuple):
    """The processes of a card in the time up to `time_s`."""

    time_s: float
    duration_s: float
    processes: Mapping[int, DeviceProcess]


def _time_s(look: _Look) -> float:
    return look.time_s


class ShareCurves:
    """Work of the run and of all processes, summed up over time, by device.

    A device is `cpu` or the name of a GPU.

    Args:
        only: devices that are divided; all where it is None.
    """

    def __init__(self, only: Collection[str] | None = None) -> None:
        self._only = only
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
            if self._only is not None and device not in self._only:
                energies.append(energy)
                continue
            if device is None or channel is None:
                missing.append(Missing(energy.name, "a meter of the whole node cannot be divided"))
                continue
            if energy.energy_j is None:
                energies.append(energy)
                continue
            part = self._part(device, channel, result.begin_s, result.end_s)
            if part is None:
                reason = self.reasons.get(device, "nothing is known of the work on it")
                missing.append(Missing(energy.name, reason))
                energies.append(energy._replace(energy_j=None, uncertainty_j=0.0))
                continue
            energies.append(_divided(energy, *part))
        read = [e.name for e in energies if e.energy_j is not None]
        inside = [(name, by_name[name].domain.inside) for name in read]
        totals = non_overlapping(inside)
        domains = tuple(e._replace(in_total=e.name in totals) for e in energies)
        return result._replace(domains=domains, missing=tuple(missing))

    def _part(
        self, device: str, channel: DomainSource, begin_s: float, end_s: float
    ) -> tuple[SharePart, float, str] | None:
        """Return (the run's part, all joules, how they were divided) of one domain."""
        if device + PRESENT in self._curves:
            return self._fitted_part(device, channel, begin_s, end_s)
        parts = self._parts(device, channel, begin_s, end_s)
        if parts is None:
            return None
        own_j, others_j = parts
        whole_j = own_j + others_j
        # The division of idle power is a matter of definition: the interval is
        # E x share x (1 - share), nothing for a run alone, half of its part where two work equally.
        doubt_j = own_j * others_j / whole_j if whole_j > 0 else 0.0
        how = BY_CPU_TIME if device == CPU else BY_MEMORY
        return SharePart(own_j, doubt_j), whole_j, how

    def _fitted_part(
        self, device: str, channel: DomainSource, begin_s: float, end_s: float
    ) -> tuple[SharePart, float, str] | None:
        """Return the same where only the sums of the run and of all are known: after a crash."""
        times_s = self._curves[device][0]
        if len(times_s) < 2:
            return None

        def uses(from_s: float, until_s: float) -> list[UseInterval]:
            found: list[UseInterval] = []
            for left_s, right_s in itertools.pairwise(self.edges(device, from_s, until_s)):
                span = channel.between(left_s, right_s) if right_s > left_s else None
                if span is None:
                    continue
                (own, every), (own_s, every_s) = (
                    self._gains(name, left_s, right_s) for name in (device, device + PRESENT)
                )
                use: dict[Hashable, float | None] = {True: own, False: every - own}
                idle: dict[Hashable, float] = {True: own_s, False: every_s - own_s}
                found.append(UseInterval(right_s - left_s, span.energy_j, use, {}, idle))
            return found

        idle_w, limit_w = known_idle_w(channel.domain.device), channel.domain.tdp_w
        fit = fit_power(uses(times_s[0], times_s[-1]), idle_w=idle_w, limit_w=limit_w)
        intervals = uses(begin_s, end_s)
        whole_j = sum(each.energy_j for each in intervals)
        how = BY_ACTIVITY if channel.domain.is_split else BY_USE
        return DeviceDivision(intervals, fit).part([True]), whole_j, how

    def _gains(self, device: str, begin_s: float, end_s: float) -> tuple[float, float]:
        """Return both sums' growth per second; the first and last interval hold beyond them."""
        times_s, owns, alls = self._curves[device]
        begin_s = min(max(begin_s, times_s[0]), times_s[-2])
        end_s = max(min(end_s, times_s[-1]), times_s[1])
        own, every = (
            (_at(times_s, sums, end_s) - _at(times_s, sums, begin_s)) / (end_s - begin_s)
            for sums in (owns, alls)
        )
        return own, every

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
        only = None if self._only is None else sorted(self._only)
        return {
            "type": EVENT,
            "time_s": time_s,
            "work": sums,
            "reasons": self.reasons,
            "only": only,
        }

    @classmethod
    def from_events(cls, events: Iterable[Any]) -> ShareCurves:
        """Restore the curves of a crashed run."""
        curves = cls()
        for event in events:
            if isinstance(event, dict) and event.get("type") == EVENT:
                curves._only = event.get("only")
                for device, (own, everything) in event["work"].items():
                    curves.add(device, float(event["time_s"]), float(own), float(everything))
                curves.reasons = dict(event["reasons"])
        return curves


def _divided(energy: DomainEnergy, part: SharePart, whole_j: float, how: str) -> DomainEnergy:
    """Return one domain with the run's share."""
    share = part.energy_j / whole_j if whole_j > 0 else 0.0
    return energy._replace(
        energy_j=part.energy_j,
        uncertainty_j=share * energy.uncertainty_j + part.uncertainty_j,
        provenance=Provenance.weakest((energy.provenance, Provenance.MODELLED)),
        source=f"{energy.source}, {how}",
        tdp_w=None,  # the limit is that of the whole device
        tdp_note="",
    )


def is_divided(energy: DomainEnergy) -> bool:
    """Return True for a domain whose energy is the run's share of it."""
    return ", share by " in energy.source


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
        gpus: names of the GPUs that the run counts.
        meters: that may name the processes on them.
        only: devices that are divided; all, and the CPU, where it is None.
        book_folder: of the books that the runs of a GPU share; without one each run divides for
            itself.
        idle_w: idle power of GPUs, as `wattloop idle` has measured it.
    """

    def __init__(
        self,
        host: Host,
        gpus: Collection[str],
        meters: Sequence[Meter] = (),
        only: Collection[str] | None = None,
        book_folder: Path | None = None,
        idle_w: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(only)
        self._host = host
        self._meters = meters
        self._looks: dict[str, list[_Look]] = {}
        self._fits: dict[str, tuple[_Look, PowerFit | None]] = {}
        self._gpus = frozenset(gpus)
        self._book_folder = book_folder
        self._idle_w = idle_w or {}
        self._books: dict[str, tuple[DeviceBook, DomainSource]] = {}
        self._final: dict[str, tuple[tuple[float, ...], tuple[SharePart, float, str]]] = {}
        self._own: set[int] = set()
        self._event_s = -EVENT_EVERY_S
        self._cpu_times_s: dict[_Process, float] = {}
        self._lists_children = _children_file(os.getpid(), os.getpid()).exists()
        if not self._lists_children:
            self.reasons.update(dict.fromkeys((CPU, *gpus), NO_CHILDREN))
        else:
            self.reasons.update(dict.fromkeys(gpus, NO_PROCESSES))

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
        self._own.update(process.pid for process in times_s or self._cpu_times_s)
        for meter in self._meters:
            for name, processes in meter.read_processes().items():
                if isinstance(processes, Gap):
                    self.reasons[name] = processes.reason
                else:
                    self._look_at(name, now_s, processes)
        if write is not None and now_s >= self._event_s + EVENT_EVERY_S:
            self._event_s = now_s
            write(self.to_event(now_s))

    def _look_at(self, name: str, now_s: float, processes: Sequence[DeviceProcess]) -> None:
        with self._lock:
            looks = self._looks.setdefault(name, [])
            began_s = looks[-1].time_s if looks else now_s
            if looks and now_s <= began_s:
                return
            looks.append(_Look(now_s, now_s - began_s, {each.pid: each for each in processes}))
            if len(looks) > MOST_POINTS:
                looks[:] = [*map(_merged, looks[0:-1:2], looks[1::2]), *looks[len(looks) & ~1 :]]
        # for the journal, from which a crashed run is restored: utilisation or memory x time
        weights = {each.pid: each.sm for each in processes}
        if None in weights.values():
            weights = {each.pid: each.slices or each.memory_b for each in processes}
        else:
            parts = {each.pid: each.slices or 1.0 for each in processes}
            self._gain(name + PRESENT, now_s, now_s - began_s, parts)
        if sum(weight or 0.0 for weight in weights.values()) <= 0:
            weights = dict.fromkeys(weights, IDLE_WEIGHT / max(1, len(weights)))
        self._gain(name, now_s, now_s - began_s, weights)

    def _gain(
        self, name: str, now_s: float, duration_s: float, weights: Mapping[int, float | None]
    ) -> None:
        own = sum(weight or 0.0 for pid, weight in weights.items() if pid in self._own)
        every = sum(weight or 0.0 for weight in weights.values())
        before = self.last(name)
        self.add(name, now_s, before[0] + own * duration_s, before[1] + every * duration_s)

    # -- the book of a GPU, which the runs on it share -------------------------------------

    def begin(self, channels: Iterable[DomainSource], begin_s: float) -> None:
        """Open the books of the GPUs that are divided, where the run begins."""
        if self._book_folder is None or not self._lists_children:
            return
        for channel in channels:
            name, domain = channel.domain.name, channel.domain
            if (
                name in self._gpus
                and not domain.is_split
                and (not self._only or name in self._only)
            ):
                book = DeviceBook(self._book_folder / book_name(self._host, domain))
                book.begin(begin_s)
                self._books[name] = (book, channel)

    def book(self) -> None:
        """Write what is known of each GPU up to the look before the last one."""
        with self._lock:
            for name, (book, channel) in self._books.items():
                book.read()
                looks = self._looks.get(name, ())
                if len(looks) < 2:
                    continue
                until_s = looks[-2].time_s
                known = channel.track.last_read_s > until_s + SETTLED_S
                wait_s = BOOK_EVERY_S if book.written_s == book.until_s else SILENT_S
                if known and until_s >= book.until_s + wait_s:
                    measure = self._measure(name, channel)
                    book.extend(looks[0].time_s, until_s, measure, _energy_j(channel))

    def announce_end(self, end_s: float) -> None:
        """Let the books have an edge where the run ends."""
        with self._lock:
            for book, _ in self._books.values():
                book.mark(end_s)

    def end(self, begin_s: float, end_s: float) -> None:
        """Book this run's part, which later parts of other runs leave out."""
        with self._lock:
            for name, (book, channel) in self._books.items():
                if len(self._looks.get(name, ())) < 2 or end_s <= begin_s:
                    continue
                first_s, measure = self._looks[name][0].time_s, self._measure(name, channel)
                book.extend(first_s, end_s, measure, _energy_j(channel), patience_s=0.0)
                before = self._part(name, channel, begin_s, end_s)
                if before is None or not book.take(
                    self._own, begin_s, end_s, self._fit(name, channel), measure
                ):
                    continue
                after = self._part(name, channel, begin_s, end_s)
                if after is not None:
                    part = after[0]._replace(uncertainty_j=before[0].uncertainty_j)
                    self._final[name] = ((begin_s, end_s), (part, *after[1:]))

    def _measure(self, name: str, channel: DomainSource) -> Measure:
        looks = self._looks[name]
        return lambda begin_s, end_s: _interval(looks, channel, begin_s, end_s)

    def _part(
        self, device: str, channel: DomainSource, begin_s: float, end_s: float
    ) -> tuple[SharePart, float, str] | None:
        with self._lock:
            looks = list(self._looks.get(device, ()))
            if len(looks) < 2:
                return super()._part(device, channel, begin_s, end_s)
            times_s, final = self._final.get(device, ((), None))
            if times_s == (begin_s, end_s):
                return final
            fit = self._fit(device, channel)
            pieces = self._pieces(device, looks, channel, begin_s, end_s)
        left = [each.interval.without(each.booked) for each in pieces]
        part = DeviceDivision(left, fit).part(self._own)
        booked_j = sum(each.booked.get(pid, 0.0) for each in pieces for pid in self._own)
        part = part._replace(energy_j=part.energy_j + booked_j)
        whole_j = sum(each.interval.energy_j for each in pieces)
        split = any(each.slices for each in looks[-1].processes.values())
        by_use = BY_ACTIVITY if split else BY_USE
        return part, whole_j, by_use if fit else BY_SLICES if split else BY_MEMORY

    def _fit(self, device: str, channel: DomainSource) -> PowerFit | None:
        """Fit power to all that is known of a card, also by the runs before."""
        looks, book = self._looks[device], self._books.get(device, (None,))[0]
        name, last = channel.domain.name, looks[-1]
        if self._fits.get(name, (None,))[0] is not last:
            begin_s = looks[0].time_s
            idle_w, seen_w = known_idle_w(channel.domain.device), self._idle_w.get(name)
            if book is not None and book.intervals:
                begin_s = min(begin_s, book.intervals[0].begin_s)
                seen_w = seen_w or book.idle_w
            pieces = self._pieces(device, looks, channel, begin_s, last.time_s)
            stride = max(1, -(-len(pieces) // MOST_CHUNKS))
            whole = [
                merged([each.interval for each in pieces[i : i + stride]])
                for i in range(0, len(pieces), stride)
            ]
            limit_w = channel.domain.tdp_w
            fit = fit_power(whole, idle_w=idle_w, seen_w=seen_w, limit_w=limit_w)
            self._fits[name] = (last, fit)
        return self._fits[name][1]

    def _pieces(
        self,
        device: str,
        looks: Sequence[_Look],
        channel: DomainSource,
        begin_s: float,
        end_s: float,
    ) -> list[BookedInterval]:
        """Return energy and use of a card between two instants: as booked, else as seen here."""
        book = self._books.get(device, (None,))[0]
        found: list[BookedInterval] = []
        at_s = begin_s
        for each in book.between(begin_s, end_s) if book is not None else ():
            left_s, right_s = max(begin_s, each.begin_s), min(end_s, each.end_s)
            found += self._seen(device, looks, channel, at_s, left_s)
            if (left_s, right_s) != (each.begin_s, each.end_s):
                span = channel.between(left_s, right_s)
                each = each.between(left_s, right_s, span and span.energy_j)  # noqa: PLW2901 - the part of it
            found.append(each)
            at_s = right_s
        return found + self._seen(device, looks, channel, at_s, end_s)

    def _seen(
        self,
        device: str,
        looks: Sequence[_Look],
        channel: DomainSource,
        begin_s: float,
        end_s: float,
    ) -> list[BookedInterval]:
        """Return what this process has seen, in at most `MOST_CHUNKS` parts."""
        if end_s <= begin_s:
            return []
        found = []
        for left_s, right_s in itertools.pairwise(self.edges(device, begin_s, end_s)):
            interval = _interval(looks, channel, left_s, right_s) if right_s > left_s else None
            if interval is not None:
                found.append(BookedInterval(left_s, right_s, interval))
        return found

    def _busy_s(self) -> float | None:
        text = self._host.read_text("proc", "stat")
        fields = (text or "").partition("\n")[0].split()
        if len(fields) < 8 or fields[0] != "cpu":
            return None
        return sum(int(fields[1 + i]) for i in BUSY_FIELDS) / os.sysconf("SC_CLK_TCK")


@functools.cache
def known_idle_w(device: str) -> float | None:
    """Return the idle power of a GPU from the table of GPUs; None where it has none."""
    from wattloop.core.errors import WattloopError
    from wattloop.hardware.gpus import gpu_named

    try:
        return gpu_named(device).idle_w
    except WattloopError:
        return None


def book_name(host: Host, domain: Domain) -> str:
    """Return the name of the book of a GPU: for a user, where process numbers mean the same."""
    namespace = ""
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    what = "\n".join((machine_name(host), namespace, device_key(domain)))
    return f"gpu-{user_id()}-{zlib.crc32(what.encode()):08x}{zlib.adler32(what.encode()):08x}.book"


def _energy_j(channel: DomainSource) -> Counter:
    def energy_j(begin_s: float, end_s: float) -> float | None:
        span = channel.between(begin_s, end_s)
        return None if span is None else span.energy_j

    return energy_j


def _interval(
    looks: Sequence[_Look], channel: DomainSource, begin_s: float, end_s: float
) -> UseInterval | None:
    """Return energy and use of a card between two instants; None where the energy is unknown."""
    span = channel.between(begin_s, end_s)
    if span is None:
        return None
    # the first and the last look hold beyond their times
    first = min(max(1, bisect_right(looks, begin_s, key=_time_s)), len(looks) - 1)
    last = min(max(first, bisect_left(looks, end_s, key=_time_s)), len(looks) - 1)
    found = functools.reduce(_merged, looks[first : last + 1]).processes
    use: dict[Hashable, float | None] = {pid: each.sm for pid, each in found.items()}
    weight: dict[Hashable, float] = {
        pid: each.slices or each.memory_b or 0.0 for pid, each in found.items()
    }
    idle: dict[Hashable, float] = {pid: p.slices for pid, p in found.items() if p.slices}
    return UseInterval(end_s - begin_s, span.energy_j, use, weight, idle)


def _merged(left: _Look, right: _Look) -> _Look:
    """Return the mean use of the processes of two looks."""
    duration_s = left.duration_s + right.duration_s
    part = left.duration_s / duration_s if duration_s > 0 else 0.5
    processes: dict[int, DeviceProcess] = {}
    for pid in dict.fromkeys((*left.processes, *right.processes)):
        one, two = (look.processes.get(pid, DeviceProcess(pid, 0.0, 0.0)) for look in (left, right))
        known = one.sm is not None and two.sm is not None
        sm = part * (one.sm or 0.0) + (1 - part) * (two.sm or 0.0) if known else None
        memory_b = part * (one.memory_b or 0.0) + (1 - part) * (two.memory_b or 0.0)
        slices = part * one.slices + (1 - part) * two.slices
        processes[pid] = DeviceProcess(pid, sm, memory_b, slices)
    return _Look(right.time_s, duration_s, processes)


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
