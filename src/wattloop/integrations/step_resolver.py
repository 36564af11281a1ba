"""Energy of finished steps and epochs, resolved outside the training loop."""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from wattloop.core.records import Provenance, Scope
from wattloop.core.results import WindowResult
from wattloop.integrations.records import EpochRecord, PendingStep, StepRecord
from wattloop.integrations.step_timeline import Edge
from wattloop.measure.energy_curve import EnergySpan
from wattloop.measure.meter_stream import DomainSource, FusedCurve
from wattloop.measure.session import Session
from wattloop.measure.window_energy import COVERAGE_FACTOR

# Steps and epochs as events of the journal.
#
#     {"type": "steps", "kind": "step", "index": [...], "epoch": [...], "begin_s": [...],
#      "end_s": [...], "domains": ["cpu:0/package", "gpu:0"], "energy_j": [[...], [...]],
#      "uncertainty_j": [[...], [...]], "loss": [...], "metrics": {"accuracy": [...]},
#      "count": [...]}
#
# One list per domain, in the order of `domains`, one entry per step; null is "not read". `loss`,
# `metrics` and `count` are there only when they say something: `count` tells how many steps an
# entry stands for, where a very long run writes several as one.


def steps_event(
    records: Sequence[StepRecord], counts: Sequence[int] | None = None
) -> dict[str, Any]:
    domains = list({name: None for record in records for name in record.energy})
    columns = [[record.energy.get(name) for record in records] for name in domains]
    names = list({name: None for record in records for name in record.metrics})
    metrics = {name: [_short(r.metrics.get(name)) for r in records] for name in names}
    event: dict[str, Any] = {
        "type": "steps",
        "kind": "step",
        "index": [record.index for record in records],
        "epoch": [record.epoch for record in records],
        "begin_s": [round(record.begin_s, 6) for record in records],
        "end_s": [round(record.end_s, 6) for record in records],
        "domains": domains,
        "energy_j": [[_short(v[0]) if v else None for v in column] for column in columns],
        "uncertainty_j": [[_short(v[1]) if v else None for v in column] for column in columns],
    }
    if "loss" in metrics:
        event["loss"] = metrics.pop("loss")
    if metrics:
        event["metrics"] = metrics
    if counts is not None:
        event["count"] = list(counts)
    return event


def epoch_event(epoch: EpochRecord) -> dict[str, Any]:
    result = epoch.result
    metrics = {**epoch.signals, **epoch.metrics, "steps": epoch.steps}
    return {
        "type": "step",
        "kind": epoch.kind,
        "index": epoch.index,
        "begin_s": result.begin_s,
        "end_s": result.end_s,
        "energy": {
            d.name: [d.energy_j, d.uncertainty_j] for d in result.domains if d.energy_j is not None
        },
        "metrics": {name: _short(value) for name, value in metrics.items()},
    }


def merged(records: Sequence[StepRecord]) -> StepRecord:
    first, last = records[0], records[-1]
    names = {name for record in records for name in record.energy}
    energy = {
        name: (
            sum(r.energy[name][0] for r in records if name in r.energy),
            math.sqrt(sum(r.energy[name][1] ** 2 for r in records if name in r.energy)),
        )
        for name in sorted(names)
    }
    totals = [r.energy_j for r in records if r.energy_j is not None]
    return StepRecord(
        index=last.index,
        epoch=last.epoch,
        begin_s=first.begin_s,
        end_s=last.end_s,
        energy=energy,
        energy_j=sum(totals) if totals else None,
        uncertainty_j=math.sqrt(sum(r.uncertainty_j**2 for r in records)),
        metrics=dict(last.metrics),
    )


