"""Collector of steps in `wattloop run`: reads the step files of the program, adds their energy.

Each process of the program has its file. The steps of the run are those of the leading process.
Ranks that step together are led by the lowest; a process that steps while the leader does not (the
next stage of a script, a child that trains while its parent waits) takes over.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
import time
from array import array
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from wattloop.integrations.records import PendingStep
from wattloop.integrations.run_phases import (
    PhaseTotals,
    Span,
    StepTotals,
    drawn_spans,
    phase_energies,
    split_run,
)
from wattloop.integrations.step_hook import step_file
from wattloop.integrations.step_hook.step_file import StepFile
from wattloop.integrations.step_resolver import StepResolver
from wattloop.integrations.step_timeline import Edge
from wattloop.measure.run_journal import RunProgress
from wattloop.measure.session import Session

SPAN_NAMES = {
    step_file.EVALUATION: "evaluation",
    step_file.CHECKPOINT: "checkpoint",
    step_file.COMPILE: "compilation",
}
METRIC_NAMES = {
    step_file.LOSS: "loss",
    step_file.TOKENS: "tokens",
    step_file.EPOCH: "epoch",
    step_file.TRAINER_STEP: "trainer_step",
}
MOST_PROCESSES = 4_096
LATEST_METRICS = 64
"""Metrics of so many steps wait for their step, or the step for them."""
STEPS_BEFORE_TAKEOVER = 20
"""Steps of another process without one of the leader, after which it leads."""
WAITED_STEPS = 2
"""A process that is silent for so many of its median steps waits."""
PAUSE_S, PAUSE_STEPS = 0.5, 10
"""Time between two steps that is longer than this, and than so many median steps, is a pause."""
RECENT_STEPS, FEWEST_STEPS = 64, 8
PHASE_LAG_S = 1.0
"""Readings of energy are complete up to this long ago."""
PUBLISH_EVERY_S = 5.0
SCHEDULERS = ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST")
"""Variables of jobs on nodes that may have an agent."""


class ProgramProcess:
    """One process of the program: its file, and what was read of it."""

    def __init__(self, file: StepFile) -> None:
        self.file = file
        self.rank = int(file.header.get("local_rank") or 0)
        self.pid = int(file.header.get("pid") or 0)
        self.steps = 0
        self.last: Edge | None = None
        """End of its last step of the run."""
        self.together = False
        """Whether steps were left out because the leader stepped meanwhile."""
        self.tokens: float | None = None
        self.backlog: list[list[float]] = []
        """Steps that are not yet in the run, or left out."""
        self.spans: list[tuple[str, Span]] = []
        self.metrics: dict[int, dict[str, float]] = {}
        self.epochs: list[tuple[int, float]] = []
        """Step of the process -> epochs that were done after it, as the trainer logged them."""
        self.ahead = 0
        """Steps that the trainer counts more, because it resumed from a checkpoint."""
        self.number = 0
        """Number in the run of the first step of this process."""
        self._taken_s: float | None = None
        self._gaps_s: deque[float] = deque(maxlen=RECENT_STEPS)

    def take(self, count: int = 1) -> list[list[float]]:
        """Return the next steps, and remove them."""
        steps, self.backlog = self.backlog[:count], self.backlog[count:]
        for host_s, *_ in steps:
            if self._taken_s is not None:
                self._gaps_s.append(host_s - self._taken_s)
            self._taken_s = host_s
        return steps

    def waits(self, until_s: float) -> bool:
        """Return True if it makes no step until then for longer than usual."""
        if self._taken_s is None or not self._gaps_s:
            return False
        next_s = self.backlog[0][0] if self.backlog else until_s
        return next_s - self._taken_s > WAITED_STEPS * median(self._gaps_s)


class StepCollector:
    """Reads the step files while the program runs, and adds steps and phases to its run.

    Args:
        session: the run.
        folder: where the hooks of the program write.
    """

    def __init__(self, session: Session, folder: Path) -> None:
        self.totals: StepTotals | None = None
        self._session = session
        self._folder = folder
        self._lock = threading.Lock()
        self._finished = False
        self._processes: dict[str, ProgramProcess] = {}
        self._leader: ProgramProcess | None = None
        self._first: tuple[Edge, dict[str, float]] | None = None
        self._last: Edge | None = None
        self._lead_s = -math.inf
        """Since when the leader leads."""
        self._spans: dict[str, list[Span]] = {}
        self._pause_ends_s: list[float] = []
        self._training: list[Span] = []
        self._lengths_s: deque[float] = deque(maxlen=RECENT_STEPS)
        self.steps = 0
        """Steps so far."""
        self._samples = 0.0
        self._edges_s = array("d")
        """Begin and end of each step, in turn."""
        self._numbers = itertools.count()
        self._phases = PhaseTotals(session.started_s, measured=bool(session.channels))
        self._published_s = -math.inf if any(map(os.environ.get, SCHEDULERS)) else math.inf
        self._resolver = StepResolver(session, self._poll)
        self._resolver.start()

    @property
    def compilations(self) -> list[Span]:
        """Compilations of processes that have not stepped."""
        spans = [span for process in self._processes.values() for span in process.spans]
        return [span for name, span in spans if name == "compilation"]

    @property
    def progress(self) -> RunProgress:
        """Steps and phases so far."""
        with self._lock:
            return self._progress()

    def _progress(self) -> RunProgress:
        session, phases = self._session, self._phases
        until_s, begin_s = session.ended_s, phases.until_s
        if not self._finished:
            last_s = begin_s if self._last is None else self._last.host_s
            if self._pause_ends_s:
                last_s = max(last_s, self._pause_ends_s[-1])
            until_s = min(last_s, session.clock.now_s() - PHASE_LAG_S)
        if until_s is not None:
            spans = (self._training, self._spans)
            phases.add(until_s, *spans, self._energy_between_j, ended=self._finished)
        tokens = sum(p.tokens or 0.0 for p in self._processes.values() if not p.rank)
        return RunProgress(
            steps=self.steps,
            samples=self._samples if self._samples > 0 else None,
            tokens=tokens or None,
            last_step_s=None if self._last is None else self._last.host_s,
            phases={name: (s, phases.energy_j[name]) for name, s in phases.time_s.items()},
            until_s=phases.until_s,
            local_rank=0 if session.job is None else session.job.local_rank or 0,
        )

    def _publish(self, now_s: float) -> None:
        """Write the progress for the agent of the node, in a job that may have one."""
        if now_s - self._published_s < PUBLISH_EVERY_S:
            return
        self._published_s = now_s
        try:
            self._progress().write(self._folder)
        except OSError:  # the program has removed the folder, or the disk is full
            return

    def finish(self) -> None:
        """Read the last records, resolve them, and record the phases."""
        with self._lock:
            while self._read():
                continue
            self._advance(math.inf)
            self._end_first()
            self._finished = True
        self._resolver.resolve(force=True)
        self._record_epochs()
        self._record_trackers()
        notes = self._notes()
        if self.steps:
            self._record_totals(notes)
        elif notes:
            self.totals = StepTotals(0, processes=len(self._processes), notes=tuple(notes))
        for process in self._processes.values():
            process.file.close()

    def _poll(self) -> None:
        """Read what the hooks have written; called once a second by the resolver's thread."""
        with self._lock:
            if not self._finished:
                # A process that stepped after this may wait for one whose file is read before.
                now_s = self._session.clock.now_s()
                self._read()
                self._advance(now_s)
                self._publish(now_s)

    def _read(self) -> bool:
        """Read what is new; return False if nothing is."""
        try:
            names = sorted(path.name for path in self._folder.glob("*.steps"))
        except OSError:  # the program has removed the folder; open files are still read
            names = []
        for name in names[:MOST_PROCESSES]:
            try:
                if name not in self._processes and (
                    file := StepFile.open(str(self._folder / name))
                ):
                    self._processes[name] = ProgramProcess(file)
            except OSError:  # not a file of a hook
                continue
        found = [(process, process.file.read()) for process in self._processes.values()]
        for process, records in found:
            self._take(process, records)
        return any(records for _, records in found)

    def _take(self, process: ProgramProcess, records: list[tuple[float, ...]]) -> None:
        """Take in records of one process. What its trainer logged of a step comes before it here,
        and after it in the file.
        """
        for kind, *values in records:
            if kind in SPAN_NAMES:
                process.spans.append((SPAN_NAMES[kind], (values[0], values[1])))
            elif kind in METRIC_NAMES:
                self._add_metric(process, int(values[0]), METRIC_NAMES[kind], values[1])
        for kind, *values in records:
            if kind == step_file.STEP and math.isfinite(values[0] + values[1]):
                self._samples += values[5]  # of all ranks; NaN once the size of a batch is unknown
                process.backlog.append(values)

    def _advance(self, until_s: float) -> None:
        """Add the steps that ended by `until_s` to the run, in order of time."""
        while self._add_burst(until_s):
            continue
        for process in self._processes.values():
            if process.last is not None:
                self._add_spans(process)

    def _add_burst(self, until_s: float) -> bool:
        """Add, or leave out, steps of one process without one of another between them.

        Return False if there is none, or what follows has to tell.
        """
        ready = [p for p in self._processes.values() if p.backlog and p.backlog[0][0] <= until_s]
        if self._leader is None:
            lowest = min((process.rank for process in ready), default=0)
            ready = [process for process in ready if process.rank == lowest]
        else:
            ready = [process for process in ready if not self._leave_out(process)]
        if not ready:
            return False
        process = min(ready, key=lambda each: each.backlog[0][0])
        others_s = [other.backlog[0][0] for other in ready if other is not process]
        end_s = min([until_s, *others_s])
        count = max(1, bisect_right(process.backlog, end_s, key=lambda values: values[0]))
        if self._leader in (None, process) or self._follows(process, count, end_s):
            self._take_over(process, count)
        elif others_s or until_s == math.inf:
            process.together = True
            process.take(count)
        else:
            return False
        return True

    def _leave_out(self, process: ProgramProcess) -> bool:
        """Deal with steps of another process than the leader that are not the next of the run.

        Return True if none is left.
        """
        leader = self._leader
        assert leader is not None
        if process is leader:
            return False
        if process.rank > leader.rank:
            process.backlog.clear()
        led = process.last is not None
        while led and process.backlog and process.backlog[0][0] < self._lead_s:
            # It led then, and wrote this late: a program writes when it steps, or starts a child.
            self._add_late(process, *process.take())
        while process.backlog and self._last and process.backlog[0][0] < self._last.host_s:
            process.take()
            process.together = True
        return not process.backlog

    def _follows(self, process: ProgramProcess, count: int, end_s: float) -> bool:
        """Return True if the leader does not step during the next `count` steps of the process.

        The leader waits for it, or has ended. Or the process has waited for the leader, or ends
        before the leader's next step.
        """
        leader = self._leader
        assert leader is not None
        if count >= STEPS_BEFORE_TAKEOVER or process.waits(end_s):
            return True
        return not process.together and (
            end_s == math.inf
            or leader.waits(end_s)
            or (not leader.backlog and has_ended(leader.pid))
            or (count == len(process.backlog) and has_ended(process.pid))
        )

    def _take_over(self, process: ProgramProcess, count: int) -> None:
        """Make the next `count` steps of this process those of the run."""
        if process is not self._leader:
            self._end_first()
            self._leader, self._last = process, None
            self._lead_s = process.backlog[0][0]
            process.number = len(self._edges_s) // 2 - process.steps
        self._add_spans(process)
        for values in process.take(count):
            process.steps += 1
            self._add_step(process, values)

    def _add_late(self, process: ProgramProcess, values: list[float]) -> None:
        """Add a step that ended before the leader took over."""
        assert process.last is not None
        process.steps += 1
        self.steps += 1
        edge = Edge(values[0])
        edge.time_s, edge.blur_s = values[1], values[2]
        self._training.insert(-1, (process.last.host_s, edge.host_s))
        self._edges_s.extend((process.last.host_s, edge.host_s))
        self._resolver.add_step(PendingStep(next(self._numbers), None, process.last, edge, {}))
        process.last = edge

    def _add_metric(self, process: ProgramProcess, step: int, name: str, value: float) -> None:
        """Add what the trainer logged after a step, which may be resolved already."""
        if name == "tokens":
            process.tokens = max(process.tokens or 0.0, value)
            return
        if name == "trainer_step":
            process.ahead = int(value) - step
            return
        if name == "epoch" and (not process.epochs or process.epochs[-1][0] < step):
            process.epochs.append((step, value))
        if step > process.steps - LATEST_METRICS:
            process.metrics.setdefault(step, {})[name] = value

    def _add_spans(self, process: ProgramProcess) -> None:
        for name, span in process.spans:
            self._add_pause(name, span)
        process.spans.clear()

    def _add_pause(self, name: str, span: Span) -> None:
        if math.isfinite(span[0]) and span[0] < span[1] < math.inf:
            self._spans.setdefault(name, []).append(span)
            insort(self._pause_ends_s, span[1])

    def _last_pause_end_s(self, time_s: float) -> float:
        i = bisect_right(self._pause_ends_s, time_s)
        return self._pause_ends_s[i - 1] if i else -math.inf

    def _add_step(self, process: ProgramProcess, values: list[float]) -> None:
        host_s, time_s, blur_s, wait_begin_s, wait_s, samples = values
        if self._last is not None and host_s < self._last.host_s:
            return
        edge = Edge(host_s)
        edge.time_s, edge.blur_s = time_s, blur_s
        process.last = edge
        if wait_s > 0:
            self._spans.setdefault("waiting for data", []).append(
                (wait_begin_s, wait_begin_s + wait_s)
            )
        self.steps += 1
        metrics = process.metrics.setdefault(process.steps, {})
        process.metrics.pop(process.steps - LATEST_METRICS, None)
        if not math.isnan(samples):
            metrics["samples"] = samples
        if self._last is None and self._first is None and math.isnan(wait_begin_s):
            self._first = (edge, metrics)  # its beginning is not known: judged by the next step
            return
        if self._first is not None:
            first, first_metrics = self._first
            self._first = None
            length_s = host_s - max(first.host_s, self._last_pause_end_s(host_s))
            self._emit(Edge(first.host_s - length_s), first, first_metrics)
        begin = self._last if self._last is not None else Edge(wait_begin_s)
        begin = self._after_pauses(begin, host_s, wait_s)
        self._emit(begin, edge, metrics)

    def _end_first(self) -> None:
        """Add a first step that no other has followed: its length stays unknown."""
        if self._first is not None:
            edge, metrics = self._first
            self._first = None
            self._emit(Edge(edge.host_s), edge, metrics)

    def _after_pauses(self, begin: Edge, end_s: float, wait_s: float) -> Edge:
        """Return the edge from which a step lasts: after known pauses, and unexplained ones."""
        pause_end_s = self._last_pause_end_s(end_s)
        if begin.host_s < pause_end_s:
            # What no other phase explains, such as tracing between two compilations, is a pause.
            self._spans.setdefault("pause", []).append((begin.host_s, pause_end_s))
            begin = Edge(pause_end_s)
        length_s = end_s - begin.host_s - wait_s
        if len(self._lengths_s) >= FEWEST_STEPS:
            usual_s = median(self._lengths_s)
            if length_s > max(PAUSE_S, PAUSE_STEPS * usual_s):
                paused = (begin.host_s, end_s - usual_s)
                self._spans.setdefault("pause", []).append(paused)
                return Edge(paused[1])
        self._lengths_s.append(length_s)
        return begin

    def _emit(self, begin: Edge, end: Edge, metrics: dict[str, float]) -> None:
        if self._training and self._last is not None:
            self._training[-1] = (self._training[-1][0], end.host_s)
        else:
            self._training.append((begin.host_s, end.host_s))
        self._last = end
        self._edges_s.extend((begin.host_s, end.host_s))
        self._resolver.add_step(PendingStep(next(self._numbers), None, begin, end, metrics))

    def _record_epochs(self) -> None:
        """Record each complete epoch, from the begin of its first step to the end of its last."""
        for process in self._processes.values():
            if process.steps:
                for index, first, last in complete_epochs(process.epochs):
                    self._record_epoch(index, process.number + first, process.number + last)

    def _record_epoch(self, index: int, first: int, last: int) -> None:
        if not 0 <= first <= last < len(self._edges_s) // 2:
            return
        begin_s, end_s = self._edges_s[2 * first], self._edges_s[2 * last + 1]
        result = self._session.between(begin_s, end_s, name=f"epoch {index}")
        known = [d for d in result.domains if d.energy_j is not None]
        self._session.record(
            {
                "type": "step",
                "kind": "epoch",
                "index": index,
                "begin_s": begin_s,
                "end_s": end_s,
                "energy": {d.name: [d.energy_j, d.uncertainty_j] for d in known},
                "metrics": {"steps": last - first + 1},
            }
        )

    def _record_trackers(self) -> None:
        """Record which runs of trackers the program had open, and how its trainer counts steps."""
        found: list[dict[str, str]] = []
        for path in sorted(self._folder.glob("*.trackers"))[:MOST_PROCESSES]:
            try:
                found += [run for run in json.loads(path.read_text()) if run not in found]
            except (OSError, ValueError, TypeError):
                continue
        ahead = 0 if self._leader is None else self._leader.ahead
        if found or ahead:
            time_s = self._session.clock.now_s()
            self._session.record(
                {"type": "trackers", "time_s": time_s, "runs": found, "steps_before": ahead}
            )

    def _record_totals(self, notes: list[str]) -> None:
        session = self._session
        end_s = session.clock.now_s() if session.ended_s is None else session.ended_s
        run = (session.started_s, end_s)
        parts = split_run(run, self._training, self._spans)
        whole_j = session.between(*run).energy_j
        phases = phase_energies(parts, self._energy_between_j, whole_j)
        in_steps = [p for p in phases if p.name in ("training", "waiting for data")]
        time_s = sum(p.time_s for p in in_steps)
        known = time_s > 0 and all(p.energy_j is not None for p in in_steps)
        tokens = [p.tokens for p in self._processes.values() if p.tokens and not p.rank]
        self.totals = StepTotals(
            steps=self.steps,
            step_s=time_s / self.steps if time_s > 0 else None,
            step_j=sum(p.energy_j or 0.0 for p in in_steps) / self.steps if known else None,
            samples=self._samples if self._samples > 0 else None,
            tokens=sum(tokens) if tokens else None,
            processes=len(self._processes),
            phases=tuple(phases),
            notes=tuple(notes),
        )
        event = {"type": "phases", "time_s": end_s, "spans": drawn_spans(parts)}
        session.record(event | self.totals.to_dict())

    def _energy_between_j(self, begin_s: float, end_s: float) -> float | None:
        return self._session.between(begin_s, end_s).energy_j

    def _notes(self) -> list[str]:
        notes = []
        for path in sorted(self._folder.glob("*.note"))[:8]:
            try:
                if path.is_file():
                    notes.append(path.read_text("utf-8", "replace").strip()[:300])
            except OSError:
                continue
        return notes


