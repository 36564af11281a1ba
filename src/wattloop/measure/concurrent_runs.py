"""Runs that share a node: a machine-wide list of runs, and each joule counted once."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wattloop.core.files import CLOSE_ON_EXEC, NO_FOLLOW, NO_WAIT, atomic_write_json, user_id
from wattloop.core.records import Domain, Scope
from wattloop.core.results import WindowResult
from wattloop.core.units import format_duration, format_share
from wattloop.hardware.host import Host
from wattloop.measure.node_leader import last_reading_s
from wattloop.store.journal import Journal, journal_directory

if TYPE_CHECKING:
    from wattloop.measure.run_journal import RunJournal
    from wattloop.measure.session import Session


# Runs that count the same devices at the same time.
#
# Every counting process writes a small file to a folder of the machine: its runs, their devices,
# begin and end. The run that began first counts. A later run leaves the time they share out of
# totals. Runs of other users and of other stores are marked, and not left out.
FOLDER = "wattloop-runs"
PARENTS = ("/dev/shm", "/tmp")
"""A folder in which every user may create folders; in memory, so that a short run does not wait for
a disk."""
FOLDER_VARIABLE = "WATTLOOP_NODE_RUNS"
REMEMBERED_S = 60.0
"""Time for which a process lists a run that has ended; every other run reads the list twice a
second."""
REMEMBERED = 64
DEAD_S = 3_600.0
"""The list of a killed process is removed when it has not changed for this long."""
RECENT_S = 1.0
LIST_EVERY_S = 30.0
MOST_FILES = 2_048
MOST_BYTES = 262_144
WHOLE_NODE = "node"
STAND_INS = ("WATTLOOP_VIRTUAL_STATE", "WATTLOOP_NVML_LIBRARY", "WATTLOOP_NVML_STUB_STATE")
NOTICED_S = 0.005
"""Shorter overlaps are the end of one run and the beginning of the next."""
_NAME = re.compile(r"[\w.:-]{1,80}")


class CountingRun(NamedTuple):
    """A run that counts devices of this machine.

    Attributes:
        store: distinguishes stores without naming them.
        from_s, until_s: since when and up to when it counts; None while it does.
        devices: the counted devices, by names valid in every process of the machine.
        share: whether it counts only its own share of them.
        journal: path of the journal with its last reading, if it crashes.
        uid: of the user who owns the file that lists it.
        ours: whether it is a run of this user into the same store.
    """

    run_id: str
    store: str
    from_s: float
    devices: tuple[str, ...]
    until_s: float | None = None
    share: bool = False
    journal: str = ""
    uid: int = -1
    ours: bool = False

    def meets(self, keys: Iterable[str]) -> bool:
        """Return True if it counts one of these devices."""
        own = set(self.devices)
        others = set(keys)
        return bool(own & others) or bool((WHOLE_NODE in own | others) and own and others)


class SharedTime(NamedTuple):
    """The part of a run during which others counted the same devices.

    Attributes:
        overlap_s: seconds with at least one other run.
        share: the same as a part of the run.
        runs: the others, each with its own overlap and whether it counts what both saw.
        left_out_j: joules that another run counts; totals do not add them again.
        divided: whether the energy is this run's part only.
    """

    overlap_s: float
    share: float
    runs: tuple[tuple[str, float, bool], ...]
    left_out_j: float = 0.0
    divided: bool = False

    def text(self, energy_j: float | None) -> str:
        names = ", ".join(run_id for run_id, _, _ in self.runs[:3])
        more = f" and {len(self.runs) - 3} more" if len(self.runs) > 3 else ""
        text = (
            f"shared: for {format_duration(self.overlap_s)} ({format_share(self.share, 0)} of this "
            f"run) the same devices were in use by run {names}{more}; the energy is "
            + ("this run's part" if self.divided else "that of all of them")
        )
        if self.left_out_j > 0 and energy_j:
            leader = next(run_id for run_id, _, counts in self.runs if counts)
            text += (
                f"; {min(1.0, self.left_out_j / energy_j):.0%} of it is counted by run {leader} "
                "and left out of totals"
            )
        return text

    def to_dict(self) -> dict[str, Any]:
        return {
            "overlap_s": self.overlap_s,
            "share": self.share,
            "runs": [
                {"run_id": run_id, "overlap_s": overlap_s, "counts": counts}
                for run_id, overlap_s, counts in self.runs
            ],
            "left_out_j": self.left_out_j,
            "divided": self.divided,
        }


def device_key(domain: Domain) -> str:
    """Return a name of a device that is valid in every process of this machine."""
    return WHOLE_NODE if domain.scope is Scope.NODE else domain.identity or domain.name


def machine_name(host: Host) -> str:
    """Return a name that distinguishes machines, file trees and device stubs."""
    stand_ins = (os.environ.get(name, "") for name in STAND_INS)
    return " ".join((host.boot_id, str(host.sysfs), str(host.procfs), *stand_ins))


def store_key(location: str) -> str:
    """Return a name that distinguishes stores without naming them: a URL may carry a password."""
    place = location if "://" in location else os.path.realpath(location)
    return _digest(place)


def shared_time(
    run: CountingRun,
    others: Iterable[CountingRun],
    result: WindowResult,
    key_of: Mapping[str, str],
    between: Callable[[float, float], WindowResult],
) -> SharedTime | None:
    """Return the time that `run` shares with the others; None where it had its devices to itself.

    Args:
        run: with its end.
        others: runs of this machine.
        result: of the whole run.
        key_of: domain -> the name of its device in `CountingRun.devices`.
        between: energy of the run between two instants.
    """
    assert run.until_s is not None
    met: list[tuple[str, float, bool]] = []
    spans: list[tuple[float, float]] = []
    led: dict[str, list[tuple[float, float]]] = {}
    totals = [domain.name for domain in result.counted]
    for other in sorted(others, key=lambda each: (each.from_s, each.run_id)):
        begin_s = max(run.from_s, other.from_s)
        end_s = min(run.until_s, run.until_s if other.until_s is None else other.until_s)
        if other.run_id == run.run_id or end_s - begin_s < NOTICED_S:
            continue
        common = [name for name in totals if other.meets([key_of.get(name, name)])]
        if not common:
            continue
        leads = _leads(other, run)
        met.append((other.run_id, end_s - begin_s, leads))
        spans.append((begin_s, end_s))
        for name in common if leads else ():
            led.setdefault(name, []).append((begin_s, end_s))
    if not met:
        return None
    overlap_s = sum(end_s - begin_s for begin_s, end_s in _union(spans))
    duration_s = run.until_s - run.from_s
    left_out_j = 0.0
    for names, times in _by_times(led).items():
        for begin_s, end_s in times:
            found = {d.name: d.energy_j for d in between(begin_s, end_s).domains}
            left_out_j += sum(found.get(name) or 0.0 for name in names)
    return SharedTime(overlap_s, overlap_s / duration_s, tuple(met), left_out_j, run.share)


def _leads(other: CountingRun, run: CountingRun) -> bool:
    """Return True if `other` counts the devices of both."""
    if not other.ours or (run.share and other.share):
        return False
    if run.share != other.share:  # the energy of whole devices includes the share of one run
        return run.share
    return (other.from_s, other.run_id) < (run.from_s, run.run_id)


def _by_times(
    led: Mapping[str, Sequence[tuple[float, float]]],
) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    """Group domains that are left out at the same times, with these times."""
    groups: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for name, spans in led.items():
        groups.setdefault(tuple(_union(spans)), []).append(name)
    return {tuple(names): list(times) for times, names in groups.items()}


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for begin_s, end_s in sorted(spans):
        if joined and begin_s <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end_s))
        else:
            joined.append((begin_s, end_s))
    return joined


class NodeRuns:
    """The runs that count devices of one machine, as listed by their processes.

    Args:
        machine: distinguishes machines and file trees.
        last_reading_s: time of the last reading in the journal of a crashed run.
    """

    def __init__(self, machine: str, last_reading_s: Callable[[str], float]) -> None:
        self._machine = _digest(machine)
        self._last_reading_s = last_reading_s
        self._own: dict[str, CountingRun] = {}
        self._seen: dict[str, CountingRun] = {}
        self._alive_s: dict[str, float] = {}

    def enter(self, run: CountingRun) -> None:
        """List a run of this process."""
        self._own[run.run_id] = run
        _listed.put(self._machine, run)

    def announce_end(self, run_id: str, until_s: float) -> None:
        """List the end of a run of this process that is about to be closed."""
        if run_id in self._own:
            _listed.put(self._machine, self._own[run_id]._replace(until_s=until_s))

    def leave(self, run_id: str, until_s: float | None) -> None:
        """Record the end of the run; without a time it counts nothing."""
        run = self._own.pop(run_id, None)
        if run is not None and until_s is None:
            _listed.drop(run_id)
        elif run is not None:
            _listed.put(self._machine, run._replace(until_s=until_s))

    def look(self, now_s: float) -> list[CountingRun]:
        """Return every other run seen since this one began, with its end where it has one.

        A run whose process died ends with its last reading, or when it was last seen alive.
        """
        listed = _listed.read(self._machine)
        for run_id in self._seen.keys() - {run.run_id for run, _ in listed}:
            if self._seen[run_id].until_s is None:
                until_s = self._alive_s[run_id]
                self._seen[run_id] = self._seen[run_id]._replace(until_s=until_s)
        for run, alive in listed:
            if run.run_id in self._own:
                continue
            if run.until_s is None and not alive:
                last_s = self._last_reading_s(run.journal) if run.ours else -math.inf
                if last_s < run.from_s:  # its journal was already imported into the store
                    last_s = self._alive_s.get(run.run_id, run.from_s)
                run = run._replace(until_s=last_s)  # noqa: PLW2901 - with its end
            elif run.until_s is None:
                self._alive_s[run.run_id] = now_s
            self._seen[run.run_id] = run
        return list(self._seen.values())


class _Listing:
    """The file in which this process lists its runs, and those of the other processes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = 0
        self._runs: dict[str, tuple[str, CountingRun]] = {}
        self._cache: dict[str, tuple[float, list[tuple[str, CountingRun]]]] = {}
        self._found: list[tuple[int, str, list[tuple[str, CountingRun]]]] = []
        self._folder: tuple[Path | None, int] = (None, -1)
        self._list_s = 0.0

    def put(self, machine: str, run: CountingRun) -> None:
        with self._lock:
            self._ours()
            self._runs[run.run_id] = (machine, run)
            self._write()

    def drop(self, run_id: str) -> None:
        with self._lock:
            self._ours()
            self._runs.pop(run_id, None)
            self._write()

    def read(self, machine: str) -> list[tuple[CountingRun, bool]]:
        """Read the runs of every process on this machine, and whether that process is alive."""
        with self._lock:
            self._ours()
            mine = {run.store for _, run in self._runs.values()}
            found: list[tuple[CountingRun, bool]] = []
            for pid, start, runs in self._files():
                # A number that is used again is noticed when the folder is listed again.
                alive = bool(start) and os.access(f"/proc/{pid}", os.F_OK)
                for where, run in runs:
                    if where == machine:
                        ours = run.uid == user_id() and run.store in mine
                        found.append((run._replace(ours=ours), alive))
            return found

    def _files(self) -> list[tuple[int, str, list[tuple[str, CountingRun]]]]:
        """Return number and start of each process, empty for one that ended, and its runs.

        Processes replace their files, which changes the folder: without a change it is not listed.
        """
        folder = runs_folder()
        try:
            changed_ns = 0 if folder is None else folder.stat().st_mtime_ns
        except OSError:
            changed_ns = 0
        now_s = time.monotonic()
        # Two changes within a tick of the kernel's clock have the same mtime.
        recent = abs(time.time() - changed_ns / 1e9) < RECENT_S
        if (folder, changed_ns) == self._folder and now_s < self._list_s and not recent:
            return self._found
        self._folder, self._list_s = (folder, changed_ns), now_s + LIST_EVERY_S
        self._found = []
        for path in _files(folder):
            process = re.fullmatch(r"(\d+)-(\d+)\.json", path.name)
            if process is None:
                continue
            pid, start = int(process.group(1)), process.group(2)
            alive = _start_of(pid) == start
            runs = self._in_file(path)
            if not alive and (_old(run for _, run in runs) or _age_s(path) > DEAD_S):
                self._cache.pop(path.name, None)
                with suppress(OSError):  # another user's, or removed meanwhile
                    path.unlink()
            self._found.append((pid, start if alive else "", runs))
        return self._found

    def _ours(self) -> None:
        """Return this process's runs; a forked child has none yet."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._runs.clear()

    def _write(self) -> None:
        oldest_s = time.monotonic() - REMEMBERED_S
        ended = [i for i, (_, run) in self._runs.items() if run.until_s is not None]
        for i, run_id in enumerate(ended):
            until_s = self._runs[run_id][1].until_s
            if i < len(ended) - REMEMBERED or (until_s is not None and until_s < oldest_s):
                del self._runs[run_id]
        folder = runs_folder(create=True)
        if folder is None:
            return
        path = folder / f"{self._pid}-{_start_of(self._pid)}.json"
        data = [
            {**run._asdict(), "machine": machine, "uid": -1, "ours": False}
            for machine, run in self._runs.values()
        ]
        with suppress(OSError):  # a full disk: other runs do not learn of this one
            atomic_write_json(path, data, mode=0o644)

    def _in_file(self, path: Path) -> list[tuple[str, CountingRun]]:
        try:
            fd = os.open(path, os.O_RDONLY | NO_FOLLOW | NO_WAIT | CLOSE_ON_EXEC)
        except OSError:
            return []
        with os.fdopen(fd, "rb") as file:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode):
                return []
            known = self._cache.get(path.name)
            # Two writes within a tick of the kernel's clock have the same mtime.
            recent = abs(time.time() - facts.st_mtime) < RECENT_S
            if known is None or recent or known[0] != facts.st_mtime_ns:
                known = (facts.st_mtime_ns, _parsed(file.read(MOST_BYTES), facts.st_uid))
                self._cache[path.name] = known
        return known[1]


def _parsed(data: bytes, uid: int) -> list[tuple[str, CountingRun]]:
    """Parse the runs of a file; another user may have written anything into it."""
    try:
        rows = json.loads(data)
        return [
            (
                str(row["machine"]),
                CountingRun(
                    run_id=str(row["run_id"]),
                    store=str(row["store"]),
                    from_s=float(row["from_s"]),
                    devices=tuple(map(str, row["devices"][:256])),
                    until_s=None if row["until_s"] is None else float(row["until_s"]),
                    share=row["share"] is True,
                    journal=str(row["journal"]),
                    uid=uid,
                ),
            )
            for row in rows[: REMEMBERED * 2]
            if _NAME.fullmatch(str(row["run_id"])) and math.isfinite(float(row["from_s"]))
        ]
    # an integer of 400 digits overflows a float
    except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _old(runs: Iterable[CountingRun]) -> bool:
    """Return True if every run ended so long ago that no other run needs it."""
    oldest_s = time.monotonic() - REMEMBERED_S
    return all(run.until_s is not None and run.until_s < oldest_s for run in runs)


def _files(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    try:
        return list(itertools.islice(folder.iterdir(), MOST_FILES))
    except OSError:
        return []


def _digest(text: str) -> str:
    data = text.encode()
    return f"{zlib.crc32(data):08x}{zlib.adler32(data):08x}"


def runs_folder(*, create: bool = False) -> Path | None:
    """Return the machine's folder, creating it if needed; None where it cannot be used."""
    named = os.environ.get(FOLDER_VARIABLE)
    parent = next((each for each in PARENTS if os.access(each, os.W_OK)), PARENTS[-1])
    folder = Path(named) if named else Path(parent) / FOLDER
    try:
        if create:
            with suppress(FileExistsError):
                folder.mkdir()
                folder.chmod(0o1777)
        facts = folder.lstat()
    except OSError:
        return None
    safe = facts.st_uid in (0, user_id()) or facts.st_mode & stat.S_ISVTX
    return folder if stat.S_ISDIR(facts.st_mode) and safe else None


