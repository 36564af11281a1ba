"""Highest power and the course of temperatures and clocks, from the readings of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattloop.core.records import Scope
from wattloop.core.results import WindowResult
from wattloop.store.downsampling import watts
from wattloop.store.journal import Journal, read_journal
from wattloop.store.samples import Series, series_of

__all__ = ["Readings", "readings_of"]

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
        """First, mean, highest and last value of each signal."""
        return {
            name: {
                "first": float(values[0]),
                "mean": float(values.mean()),
                "highest": float(values.max()),
                "last": float(values[-1]),
            }
            for name, (_, values) in self._signals.items()
        }


def readings_of(journal: str | Path | None, begin_s: float, end_s: float) -> Readings:
    """What a run's journal holds between two moments; nothing when it cannot be read."""
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
