"""A trial, its outcome (status, energies, peak power), and the readings it is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattloop.control.lever import Setting
from wattloop.core.records import Provenance, Scope, from_plain, to_plain
from wattloop.core.results import WindowResult
from wattloop.core.settings import Settings
from wattloop.store.journal import Journal, read_journal
from wattloop.store.samples import Series, series_of, watts


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A command (or, for `TrialRunner.call`, a function) under given settings.

    Attributes:
        key: names it within its experiment; the same trial planned again has the same key, which
            is how a resumed experiment knows what it has paid for.
        timeout_s: after this long the program is ended; None waits for ever.
        facts: whatever else describes the trial (number of GPUs, repeat); written down with it.
        window: the part of the program that counts, as `wattloop.measure(window)` in it marks it;
            empty for all of it.
    """

    key: str
    settings: Mapping[str, Setting] = field(default_factory=dict)
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    window: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "levers": dict(self.settings),
            "command": list(self.command),
            "environment": dict(self.environment),
            "timeout_s": self.timeout_s,
            "window": self.window,
            **self.facts,
        }


Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
COUNTER_MEAN_S = 0.2
"""Power from a counter is a mean over at least this long: a counter that moves every 100 ms, read
every 100 ms, shows two steps in one reading now and then."""
UNITS = frozenset({"degC", "MHz", "fraction"})


class Readings:
    """Power by domain, and signals, within the time of a trial."""

    def __init__(self, power: Mapping[str, Curve], signals: Mapping[str, Curve]) -> None:
        self._power = power
        self._signals = signals

    def peaks_w(self, result: WindowResult) -> dict[str, float]:
        """Highest power of each scope: of the sum of its domains at one moment, not their sum."""
        peaks: dict[str, float] = {}
        for scope in (Scope.GPU, Scope.CPU, Scope.DRAM, Scope.NODE):
            names = [d.name for d in result.scope_domains(scope)]
            if names and all(name in self._power for name in names):
                peaks[scope.value] = _highest_sum([self._power[name] for name in names])
        return peaks

    def signals(self) -> dict[str, dict[str, float]]:
        return {
            name: {
                "first": float(values[0]),
                "mean": float(values.mean()),
                "highest": float(values.max()),
                "last": float(values[-1]),
            }
            for name, (_, values) in self._signals.items()
        }


def read_readings(journal: str | Path | None, begin_s: float, end_s: float) -> Readings:
    """Return a journal's readings between two moments; none when it is unreadable."""
    try:
        read = None if journal is None else read_journal(Path(journal))
    except (OSError, ValueError):
        read = None
    if read is None:
        return Readings({}, {})
    power: dict[str, Curve] = {}
    signals: dict[str, Curve] = {}
    for series in series_of(read.header["feeds"]):
        curve = _within(_curve(read, series), begin_s, end_s)
        if not len(curve[0]):
            continue
        if series.kind == "signal":
            if series.unit in UNITS:
                signals[series.name] = curve
        elif series.kind == "gauge" or series.name not in power:
            power[series.name] = curve  # a gauge says what a counter must be asked twice for
    return Readings(power, signals)


def _curve(journal: Journal, series: Series) -> Curve:
    times: list[float] = []
    values: list[float] = []
    for block in journal.blocks:
        if block.feed == series.feed and series.column < block.width:
            times.extend(block.times_s)
            values.extend(block.values[series.column :: block.width])
    if series.kind == "counter":
        times, values = _thinned(times, values)
        values = list(watts(times, values, counter=True, wrap_j=series.wrap_j))
    known = ~np.isnan(np.asarray(values, dtype=np.float64))
    return np.asarray(times)[known], np.asarray(values, dtype=np.float64)[known]


def _thinned(times_s: Sequence[float], raw: Sequence[float]) -> tuple[list[float], list[float]]:
    kept: list[int] = []
    for i, time_s in enumerate(times_s):
        if not kept or time_s >= times_s[kept[-1]] + COUNTER_MEAN_S:
            kept.append(i)
    return [times_s[i] for i in kept], [raw[i] for i in kept]


def _within(curve: Curve, begin_s: float, end_s: float) -> Curve:
    times_s, values = curve
    inside = (times_s >= begin_s) & (times_s <= end_s)
    return times_s[inside], values[inside]