def _start_of(pid: int) -> str:
    """Return the start time of a process in ticks since boot; empty when it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    # the name in brackets may contain blanks and brackets
    return text.rpartition(b")")[2].split()[19].decode()


_listed = _Listing()
EVENT = "neighbour"
"""Type of the events that record the other counting runs in a journal without an end."""


class Presence:
    """Registration of a run while it counts, and detection of runs that share its devices.

    Args:
        session: that measures the run.
        real: whether it reads the machine on the machine's own clock.
    """

    def __init__(self, session: Session, *, real: bool) -> None:
        self._session = session
        self._nodes = NodeRuns(machine_name(session.host), last_reading_s) if real else None
        self._listed = False
        self._written: dict[str, CountingRun] = {}

    def begin(self, from_s: float) -> None:
        """Register the run as counting from `from_s` on."""
        session = self._session
        if self._nodes is None or not session.channels:
            return
        journal = journal_directory(session.settings.store_location) / f"{session.run_id}.journal"
        self._run = CountingRun(
            run_id=session.run_id,
            store=store_key(session.settings.store_location),
            from_s=from_s,
            devices=tuple(sorted({device_key(c.domain) for c in session.channels})),
            share=session.settings.share == "process",
            journal=str(journal.absolute()),
        )
        self._nodes.enter(self._run)
        self._listed = True

    def update(self, journal: RunJournal) -> None:
        """Read the other runs; update the entry of a run whose counting changed."""
        role = self._session.role
        if self._listed and not role.counts:
            self._leave(None)
        elif not self._listed and role.counts and journal.path is not None:
            self.begin(max(self._session.started_s, role.counts_from_s))
        if not self._listed or self._nodes is None:
            return
        for other in self._nodes.look(self._session.clock.now_s()):
            if other.meets(self._run.devices) and self._written.get(other.run_id) != other:
                self._written[other.run_id] = other
                now_s = self._session.clock.now_s()
                journal.add_event({"type": EVENT, "time_s": now_s, **other._asdict()})

    def announce_end(self, end_s: float) -> None:
        """List the end of the run before its last readings are taken, which may take seconds.

        A run that ends meanwhile would leave the time until its own end to this one.
        """
        if self._listed and self._nodes is not None:
            self._nodes.announce_end(self._run.run_id, end_s)

    def end(self, result: WindowResult, end_s: float) -> SharedTime | None:
        """Record the end of the run; return the shared time."""
        if not self._listed or self._nodes is None:
            return None
        others = self._nodes.look(end_s)
        run = self._run._replace(until_s=end_s)
        self._leave(end_s)
        domains = (channel.domain for channel in self._session.channels)
        return shared_time(run, others, result, _keys(domains), self._session.between)

    def _leave(self, until_s: float | None) -> None:
        if self._nodes is not None:
            self._nodes.leave(self._run.run_id, until_s)
        self._listed = False


def shared_in(
    journal: Journal,
    result: WindowResult,
    domains: Iterable[Domain],
    between: Callable[[float, float], WindowResult],
) -> SharedTime | None:
    """Compute the shared time of a crashed run from the events of its journal."""
    others: dict[str, CountingRun] = {}
    for event in journal.events:
        if isinstance(event, dict) and event.get("type") == EVENT:
            others[str(event["run_id"])] = _from_event(event)
    if not others:
        return None
    header = journal.header
    share = header.get("settings", {}).get("share") == "process"
    begin_s, end_s = result.begin_s, result.end_s
    run = CountingRun(header["run_id"], "", begin_s, (), until_s=end_s, share=share)
    return shared_time(run, others.values(), result, _keys(domains), between)


def _from_event(event: Mapping[str, Any]) -> CountingRun:
    known = {name: event[name] for name in CountingRun._fields if name in event}
    return CountingRun(**{**known, "devices": tuple(known["devices"])})


def _keys(domains: Iterable[Domain]) -> dict[str, str]:
    return {domain.name: device_key(domain) for domain in domains}
