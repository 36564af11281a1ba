"""CPU time of jobs without control groups: by the processes that say they belong to one.

A process belongs to a job when it runs as the job's user and has the job's number in its
environment, where Slurm puts it. A user may pretend to belong to another job of their own, not to
somebody else's.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["ProcessTimes"]

TICKS_PER_S = 100.0
ENVIRONMENT_B = 65_536


class _Process(NamedTuple):
    began: str
    job: str
    """Empty: of no job."""
    uid: int
    looks: int = 1


class ProcessTimes:
    """Looks through /proc; who a process is gets looked up a few times, not at every look.

    What ended between two looks is in its parent's time for waited-for children, if that is of
    the job too.
    """

    SETTLED = 3
    """A process that belonged to no job in so many looks never will: it does not become another
    program any more. A new one may be Slurm's own, about to become the job's.
    """
    FORGET_EVERY = 120
    """After so many looks strangers are looked up anew, since numbers are used again."""

    def __init__(self, procfs: Path, node: str) -> None:
        self._procfs = procfs
        self._node = node.encode()
        self._known: dict[str, _Process] = {}
        self._looks = 0

    def read(self, uids: Mapping[str, int]) -> dict[str, float]:
        """Seconds of CPU time of each job (number -> its user), as far as processes are there."""
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
            if known is not None and known.job not in uids and known.looks >= self.SETTLED:
                alive[number] = known
                continue
            stat = self._stat(number)
            if stat is None:
                continue
            if known is None or known.began != stat[19]:
                known = self._looked_at(number, stat[19], 1)
            elif known.job not in uids:
                known = self._looked_at(number, stat[19], known.looks + 1)
            alive[number] = known
            if uids.get(known.job) == known.uid:
                cpu_s = sum(int(stat[i]) for i in (11, 12, 13, 14)) / TICKS_PER_S
                found[known.job] = found.get(known.job, 0.0) + cpu_s
        self._known = alive
        return found

    def _stat(self, number: str) -> list[str] | None:
        """Fields of /proc/N/stat after the name, which may hold anything."""
        try:
            text = (self._procfs / number / "stat").read_text("ascii", "replace")
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()
        return fields if len(fields) > 19 else None

    def _looked_at(self, number: str, began: str, looks: int) -> _Process:
        folder = self._procfs / number
        try:
            uid = folder.stat().st_uid
            with (folder / "environ").open("rb") as file:
                words = file.read(ENVIRONMENT_B).split(b"\0")
        except OSError:
            return _Process(began, "", -1, looks)
        facts = dict(word.split(b"=", 1) for word in words if b"=" in word)
        elsewhere = facts.get(b"SLURMD_NODENAME", self._node) != self._node
        job = b"" if elsewhere else facts.get(b"SLURM_JOB_ID", b"")
        return _Process(began, job.decode("ascii", "replace"), uid, looks)
