"""Steps and phases of a job's programs, from the files that `wattloop run` replaces for the agent.

A program under `wattloop run` has a folder for its steps, which its environment names. Every few
seconds `wattloop run` replaces a small file there.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from wattloop.core.process import BackgroundThread
from wattloop.fleet.agent.cpu_time import is_group_of
from wattloop.measure.meter_stream import domain_sources
from wattloop.measure.run_journal import RunProgress

if TYPE_CHECKING:
    from wattloop.fleet.agent.open_runs import OpenRun, RunPlan

_log = logging.getLogger("wattloop.agent")
LOOK_EVERY_S = 5.0
EXAMINED = 3
"""A process without steps in so many looks never has them: it does not become another program."""
FORGET_EVERY = 120
"""All processes are examined again after so many looks: their numbers are used again."""
ENVIRONMENT_B = 65_536
STEPS_VARIABLE = b"WATTLOOP_STEPS"
MOST_PROGRAMS = 64
"""Programs of one job at a time; more are left out."""


class ProgressRow(NamedTuple):
    """Progress of a job with the labels of its metrics, and the provenance of its joules."""

    run_id: str
    labels: dict[str, str]
    provenance: str
    told: RunProgress


@dataclass(slots=True)
class _Program:
    """A process with a folder of steps: its job's run, the folder, and the process's user."""

    run_id: str
    folder: str
    uid: int


class JobPrograms(BackgroundThread):
    """Thread that reads what the programs of a node's jobs tell of their steps.

    A process belongs to the job that its control group names, or as the job's user to the job that
    Slurm's variables name. Reading its files takes the rights of its user and to trace it: root
    has them, a container without capabilities has not.

    Args:
        procfs: where processes are.
        node: its name in Slurm.
    """

    def __init__(self, procfs: Path, node: str) -> None:
        super().__init__("wattloop-programs", patience_s=5.0)
        self._procfs, self._node = procfs, node.encode()
        self._plans: Mapping[str, RunPlan] = {}
        self._known: dict[int, _Program | int] = {}
        """Process -> its program, or how often it was examined without finding one."""
        self._looks = 0
        self._told: dict[str, dict[str, RunProgress]] = {}

    def follow(self, plans: Mapping[str, RunPlan]) -> None:
        """Look for the programs of these runs from now on, and forget those of others."""
        self._plans = plans

    def told(self, run_id: str) -> Mapping[str, RunProgress]:
        """Return folder -> progress of the programs of a run, also of the last that have ended."""
        return self._told.get(run_id, {})

    def _work(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - jobs are measured on without their steps
                _log.exception("steps of jobs were not read")

    def look(self) -> None:
        """Read all programs once."""
        plans = self._plans
        told = {run: found for run, found in self._told.items() if run in plans}
        read = set[tuple[str, str]]()
        programs = self._programs(plans)
        running = {(program.run_id, program.folder) for program in programs.values()}
        for pid, program in programs.items():
            key = (program.run_id, program.folder)
            if key in read:
                continue
            found = dict(told.get(program.run_id, {}))
            if program.folder not in found and len(found) >= MOST_PROGRAMS:
                ended = [name for name in found if (program.run_id, name) not in running]
                if not ended:
                    continue
                del found[ended[0]]
            folder = self._procfs / str(pid) / "root" / program.folder.lstrip("/")
            progress = _own_progress(folder, program.uid)
            if progress is not None:
                read.add(key)
                told[program.run_id] = {**found, program.folder: progress}
        self._told = told

    def _programs(self, plans: Mapping[str, RunPlan]) -> dict[int, _Program]:
        self._looks += 1
        if self._looks % FORGET_EVERY == 0:
            self._known = {}
        names = os.listdir(self._procfs) if plans else []  # noqa: PTH208 - ten times a path's speed
        known: dict[int, _Program | int] = {}
        for pid in sorted(int(name) for name in names if name.isdigit()):
            before = self._known.get(pid, 0)
            settled = before >= EXAMINED if isinstance(before, int) else before.run_id in plans
            known[pid] = before
            if not settled:
                count = before if isinstance(before, int) else 0
                known[pid] = self._examine(pid, plans) or count + 1
        self._known = known
        return {pid: found for pid, found in known.items() if isinstance(found, _Program)}

    def _examine(self, pid: int, plans: Mapping[str, RunPlan]) -> _Program | None:
        place = self._procfs / str(pid)
        try:
            with (place / "environ").open("rb") as file:
                words = file.read(ENVIRONMENT_B).split(b"\0")
            facts = dict(word.split(b"=", 1) for word in words if b"=" in word)
            folder = os.fsdecode(facts.get(STEPS_VARIABLE, b""))
            if not folder.startswith("/"):
                return None
            uid = place.stat().st_uid
            group = (place / "cgroup").read_text("utf-8", "replace")
        except OSError:
            return None
        job = os.fsdecode(facts.get(b"SLURM_JOB_ID", b""))
        if facts.get(b"SLURMD_NODENAME", self._node) != self._node:
            job = ""
        for run_id, plan in plans.items():
            if is_group_of(plan.job, group) or (job == plan.job and uid == plan.uid):
                return _Program(run_id, folder, uid)
        return None


def _own_progress(folder: Path, uid: int) -> RunProgress | None:
    """Return the progress in a folder of this user, which no link may stand for."""
    try:
        status = folder.lstat()
    except OSError:  # the program has ended
        return None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != uid:
        return None
    return RunProgress.read(folder, uid)


@dataclass(slots=True)
class JobProgress:
    """Sums over the programs of a job, which never fall.

    The joules of the job in a time are divided among phases as its programs saw theirs in it: they
    read whole devices, the agent knows the job's part.

    Attributes:
        until_s: up to when joules are divided.
        told: folder -> what was told last, as it was told.
        programs: folder -> the same, without numbers that fell.
        past: sum of programs that have ended and are not told any more.
        row: what is shown until more is told.
    """

    until_s: float
    told: Mapping[str, RunProgress] = field(default_factory=dict)
    programs: dict[str, RunProgress] = field(default_factory=dict)
    past: RunProgress = field(default_factory=RunProgress)
    energy_j: dict[str, float] = field(default_factory=dict)
    row: ProgressRow | None = None

    @property
    def total(self) -> RunProgress:
        whole = _total([self.past, *self.programs.values()])
        joules = {name: self.energy_j.get(name, 0.0) for name in whole.phases}
        return whole._replace(phases={n: (s, joules[n]) for n, (s, _) in whole.phases.items()})

    def add(self, told: Mapping[str, RunProgress], run: OpenRun, counted: frozenset[str]) -> None:
        """Add what the programs of the job have told since the last call."""
        self.told = told
        gone = [self.programs.pop(folder) for folder in {*self.programs} - {*told}]
        self.past = _total([self.past, *gone])
        new_s: dict[str, float] = {}
        new_j: dict[str, float | None] = {}
        until_s = self.until_s
        for folder, progress in told.items():
            before = self.programs.get(folder)
            if progress == before:
                continue
            now = self.programs[folder] = progress if before is None else _largest(before, progress)
            if now.local_rank:
                continue
            until_s = max(until_s, now.until_s)
            for name, (time_s, joules) in now.phases.items():
                old_s, old_j = (0.0, 0.0) if before is None else before.phases.get(name, (0.0, 0.0))
                new_s[name] = new_s.get(name, 0.0) + time_s - old_s
                known_j = new_j.get(name, 0.0)
                unknown = known_j is None or joules is None or old_j is None
                new_j[name] = None if unknown else known_j + joules - old_j  # type: ignore[operator]  # all are numbers
        lasted_s = sum(new_s.values())
        if until_s <= self.until_s or lasted_s <= 0:
            return
        weights = {n: j or 0.0 for n, j in new_j.items()} if None not in new_j.values() else new_s
        whole = sum(weights.values())
        weights, whole = (weights, whole) if whole > 0 else (new_s, lasted_s)
        spent_j = _energy_j(run, counted, max(self.until_s, until_s - lasted_s), until_s)
        for name, weight in weights.items():
            self.energy_j[name] = self.energy_j.get(name, 0.0) + spent_j * weight / whole
        self.until_s = until_s


def _total(programs: Sequence[RunProgress]) -> RunProgress:
    """Return the sum of some programs, without joules."""
    first = [one for one in programs if one.local_rank == 0]
    steps_s = [one.last_step_s for one in programs if one.last_step_s is not None]
    phases: dict[str, tuple[float, float | None]] = {}
    for name, (time_s, _) in (phase for one in first for phase in one.phases.items()):
        phases[name] = (phases.get(name, (0.0, None))[0] + time_s, None)
    return RunProgress(
        steps=sum(one.steps for one in first),
        samples=_sum([one.samples for one in programs]),
        tokens=_sum([one.tokens for one in first]),
        last_step_s=max(steps_s, default=None),
        phases=phases,
    )


def _largest(before: RunProgress, now: RunProgress) -> RunProgress:
    """Return what a program tells now, without a number that falls: a counter never does."""
    phases = dict(now.phases)
    for name, (time_s, joules) in before.phases.items():
        later_s, later_j = phases.get(name, (time_s, joules))
        known = joules is not None and later_j is not None
        phases[name] = (max(time_s, later_s), max(joules, later_j) if known else None)  # type: ignore[type-var]  # both are numbers
    return now._replace(
        steps=max(before.steps, now.steps),
        samples=max(before.samples or 0.0, now.samples or 0.0) or None,
        tokens=max(before.tokens or 0.0, now.tokens or 0.0) or None,
        phases=phases,
        local_rank=before.local_rank,
    )


def _energy_j(run: OpenRun, counted: frozenset[str], begin_s: float, end_s: float) -> float:
    """Return the joules of a job between two instants."""
    spans = [
        source.between(begin_s, end_s)
        for source in domain_sources([run.feed])
        if source.domain.name in counted
    ]
    return max(0.0, sum(span.energy_j for span in spans if span is not None))


def _sum(amounts: Sequence[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None
