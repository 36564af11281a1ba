"""Finished steps and epochs turned into joules, away from the loop that trains.

A pass once a second takes the steps whose edges are known and whose readings are in, and writes
one compact event for all of them. What is not ready waits for the next pass.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from wattloop.core.records import Scope
from wattloop.core.results import WindowResult
from wattloop.integrations.records import EpochRecord, PendingStep, StepRecord
from wattloop.integrations.step_energy import Stretch, settled_s, step_energies
from wattloop.integrations.step_events import epoch_event, merged, steps_event
from wattloop.integrations.timelines import Edge
from wattloop.measure.session import Session

__all__ = ["StepResolver"]

PASS_EVERY_S = 1.0
PATIENCE_S = 15.0
"""A sensor that has said nothing for so long is no longer waited for."""
KEPT_STEPS = 20_000
"""Steps whose records stay in memory."""
JOURNALED_STEPS_LIMIT = 100_000
"""Steps beyond this are written a batch at a time instead of one by one."""


class StepResolver:
    """Takes steps and epochs, resolves them in a thread of its own, writes them to the journal."""

    def __init__(self, session: Session, each_pass: Callable[[], None]) -> None:
        self.steps: deque[StepRecord] = deque(maxlen=KEPT_STEPS)
        self.resolved = 0
        self._session = session
        self._each_pass = each_pass
        self._steps: deque[PendingStep] = deque()
        self._epochs: deque[EpochRecord] = deque()
        self._gpu = any(c.domain.scope is Scope.GPU for c in session.channels)
        self._counted: set[str] | None = None
        self._no_more = False
        self._busy = threading.Lock()
        self._stop = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="wattloop-steps", daemon=True)

    def start(self) -> None:
        """Begin to work in the background; the session's end completes everything."""
        self._session.before_end.append(self._complete)
        self._stop.acquire()
        self._thread.start()

    def add_step(self, step: PendingStep) -> None:
        """A step has ended."""
        self._steps.append(step)

    def add_epoch(self, epoch: EpochRecord) -> None:
        """An epoch has ended."""
        self._epochs.append(epoch)

    def expect_no_more(self) -> None:
        """The training is over; in a run that goes on, the thread ends when all is resolved."""
        self._no_more = True

    def stop(self) -> None:
        """End the thread; what is not resolved yet stays so."""
        if self._stop.locked():
            self._stop.release()

    def resolve(self, *, force: bool = False) -> None:
        """One pass; `force` takes everything whose edges are known."""
        with self._busy:
            ready_s = math.inf if force else self._settled_s()
            late_s = self._session.clock.now_s() - PATIENCE_S
            batch: list[PendingStep] = []
            while self._steps and _ready(self._steps[0].end, ready_s, late_s):
                batch.append(self._steps.popleft())
            if batch:
                self._write(batch)
            while self._epochs and _ready(self._epochs[0].end, ready_s, late_s):
                epoch = self._epochs.popleft()
                epoch.settle(self.window(epoch))
                self._session.record(epoch_event(epoch))

    def window(self, epoch: EpochRecord) -> WindowResult:
        """Energies of an epoch as far as they are known: GPUs between the device's edges, the
        rest of the node between the host's.
        """
        now_s = self._session.clock.now_s()
        begin_s, end_s, blur_s = _stretch(epoch.begin, epoch.end or Edge(now_s), device=True)
        name = f"epoch {epoch.index}"
        by_device = self._session.between(begin_s, end_s, name=name)
        host_end_s = now_s if epoch.end is None else epoch.end.host_s
        by_host = self._session.between(epoch.begin.host_s, host_end_s, name=name)
        edge_w = blur_s / (end_s - begin_s) if end_s > begin_s else 0.0
        domains = []
        for device, host in zip(by_device.domains, by_host.domains, strict=True):
            if device.scope is not Scope.GPU:
                domains.append(host)
                continue
            shift_j = edge_w * abs(device.energy_j or 0.0)
            domains.append(device._replace(uncertainty_j=math.hypot(device.uncertainty_j, shift_j)))
        return by_device._replace(domains=tuple(domains))

    def _run(self) -> None:
        while not self._stop.acquire(timeout=PASS_EVERY_S):
            if self._session.closed is not None:
                return
            self._each_pass()
            self.resolve()
            if self._no_more and not self._steps and not self._epochs:
                self._session.before_end.remove(self._complete)
                return

    def _complete(self) -> None:
        self.resolve(force=True)
        self.stop()

    def _settled_s(self) -> float:
        self._session.reader.refresh()
        return min((settled_s(c) for c in self._session.channels), default=math.inf)

    def _write(self, batch: list[PendingStep]) -> None:
        records = self._records(batch)
        self.steps.extend(records)
        self.resolved += len(records)
        if self.resolved > JOURNALED_STEPS_LIMIT:
            self._session.record(steps_event([merged(records)], counts=[len(records)]))
        else:
            self._session.record(steps_event(records))

    def _records(self, batch: list[PendingStep]) -> list[StepRecord]:
        on_device = [_stretch(s.begin, s.end, device=True) for s in batch]
        on_host = [_stretch(s.begin, s.end, device=False) for s in batch]
        counted = self._counted_names(batch)
        energies: list[dict[str, tuple[float, float]]] = [{} for _ in batch]
        for channel in self._session.channels:
            stretches = on_device if channel.domain.scope is Scope.GPU else on_host
            for energy, found in zip(energies, step_energies(channel, stretches), strict=True):
                if found is not None:
                    energy[channel.domain.name] = found
        times = on_device if self._gpu else on_host
        return [
            _record(step, stretch, energy, counted)
            for step, stretch, energy in zip(batch, times, energies, strict=True)
        ]

    def _counted_names(self, batch: list[PendingStep]) -> set[str]:
        """Domains whose sum counts no joule twice, as the windows see it."""
        if not self._counted:
            first, last = batch[0].begin, batch[-1].end
            window = self._session.between(first.host_s, last.host_s)
            self._counted = {d.name for d in window.counted}
        return self._counted


def _ready(end: Edge | None, ready_s: float, late_s: float) -> bool:
    if end is None or end.time_s is None:
        return False
    return max(end.time_s, end.host_s) <= ready_s or end.time_s < late_s


def _stretch(begin: Edge, end: Edge, *, device: bool) -> Stretch:
    if not device:
        return begin.host_s, end.host_s, 0.0
    begin_s = begin.host_s if begin.time_s is None else begin.time_s
    end_s = end.host_s if end.time_s is None else end.time_s
    return begin_s, end_s, max(begin.blur_s, end.blur_s)


def _record(
    step: PendingStep, stretch: Stretch, energy: dict[str, tuple[float, float]], counted: set[str]
) -> StepRecord:
    parts = [joules for name, joules in energy.items() if name in counted]
    metrics: dict[str, Any] = step.values
    return StepRecord(
        index=step.index,
        epoch=step.epoch,
        begin_s=stretch[0],
        end_s=stretch[1],
        energy=energy,
        energy_j=sum(j for j, _ in parts) if parts else None,
        uncertainty_j=math.sqrt(sum(u * u for _, u in parts)),
        metrics=metrics,
    )
