"""What rules may look at, read from a stored run once."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from wattloop.advise.gpu_facts import GpuFacts, gpu_facts
from wattloop.advise.idle_node import IdleNode, idle_node
from wattloop.advise.precision import Precision, recorded_precision
from wattloop.advise.trace import Stretch, Trace
from wattloop.advise.tried import TriedCap, tried_caps
from wattloop.core.records import Scope
from wattloop.core.results import RunStatus
from wattloop.core.settings import Settings
from wattloop.store.database import Store
from wattloop.store.details import read_events, read_steps
from wattloop.store.runs import RunRecord, child_runs
from wattloop.store.samples import Series, power_series, read_curve, series_of

__all__ = ["RunFacts", "read_facts"]

POINTS = 3_600
"""Readings per curve: an hour at one a second; longer runs are looked at in wider bins."""
SIGNALS = ("utilisation", "memory_utilisation", "sm_clock", "memory_used", "power_limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """One run.

    Attributes:
        record: what is stored of it.
        energy_j, duration_s: of the run; both above 0.
        gpus: those whose power and limit are known.
        settings: of whoever asks: where the carbon series is.
        steps: training steps, also of programs that measured themselves within this run.
        precision: of the arithmetic, if somebody recorded it.
        tried: caps that sweeps and cap searches of the same command found best.
        node: what the machine did after the run.
    """

    record: RunRecord
    energy_j: float
    duration_s: float
    gpus: tuple[GpuFacts, ...] = ()
    settings: Settings = field(default_factory=Settings)
    steps: tuple[Mapping[str, Any], ...] = ()
    precision: Precision | None = None
    tried: tuple[TriedCap, ...] = ()
    node: IdleNode | None = None

    @property
    def whole(self) -> Stretch:
        """From begin to end."""
        return Stretch(0.0, self.duration_s)

    @property
    def working(self) -> Stretch | None:
        """From the first to the last work of any GPU; None when none had any."""
        busy = [stretch for gpu in self.gpus for stretch in gpu.busy_stretches]
        if not busy:
            return None
        return Stretch(min(s.begin_s for s in busy), max(s.end_s for s in busy))

    @property
    def used_gpus(self) -> tuple[GpuFacts, ...]:
        """The GPUs that had work for a good part of the working time."""
        span = self.working
        if span is None:
            return ()
        most = max(gpu.busy_share(span) for gpu in self.gpus)
        return tuple(g for g in self.gpus if g.busy_share(span) >= 0.3 * most)

    @property
    def command(self) -> list[str]:
        """What was run; empty for a program that measured itself."""
        return list(self.record.command or ())


def read_facts(
    store: Store, record: RunRecord, settings: Settings | None = None
) -> RunFacts | None:
    """The facts of a run; None when it goes on, or nothing was measured.

    Args:
        store: where its samples are, and other runs, sweeps and searches.
        record: the run.
        settings: of whoever asks; those that the run was measured with unless given.
    """
    result = record.result
    if record.status is RunStatus.RUNNING or result is None or not record.counted:
        return None
    energy_j, duration_s = result.energy_j, result.duration_s
    if not energy_j or duration_s <= 0 or not math.isfinite(energy_j):
        return None
    runs = [record.run_id, *(child.run_id for child in child_runs(store, record.run_id))]
    events = [event for run_id in runs for event in read_events(store, run_id)]
    return RunFacts(
        record=record,
        energy_j=energy_j,
        duration_s=duration_s,
        gpus=_gpus(store, record),
        settings=_settings(record) if settings is None else settings,
        steps=tuple(step for run_id in runs for step in read_steps(store, run_id)),
        precision=recorded_precision(record, events),
        tried=tried_caps(store, record),
        node=idle_node(store, record),
    )


def _gpus(store: Store, record: RunRecord) -> tuple[GpuFacts, ...]:
    assert record.result is not None
    curves = _Curves(store, record)
    application = (record.accounting or {}).get("application") or {}
    lines = {d["name"]: d for d in application.get("domains") or ()}
    found = []
    for domain in record.result.scope_domains(Scope.GPU):
        power = curves.power(domain.name)
        if power is None:
            continue
        signals = _Signals(curves, domain.name)
        gpu = gpu_facts(domain, power, signals, record.result.duration_s, lines.get(domain.name))
        if gpu is not None:
            found.append(gpu)
    return tuple(found)


class _Signals(Mapping[str, Trace]):
    """Signals of one device, each read when somebody asks: a node may have dozens."""

    def __init__(self, curves: "_Curves", device: str) -> None:
        self._curves, self._device = curves, device
        self._read: dict[str, Trace | None] = {}

    def __getitem__(self, name: str) -> Trace:
        if name not in self._read:
            self._read[name] = self._curves.signal(f"{self._device}/{name}")
        trace = self._read[name]
        if trace is None:
            raise KeyError(name)
        return trace

    def __iter__(self) -> Iterator[str]:
        return (name for name in SIGNALS if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Curves:
    """Curves of one run, by name."""

    def __init__(self, store: Store, record: RunRecord) -> None:
        self._store, self._record = store, record
        self._series: dict[str, list[Series]] = {}
        for series in series_of(record.feeds):
            self._series.setdefault(series.name, []).append(series)

    def power(self, name: str) -> Trace | None:
        """From the gauge where there is one: a counter's steps blur short changes."""
        series = power_series(self._record.feeds).get(name)
        return None if series is None else self._read(series)

    def signal(self, name: str) -> Trace | None:
        known = [s for s in self._series.get(name, ()) if s.kind == "signal"]
        return self._read(known[0]) if known else None

    def _read(self, series: Series) -> Trace | None:
        record = self._record
        curve = read_curve(self._store, record.run_id, series, POINTS)
        trace = Trace.of(curve.times_s, curve.mean, record.started_s)
        return trace if trace.values else None


def _settings(record: RunRecord) -> Settings:
    """Those of the run that advice needs; what an older version stored is taken as it is."""
    file, zone = (str(record.settings.get(name) or "") for name in ("carbon_file", "zone"))
    return Settings(carbon_file=file, zone=zone)
