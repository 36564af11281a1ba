"""CPU time of jobs and of the node, from control groups or from processes."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from wattloop.hardware.host import Host

# CPU time of jobs without control groups: by the processes that say they belong to one.
#
# A process belongs to a job when it runs as the job's user and has the job's number in its
# environment, where Slurm puts it. A user may pretend to belong to another job of their own, not
# to one of another user.

TICKS_PER_S = 100.0
"""USER_HZ, the same on every Linux that we know."""
BUSY_FIELDS = (0, 1, 2, 5, 6)
"""user, nice, system, irq, softirq of /proc/stat; idle, iowait and stolen time are not work."""
ENVIRONMENT_B = 65_536


class _Process(NamedTuple):
    began: str
    job: str
    """Empty: of no job."""
    uid: int
    checks: int = 1


class ProcessTimes:
    """CPU time by process from /proc; the owner of a process is examined a few times only.

    What ended between two checks is in its parent's time for waited-for children, if that is of
    the job too.
    """

    SETTLED = 3
    """A process that belonged to no job in so many checks never will: it does not become another
    program any more. A new one may be Slurm's own, about to become the job's.
    """
    FORGET_EVERY = 120
    """Unknown processes are examined again after so many polls: process ids are reused."""

    def __init__(self, procfs: Path, node: str) -> None:
        self._procfs = procfs
        self._node = node.encode()
        self._known: dict[str, _Process] = {}
        self._looks = 0

    def read(self, uids: Mapping[str, int]) -> dict[str, float]:
        found: dict[str, float] = {}
        alive: dict[str, _Process] = {}
        self._looks += 1
        if self._looks % self.FORGET_EVERY == 0:
            self._known = {n: p for n, p in self._known.items() if p.job in uids}
        try:
            numbers = [n for n in os.listdir(self._procfs) if n.isdigit()]  # noqa: PTH208 - names only, ten times a path's speed
        except OSError:
            return {}
        for number in numbers:
            known = self._known.get(number)
            if known is not None and known.job not in uids and known.checks >= self.SETTLED:
                alive[number] = known
                continue
            stat = self._stat(number)
            if stat is None:
                continue
            if known is None or known.began != stat[19]:
                known = self._examine(number, stat[19], 1)
            elif known.job not in uids:
                known = self._examine(number, stat[19], known.checks + 1)
            alive[number] = known
            if uids.get(known.job) == known.uid:
                cpu_s = sum(int(stat[i]) for i in (11, 12, 13, 14)) / TICKS_PER_S
                found[known.job] = found.get(known.job, 0.0) + cpu_s
        self._known = alive
        return found

    def _stat(self, number: str) -> list[str] | None:
        """Return the fields of /proc/N/stat after the name, which may contain anything."""
        try:
            text = (self._procfs / number / "stat").read_text("ascii", "replace")
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()
        return fields if len(fields) > 19 else None

    def _examine(self, number: str, began: str, checks: int) -> _Process:
        folder = self._procfs / number
        try:
            uid = folder.stat().st_uid
            with (folder / "environ").open("rb") as file:
                words = file.read(ENVIRONMENT_B).split(b"\0")
        except OSError:
            return _Process(began, "", -1, checks)
        facts = dict(word.split(b"=", 1) for word in words if b"=" in word)
        elsewhere = facts.get(b"SLURMD_NODENAME", self._node) != self._node
        job = b"" if elsewhere else facts.get(b"SLURM_JOB_ID", b"")
        return _Process(began, job.decode("ascii", "replace"), uid, checks)


class JobKey(NamedTuple):
    """A job whose CPU time is needed."""

    run: str
    job: str
    uid: int


class CpuTimeCurve:
    """A growing quantity, known at some instants and linear in between."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.values: list[float] = []

    def add(self, time_s: float, value: float) -> None:
        """Add a point; a value that fell (a process left) counts as unchanged."""
        if self.times_s and time_s <= self.times_s[-1]:
            return
        self.times_s.append(time_s)
        self.values.append(max(value, self.values[-1]) if self.values else value)

    def between(self, begin_s: float, end_s: float) -> float:
        return self._at(end_s) - self._at(begin_s)

    def forget_before(self, time_s: float) -> None:
        """Drop points that are not needed from `time_s` on."""
        cut = bisect_right(self.times_s, time_s) - 1
        if cut > 0:
            del self.times_s[:cut], self.values[:cut]

    def _at(self, time_s: float) -> float:
        i = bisect_right(self.times_s, time_s)
        if i in (0, len(self.times_s)):
            return self.values[max(0, i - 1)] if self.values else 0.0
        left_s, right_s = self.times_s[i - 1], self.times_s[i]
        share = (time_s - left_s) / (right_s - left_s)
        return self.values[i - 1] + share * (self.values[i] - self.values[i - 1])


