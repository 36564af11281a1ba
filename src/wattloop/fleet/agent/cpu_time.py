"""CPU time of jobs and of the whole node, as far back as it is still to be shared out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from wattloop.fleet.agent.process_times import ProcessTimes
from wattloop.hardware.host import Host

__all__ = ["CpuTimes", "Curve", "JobKey", "cgroup_file"]

TICKS_PER_S = 100.0
"""USER_HZ, the same on every Linux that we know."""
BUSY_FIELDS = (0, 1, 2, 5, 6)
"""user, nice, system, irq, softirq of /proc/stat; idle, iowait and stolen time are no work."""


class JobKey(NamedTuple):
    """A job whose CPU time is wanted."""

    run: str
    job: str
    uid: int


class Curve:
    """A quantity that only grows, known at some instants, straight in between."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.values: list[float] = []

    def add(self, time_s: float, value: float) -> None:
        """One more point; a value that fell (a process left) is taken to have stayed."""
        if self.times_s and time_s <= self.times_s[-1]:
            return
        self.times_s.append(time_s)
        self.values.append(max(value, self.values[-1]) if self.values else value)

    def between(self, begin_s: float, end_s: float) -> float:
        """How much it grew."""
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
    """Reads control groups, or processes where there are none.

    Args:
        host: where /proc is.
        cgroup_root: where control groups are.
        node: this node's name in Slurm.
    """

    def __init__(self, host: Host, cgroup_root: Path, node: str) -> None:
        self._host = host
        self._root = cgroup_root
        self._node = node
        self._files: dict[str, Path] = {}
        self._processes = ProcessTimes(host.procfs, node)
        self._jobs: dict[str, Curve] = {}
        self.busy = Curve()

    def begin(self, run: str, time_s: float, cpu_s: float = 0.0) -> None:
        """A job is known from `time_s` on, with the CPU time it had then."""
        curve = self._jobs.setdefault(run, Curve())
        curve.add(time_s, cpu_s)

    def read(self, jobs: Iterable[JobKey], now_s: float) -> None:
        """Look at every job and at the node."""
        without: list[JobKey] = []
        for key in jobs:
            cpu_s = self._of_cgroup(key)
            if cpu_s is None:
                without.append(key)
            else:
                self._jobs.setdefault(key.run, Curve()).add(now_s, cpu_s)
        if without:
            found = self._processes.read({key.job: key.uid for key in without})
            for key in without:
                if key.job in found:
                    self._jobs.setdefault(key.run, Curve()).add(now_s, found[key.job])
        busy_s = self._busy_s()
        if busy_s is not None:
            self.busy.add(now_s, busy_s)

    def between(self, run: str, begin_s: float, end_s: float) -> float | None:
        """CPU time of a job; None where nothing of it was ever seen."""
        curve = self._jobs.get(run)
        return curve.between(begin_s, end_s) if curve and len(curve.times_s) > 1 else None

    def busy_between(self, begin_s: float, end_s: float) -> float | None:
        """CPU time of the whole node; None where it cannot be read."""
        return self.busy.between(begin_s, end_s) if len(self.busy.times_s) > 1 else None

    def last(self, run: str) -> float:
        """CPU time of a job at the last look."""
        curve = self._jobs.get(run)
        return curve.values[-1] if curve and curve.values else 0.0

    def forget_before(self, time_s: float, running: Iterable[str]) -> None:
        """Drop what is no longer needed."""
        kept = set(running)
        self._jobs = {run: curve for run, curve in self._jobs.items() if run in kept}
        self._files = {run: path for run, path in self._files.items() if run in kept}
        for curve in (self.busy, *self._jobs.values()):
            curve.forget_before(time_s)

    def _of_cgroup(self, key: JobKey) -> float | None:
        path = self._files.get(key.run)
        if path is None:
            path = cgroup_file(self._root, self._node, key.job, key.uid)
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


def cgroup_file(root: Path, node: str, job: str, uid: int) -> Path | None:
    """Where Slurm's plugins keep the CPU time of a job: version 2, then version 1."""
    places = (
        *(f"system.slice/{node}_slurmstepd.scope/job_{job}/cpu.stat",),
        *(f"system.slice/slurmstepd.scope/job_{job}/cpu.stat",),
        *(f"cpuacct/slurm_{node}/uid_{uid}/job_{job}/cpuacct.usage",),
        *(f"cpuacct/slurm/uid_{uid}/job_{job}/cpuacct.usage",),
        *(f"cpu,cpuacct/slurm/uid_{uid}/job_{job}/cpuacct.usage",),
    )
    return next((root / place for place in places if (root / place).is_file()), None)