# Live steps of all ranks, as they happen.

SILENT_S, SILENT_STEPS = 2.0, 20
"""A rank that wrote nothing for so long, while another made so many steps, steps no more."""
MOST_WAITING = 4_096
"""Steps of a process that wait for those of other ranks."""


class StepEvent(NamedTuple):
    """A step of the whole job has ended, or something that is not a step has begun."""

    at_s: float
    is_step: bool


class LiveRank:
    """A process that steps."""

    def __init__(self, file: StepFile, now_s: float) -> None:
        self.file = file
        self.rank = int(file.header.get("local_rank") or 0)
        self.pid = int(file.header.get("pid") or 0)
        self.waiting: deque[float] = deque(maxlen=MOST_WAITING)
        self.written_s = now_s

    @property
    def ended(self) -> bool:
        return has_ended(self.pid)


class LiveSteps:
    """Steps of a program while it runs: a step of its job ends when its slowest rank has stepped.

    A process that steps after another of the same rank has ended, or is silent, replaces it.

    Args:
        folder: where the hooks of the program write.
        now_s: the monotonic clock.
    """

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._now_s = folder, now_s
        self._all: dict[str, LiveRank] = {}
        self._active: dict[int, LiveRank] = {}
        self._last_s = -math.inf

    def poll(self) -> list[StepEvent]:
        """Return what has happened since the last call, in order of time."""
        now_s = self._now_s()
        self._open(now_s)
        events: list[StepEvent] = []
        for process in self._all.values():
            for kind, first, second, *_ in process.file.read():
                process.written_s = now_s
                if kind == step_file.STEP and math.isfinite(second):
                    process.waiting.append(second)
                elif kind in SPAN_NAMES and math.isfinite(first):
                    events.append(StepEvent(max(first, self._last_s), is_step=False))
        for process in self._all.values():
            self._join(process)
        while self._step(events, now_s):
            continue
        return sorted(events)

    def close(self) -> None:
        for process in self._all.values():
            process.file.close()
        self._all.clear()
        self._active.clear()

    def _open(self, now_s: float) -> None:
        try:
            names = sorted(path.name for path in self._folder.glob("*.steps"))
        except OSError:
            return
        for name in names[:MOST_PROCESSES]:
            try:
                if name not in self._all and (file := StepFile.open(str(self._folder / name))):
                    self._all[name] = LiveRank(file, now_s)
            except OSError:
                continue

    def _join(self, process: LiveRank) -> None:
        """Let a process that steps be one of those that step together."""
        present = self._active.get(process.rank)
        if present is process or not process.waiting:
            return
        if present is not None and not present.ended:
            silent = not present.waiting and len(process.waiting) >= SILENT_STEPS
            if not (silent and self._now_s() - present.written_s > SILENT_S):
                return
        while process.waiting and process.waiting[0] <= self._last_s:
            process.waiting.popleft()
        self._active[process.rank] = process

    def _step(self, events: list[StepEvent], now_s: float) -> bool:
        """Add a step if every rank has made it; return False if one has not."""
        ready = [process for process in self._active.values() if process.waiting]
        if not ready:
            return False
        most = max(len(process.waiting) for process in ready)
        for rank, process in list(self._active.items()):
            if process.waiting:
                continue
            silent = now_s - process.written_s > SILENT_S and most >= SILENT_STEPS
            if not (silent or process.ended):
                return False
            del self._active[rank]
        self._last_s = max([self._last_s, *(process.waiting.popleft() for process in ready)])
        events.append(StepEvent(self._last_s, is_step=True))
        return True


def has_ended(pid: int) -> bool:
    """Return True if no process has this number; one that cannot be looked at counts as alive."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return pid > 0
    except OSError:
        return False
    return False


def complete_epochs(logged: list[tuple[int, float]]) -> list[tuple[int, int, int]]:
    """Return number, first and last step (from 0) of each complete epoch.

    Args:
        logged: steps so far and epochs so far, which may be a fraction; both increase. Between two
            entries the epochs are proportional to the steps, as trainers count them.
    """
    found: list[tuple[int, int, int]] = []
    before, first, ended = (0, 0.0), 0, 0
    for steps, epochs in logged:
        if epochs <= before[1]:
            continue  # another training begins to count
        per_epoch = (steps - before[0]) / (epochs - before[1])
        while ended + 1 <= epochs + 0.5 / per_epoch:
            last = round(before[0] + (ended + 1 - before[1]) * per_epoch)
            if last > first:
                found.append((ended, first, last - 1))
            ended, first = ended + 1, last
        before = (steps, epochs)
    return found