class CpuTimes:
    """CPU times from control groups, or from processes without them.

    Args:
        locate: returns the file of a job's control group, given the job and its user.
    """

    def __init__(self, host: Host, locate: Callable[[str, int], Path | None], node: str) -> None:
        self._host = host
        self._locate = locate
        self._files: dict[str, Path] = {}
        self._processes = ProcessTimes(host.procfs, node)
        self._jobs: dict[str, CpuTimeCurve] = {}
        self.busy = CpuTimeCurve()

    def begin(self, run: str, time_s: float, cpu_s: float = 0.0) -> None:
        """Add a job from `time_s` on, with its CPU time at that moment."""
        curve = self._jobs.setdefault(run, CpuTimeCurve())
        curve.add(time_s, cpu_s)

    def read(self, jobs: Iterable[JobKey], now_s: float) -> None:
        without: list[JobKey] = []
        for key in jobs:
            cpu_s = self._of_cgroup(key)
            if cpu_s is None:
                without.append(key)
            else:
                self._jobs.setdefault(key.run, CpuTimeCurve()).add(now_s, cpu_s)
        if without:
            found = self._processes.read({key.job: key.uid for key in without})
            for key in without:
                if key.job in found:
                    self._jobs.setdefault(key.run, CpuTimeCurve()).add(now_s, found[key.job])
        busy_s = self._busy_s()
        if busy_s is not None:
            self.busy.add(now_s, busy_s)

    def between(self, run: str, begin_s: float, end_s: float) -> float | None:
        """Return CPU time of a job; None if it was never read."""
        curve = self._jobs.get(run)
        return curve.between(begin_s, end_s) if curve and len(curve.times_s) > 1 else None

    def busy_between(self, begin_s: float, end_s: float) -> float | None:
        """Return CPU time of the whole node; None where it cannot be read."""
        return self.busy.between(begin_s, end_s) if len(self.busy.times_s) > 1 else None

    def last(self, run: str) -> float:
        """Return CPU time of a job at the last reading."""
        curve = self._jobs.get(run)
        return curve.values[-1] if curve and curve.values else 0.0

    def forget_before(self, time_s: float, running: Iterable[str]) -> None:
        """Drop curves of ended runs and readings before `time_s`."""
        kept = set(running)
        self._jobs = {run: curve for run, curve in self._jobs.items() if run in kept}
        self._files = {run: path for run, path in self._files.items() if run in kept}
        for curve in (self.busy, *self._jobs.values()):
            curve.forget_before(time_s)

    def _of_cgroup(self, key: JobKey) -> float | None:
        path = self._files.get(key.run)
        if path is None:
            path = self._locate(key.job, key.uid)
            if path is None:
                return None
            self._files[key.run] = path
        try:
            text = path.read_text("ascii", "replace")
        except OSError:
            return self.last(key.run)  # the job has ended, and its group with it
        try:
            if path.name == "cpu.stat":
                return int(text.split()[1]) / 1e6 if text.startswith("usage_usec") else None
            return int(text) / 1e9
        except (ValueError, IndexError):
            return None

    def _busy_s(self) -> float | None:
        text = self._host.read_text("proc", "stat")
        fields = (text or "").partition("\n")[0].split()
        if len(fields) < 8 or fields[0] != "cpu":
            return None
        return sum(int(fields[1 + i]) for i in BUSY_FIELDS) / TICKS_PER_S


CONTAINER_CHARACTERS = 32
"""Identifiers of containers are longer than that."""


def cgroup_file(root: Path, node: str, job: str, uid: int) -> Path | None:
    """Return Slurm's file of a job's CPU time: version 2, then version 1."""
    places = (
        f"system.slice/{node}_slurmstepd.scope/job_{job}/cpu.stat",
        f"system.slice/slurmstepd.scope/job_{job}/cpu.stat",
        f"cpuacct/slurm_{node}/uid_{uid}/job_{job}/cpuacct.usage",
        f"cpuacct/slurm/uid_{uid}/job_{job}/cpuacct.usage",
        f"cpu,cpuacct/slurm/uid_{uid}/job_{job}/cpuacct.usage",
    )
    return next((root / place for place in places if (root / place).is_file()), None)


def is_group_of(job: str, groups: str) -> bool:
    """Return True if a process with these control groups is of a Slurm job, or of a container.

    The number alone is not enough: `user-1000.slice` is of a user, `session-7.scope` of a login.
    """
    if len(job) >= CONTAINER_CHARACTERS:
        return job in groups
    return f"/job_{job}/" in f"{groups}\n".replace("\n", "/")
