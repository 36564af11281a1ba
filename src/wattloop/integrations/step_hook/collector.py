"""Collector of steps in `wattloop run`: reads the step files of the program, adds their energy."""

from __future__ import annotations

import itertools
import math
import os
import threading
from bisect import bisect_right, insort
from pathlib import Path

from wattloop.integrations.phases import Span, StepTotals, phase_energies, split_run
from wattloop.integrations.records import PendingStep
from wattloop.integrations.step_hook import step_file
from wattloop.integrations.step_hook.step_file import StepFile
from wattloop.integrations.step_resolver import StepResolver
from wattloop.integrations.step_timeline import Edge
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
}
MOST_PROCESSES = 4_096
LATEST_METRICS = 64
"""Metrics of so many steps wait for their step, or the step for them."""


class StepCollector:
    """Reads the step files while the program runs, and adds steps and phases to its run.

    Args:
        session: the run.
        folder: where the hooks of the program write; removed at the end.
    """

    def __init__(self, session: Session, folder: Path) -> None:
        self.totals: StepTotals | None = None
        self._session = session
        self._folder = folder
        self._lock = threading.Lock()
        self._finished = False
        self._files: dict[str, StepFile | None] = {}
        self._leader: StepFile | None = None
        self._first: tuple[Edge, dict[str, float]] | None = None
        self._last: Edge | None = None
        self._spans: dict[str, list[Span]] = {}
        self._pause_ends_s: list[float] = []
        self._training: list[Span] = []
        self._logged: dict[int, dict[str, float]] = {}
        self._tokens: float | None = None
        self._steps = 0
        self._numbers = itertools.count()
        self._samples = 0.0
        self._resolver = StepResolver(session, self._poll)
        self._resolver.start()

    # -- inside ----------------------------------------------------------------------------

    def _poll(self) -> None:
        """Read what the hooks have written; called once a second by the resolver's thread."""
        with self._lock:
            if not self._finished:
                self._read()

    def _read(self) -> None:
        with os.scandir(self._folder) as entries:
            names = sorted(e.name for e in entries if e.name.endswith(".steps"))
        for name in names[:MOST_PROCESSES]:
            if self._files.get(name) is None:
                self._files[name] = StepFile.open(str(self._folder / name))
        for file in self._files.values():
            if file is not None:
                self._take(file, file.read())

    def _take(self, file: StepFile, records: list[tuple[float, ...]]) -> None:
        """Take in records of one process. What its trainer logged of a step comes before it here,
        and after it in the file.
        """
        steps = []
        for kind, *values in records:
            if kind in SPAN_NAMES:
                self._add_pause(SPAN_NAMES[kind], (values[0], values[1]))
            elif kind in METRIC_NAMES and not file.header.get("local_rank"):
                self._add_metric(int(values[0]), METRIC_NAMES[kind], values[1])
            elif kind == step_file.STEP and self._leads(file):
                steps.append(values)
        for values in steps:
            self._add_step(values)

    def _add_metric(self, step: int, name: str, value: float) -> None:
        """Add what the trainer logged after a step, which may be resolved already."""
        if name == "tokens":
            self._tokens = max(self._tokens or 0.0, value)
        elif step > self._steps - LATEST_METRICS:
            self._logged.setdefault(step, {})[name] = value

    def _leads(self, file: StepFile) -> bool:
        """Return True if the steps of this process are those of the run.

        Ranks of a job step together: the first of the node stands for them. When the process that
        led has ended, the next one that steps follows it.
        """
        if self._leader is file:
            return True
        if file.header.get("local_rank"):
            return False
        if self._leader is not None and _alive(self._leader.header.get("pid")):
            return False
        self._leader, self._last, self._first = file, None, None
        return True

    def _add_pause(self, name: str, span: Span) -> None:
        if math.isfinite(span[0]) and span[0] < span[1] < math.inf:
            self._spans.setdefault(name, []).append(span)
            insort(self._pause_ends_s, span[1])

    def _last_pause_end_s(self, time_s: float) -> float:
        i = bisect_right(self._pause_ends_s, time_s)
        return self._pause_ends_s[i - 1] if i else -math.inf

    def _add_step(self, values: list[float]) -> None:
        host_s, time_s, blur_s, wait_begin_s, wait_s, samples = values
        if not math.isfinite(host_s + time_s) or (self._last and host_s < self._last.host_s):
            return  # a file that was written to by another program
        edge = Edge(host_s)
        edge.time_s, edge.blur_s = time_s, blur_s
        if wait_s > 0:
            self._spans.setdefault("waiting for data", []).append(
                (wait_begin_s, wait_begin_s + wait_s)
            )
        self._steps += 1
        self._samples += samples  # NaN once the size of a batch is unknown
        metrics = self._logged.setdefault(self._steps, {})
        self._logged.pop(self._steps - LATEST_METRICS, None)
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
        pause_end_s = self._last_pause_end_s(host_s)
        if begin.host_s < pause_end_s:
            begin = Edge(pause_end_s)
        self._emit(begin, edge, metrics)

    def _emit(self, begin: Edge, end: Edge, metrics: dict[str, float]) -> None:
        if self._training and self._last is not None:
            self._training[-1] = (self._training[-1][0], end.host_s)
        else:
            self._training.append((begin.host_s, end.host_s))
        self._last = end
        self._resolver.add_step(PendingStep(next(self._numbers), None, begin, end, metrics))

    def finish(self) -> None:
        """Read the last records, resolve them, and record the phases."""
        with self._lock:
            self._read()
            self._finished = True
        if self._first is not None:
            edge, metrics = self._first
            self._first = None
            self._emit(Edge(edge.host_s), edge, metrics)
        self._resolver.resolve(force=True)
        notes = self._notes()
        if self._steps:
            self._record_totals(notes)
        elif notes:
            self.totals = StepTotals(0, processes=len(self._files), notes=tuple(notes))

    def _record_totals(self, notes: list[str]) -> None:
        session = self._session
        run = (session.started_s, session.clock.now_s())
        whole = session.between(*run)
        parts = split_run(run, self._training, self._spans)
        phases = phase_energies(parts, self._energy_between_j, whole.energy_j)
        in_steps = [p for p in phases if p.name in ("training", "waiting for data")]
        known = all(p.energy_j is not None for p in in_steps)
        self.totals = StepTotals(
            steps=self._steps,
            step_s=sum(p.time_s for p in in_steps) / self._steps,
            step_j=sum(p.energy_j or 0.0 for p in in_steps) / self._steps if known else None,
            samples=self._samples if self._samples > 0 else None,
            tokens=self._tokens,
            processes=sum(file is not None for file in self._files.values()),
            phases=tuple(phases),
            notes=tuple(notes),
        )
        session.record({"type": "phases", "time_s": run[1], **self.totals.to_dict()})

    def _energy_between_j(self, begin_s: float, end_s: float) -> float | None:
        return self._session.between(begin_s, end_s).energy_j

    def _notes(self) -> list[str]:
        notes = []
        for path in sorted(self._folder.glob("*.note"))[:8]:
            try:
                notes.append(path.read_text("utf-8", "replace").strip()[:300])
            except OSError:
                continue
        return notes


def _alive(pid: object) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