def _short(value: float | None) -> float | None:
    """Seven digits are more than any sensor has; infinities and NaN are no JSON."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.7g}")


MIN_GROUP_S = 0.005
Stretch = tuple[float, float, float]
"""Begin, end, and half-width of both: a shift of the whole step."""
Joules = tuple[float, float]
"""Energy and its uncertainty."""


def step_energies(channel: DomainSource, stretches: Sequence[Stretch]) -> list[Joules | None]:
    """Energy of each stretch; the energies of adjoining ones add up to that of their union.

    A sensor tells nothing about times much shorter than its own period, so adjoining steps are
    looked up together until they span half of it, and share the energy in proportion to time.
    Each then has its share of the group's uncertainty, and what the power may have changed inside
    the group, judged by the neighbouring groups. This also bounds the cost of tiny steps.
    """
    groups = _groups(stretches, max(channel.track.period_s / 2, MIN_GROUP_S))
    spans = [_span(channel, stretches[a][0], stretches[b - 1][1]) for a, b in groups]
    powers_w = [
        span.energy_j / (stretches[b - 1][1] - stretches[a][0]) if span is not None else math.nan
        for span, (a, b) in zip(spans, groups, strict=True)
    ]
    energies: list[Joules | None] = []
    for number, ((a, b), span) in enumerate(zip(groups, spans, strict=True)):
        if span is None:
            energies.extend([None] * (b - a))
            continue
        near_w = [p for p in powers_w[max(0, number - 1) : number + 2] if not math.isnan(p)]
        swing_w = max(near_w) - min(near_w)
        for begin_s, end_s, blur_s in stretches[a:b]:
            length_s = end_s - begin_s
            share = length_s / (stretches[b - 1][1] - stretches[a][0])
            energy_j = powers_w[number] * length_s
            own_j = _uncertainty_j(channel, span, share, length_s)
            hidden_j = swing_w * (length_s * (1 - share) + blur_s)
            energies.append((energy_j, math.hypot(own_j, hidden_j)))
    return energies


def settled_s(channel: DomainSource) -> float:
    """Up to when the curve will not change any more; infinite for one that has no reading."""
    with channel.feed.lock:
        channel.feed.settle()
        track = channel.track
        if not isinstance(track, FusedCurve):
            return track.times_s[-1] if track.times_s else math.inf
        counter_s, gauge_s = track.counter.times_s, track.gauge.times_s
        if not counter_s or not gauge_s:
            return math.inf
        # Between its points the counter follows the gauge, which must have got as far.
        i = bisect_right(counter_s, gauge_s[-1])
        return counter_s[i - 1] if i else -math.inf


def _groups(stretches: Sequence[Stretch], at_least_s: float) -> list[tuple[int, int]]:
    groups: list[tuple[int, int]] = []
    first = 0
    for i in range(1, len(stretches) + 1):
        ended = i == len(stretches) or stretches[i][0] != stretches[i - 1][1]
        if ended or stretches[i - 1][1] - stretches[first][0] >= at_least_s:
            groups.append((first, i))
            first = i
    return groups


def _span(channel: DomainSource, begin_s: float, end_s: float) -> EnergySpan | None:
    """None where nothing was read: missing is not zero."""
    if end_s <= begin_s:
        return None
    span = channel.between(begin_s, end_s)
    if span is None or span.covered <= 0:
        return None
    return span if span.moved or channel.domain.inside is not None else None


def _uncertainty_j(
    channel: DomainSource, span: EnergySpan, share: float, duration_s: float
) -> float:
    domain = channel.domain
    uncertainty_j = COVERAGE_FACTOR * span.sigma_j * share
    if domain.provenance in (Provenance.MODELLED, Provenance.ESTIMATED):
        uncertainty_j += domain.known_error * abs(span.energy_j) * share
        uncertainty_j += domain.known_error_w * duration_s
    return uncertainty_j


# Finished steps and epochs turned into joules, away from the loop that trains.
#
# A pass once a second takes the steps whose edges are known and whose readings are in, and writes
# one compact event for all of them. What is not ready waits for the next pass.

PASS_EVERY_S = 1.0
PATIENCE_S = 15.0
"""Do not wait longer than this for a sensor without new readings."""
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
        self._steps.append(step)

    def add_epoch(self, epoch: EpochRecord) -> None:
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
        name = f"{epoch.kind} {epoch.index}"
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