def _highest_sum(curves: Sequence[Curve]) -> float:
    """Of values that are held until the next reading of the same domain."""
    moments_s = np.unique(np.concatenate([times_s for times_s, _ in curves]))
    total = np.zeros_like(moments_s)
    for times_s, values in curves:
        index = np.clip(np.searchsorted(times_s, moments_s, side="right") - 1, 0, None)
        total += values[index]
    return float(total.max())


SCOPES = ("gpu", "cpu", "dram", "node")
"""Parts of a machine whose energy a trial reports, each where it is known."""
DOMAIN_FACTS = (
    *("name", "scope", "energy_j", "uncertainty_j", "provenance", "source", "in_total"),
    *("tdp_w", "device", "covered"),
)


class TrialStatus(StrEnum):
    """Status of a trial."""

    OK = "ok"
    FAILED = "failed"
    """The program ended with an exit code other than 0, or the function raised."""
    TIMEOUT = "timeout"
    """It did not end in time and was ended."""
    KILLED = "killed"
    """A signal ended it that we did not send."""
    NOT_STARTED = "not_started"
    """The program could not be started."""
    NOT_SET = "not_set"
    """A lever refused its value; nothing was run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeEnergy:
    """Energy of one part of the machine over a trial.

    Attributes:
        uncertainty_j: half-width for this one trial, from its sensors.
        sources: where it was read, and for a model what it assumes.
        peak_w: highest reading; None where it cannot be told.
        modelled: whether this is the stated model over other parts, and not their readings.
    """

    energy_j: float
    uncertainty_j: float
    provenance: str
    sources: tuple[str, ...] = ()
    average_w: float | None = None
    peak_w: float | None = None
    modelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """Result of one trial.

    Attributes:
        status: how it ended; numbers of a trial that is not `ok` describe what ran until then.
        time_s: from start to end of the program, or of the window in it that counts.
        scopes: energy by scope (`gpu`, `cpu`, `dram`, `node`); scopes without a meter are absent.
        signals: first, mean, highest and last of temperatures (degC), clocks (MHz), utilisation.
        metrics: what a function returned, or a program reported.
    """

    status: TrialStatus
    time_s: float | None = None
    lasted_s: float | None = None
    scopes: Mapping[str, ScopeEnergy] = field(default_factory=dict)
    domains: tuple[Mapping[str, Any], ...] = ()
    signals: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    missing: tuple[Mapping[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    exit_code: int | None = None
    signal: int | None = None
    run_id: str | None = None
    message: str = ""
    started_wall_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.status is TrialStatus.OK

    def energy_j(self, scope: str) -> float | None:
        found = self.scopes.get(scope)
        return None if found is None else found.energy_j

    def temperature_c(self) -> float | None:
        values = [s["highest"] for n, s in self.signals.items() if n.endswith("/temperature")]
        return max(values) if values else None

    def to_dict(self) -> dict[str, Any]:
        return to_plain(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "TrialOutcome":
        return from_plain(cls, data)


def domain_energies(result: WindowResult) -> tuple[dict[str, Any], ...]:
    return tuple({key: d[key] for key in DOMAIN_FACTS} for d in result.to_dict()["domains"])


def scope_energies(
    result: WindowResult, settings: Settings, peaks_w: Mapping[str, float]
) -> dict[str, ScopeEnergy]:
    """Return energy by scope; `node` comes from a meter of the node, else from its model."""
    from wattloop.accounting.node import node_energy

    found: dict[str, ScopeEnergy] = {}
    for scope in (Scope.GPU, Scope.CPU, Scope.DRAM):
        parts = result.scope_domains(scope)
        if parts:
            found[scope.value] = ScopeEnergy(
                energy_j=sum(d.energy_j or 0.0 for d in parts),
                uncertainty_j=sum(d.uncertainty_j**2 for d in parts) ** 0.5,
                provenance=Provenance.weakest(d.provenance for d in parts).value,
                sources=tuple(dict.fromkeys(d.source for d in parts)),
            )
    node = node_energy(result, settings)
    if node.energy_j is not None and node.provenance is not None:
        found["node"] = ScopeEnergy(
            energy_j=node.energy_j,
            uncertainty_j=node.uncertainty_j,
            provenance=node.provenance.value,
            sources=node.assumptions,
            modelled=not any(d.scope is Scope.NODE for d in result.counted),
        )
    lasted_s = result.duration_s
    return {
        name: replace(
            scope,
            average_w=scope.energy_j / lasted_s if lasted_s > 0 else None,
            # the model is of energy over a run, not of a moment
            peak_w=None if scope.modelled else peaks_w.get(name),
        )
        for name, scope in found.items()
    }
