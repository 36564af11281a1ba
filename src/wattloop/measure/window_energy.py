"""Windows: the beginning and end of a region, and its energy."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping, Sequence
from typing import Protocol

from wattloop.core.records import Provenance, Scope
from wattloop.core.results import (
    DomainEnergy,
    EnergyProperties,
    Missing,
    WindowResult,
    non_overlapping,
)
from wattloop.core.units import format_duration
from wattloop.measure.energy_curve import CounterCurve, EnergySpan, GaugeCurve
from wattloop.measure.meter_stream import DomainSource, FusedCurve

COVERAGE_FACTOR = 2.0


"""Stated uncertainties are two standard deviations: about 95%."""


TOO_SHORT_PERIODS = 10


STUCK_PERIODS = 20


STUCK_AFTER_S = 0.5


WHOLE = 0.999


def window_energy(
    channels: Sequence[DomainSource],
    missing: Sequence[Missing],
    *,
    name: str,
    window_id: int,
    parent_id: int | None,
    begin_s: float,
    end_s: float,
    warnings: Sequence[str] = (),
) -> WindowResult:
    """Compute the energy of every source between two instants, missing parts and warnings."""
    energies: list[DomainEnergy] = []
    absent = list(missing)
    notes = list(warnings)
    for channel in channels:
        span = channel.between(begin_s, end_s)
        if channel.domain.name == "psys" and (span is None or not span.moved):
            continue  # not part of any total, and many machines only pretend to have it
        reason = _reason_missing(channel, span, begin_s, end_s)
        if reason is not None:
            absent.append(Missing(channel.domain.name, reason))
        if span is None or (reason is not None and span.covered <= 0) or _stuck(channel, span):
            energies.append(_energy(channel, None, end_s - begin_s))
            continue
        energies.append(_energy(channel, span, end_s - begin_s))
    short = _too_short(channels, end_s - begin_s)
    if short is not None:
        notes.append(short)
    return WindowResult(
        name=name,
        window_id=window_id,
        parent_id=parent_id,
        begin_s=begin_s,
        end_s=end_s,
        domains=_with_totals(channels, energies),
        missing=tuple(absent),
        warnings=tuple(notes),
    )


def _energy(channel: DomainSource, span: EnergySpan | None, duration_s: float) -> DomainEnergy:
    domain = channel.domain
    uncertainty_j = 0.0
    if span is not None:
        uncertainty_j = COVERAGE_FACTOR * span.sigma_j
        if domain.provenance in (Provenance.MODELLED, Provenance.ESTIMATED):
            uncertainty_j += domain.known_error * abs(span.energy_j)
            uncertainty_j += domain.known_error_w * duration_s
    return DomainEnergy(
        name=domain.name,
        scope=domain.scope,
        energy_j=None if span is None else span.energy_j,
        uncertainty_j=uncertainty_j,
        provenance=domain.provenance,
        source=domain.source,
        covered=0.0 if span is None else span.covered,
        known_error=domain.known_error,
        tdp_w=domain.tdp_w,
        tdp_note=domain.tdp_note,
        device=domain.device,
        host_share=domain.host_share,
        known_error_w=domain.known_error_w,
    )


def _with_totals(
    channels: Sequence[DomainSource], energies: Sequence[DomainEnergy]
) -> tuple[DomainEnergy, ...]:
    """Mark the domains whose sum counts no joule twice."""
    read = {e.name for e in energies if e.energy_j is not None}
    inside = {c.domain.name: c.domain.inside for c in channels if c.domain.name in read}
    counted = _whole_node(channels, inside) or non_overlapping(inside.items())
    return tuple(_replaced(e, e.name in counted) for e in energies)


def _whole_node(channels: Sequence[DomainSource], inside: Mapping[str, str | None]) -> set[str]:
    """Return the domains that cover the whole node, and with it everything else: one family of
    them, best first.

    `psys` is not among them: makers disagree on what it covers.
    """
    families: dict[str, set[str]] = {}
    for channel in channels:
        name = channel.domain.name
        if channel.domain.scope is Scope.NODE and name in inside and name != "psys":
            families.setdefault(name.partition(":")[0], set()).add(name)
    for family in ("node", *families):
        if family in families:
            return non_overlapping((n, inside[n]) for n in families[family])
    return set()


def _replaced(energy: DomainEnergy, in_total: bool) -> DomainEnergy:
    if in_total == energy.in_total:
        return energy
    return energy._replace(in_total=in_total)


def _reason_missing(
    channel: DomainSource, span: EnergySpan | None, begin_s: float, end_s: float
) -> str | None:
    track = channel.track
    why = track.lost or track.last_gap
    if span is None:
        return why[1] if why is not None else "no reading was taken"
    duration_s = end_s - begin_s
    if _stuck(channel, span):
        if why is not None:
            return why[1]
        if duration_s >= max(STUCK_AFTER_S, STUCK_PERIODS * track.period_s):
            return f"the counter did not move in {format_duration(duration_s)}"
    if span.covered < WHOLE and duration_s > 0:
        unread_s = (1 - span.covered) * duration_s
        reason = why[1] if why is not None else "readings failed"
        return (
            f"not read for {format_duration(unread_s)} of {format_duration(duration_s)}: {reason}"
        )
    return None if isinstance(track, GaugeCurve) else unseen_wraps_reason(track, begin_s, end_s)


def unseen_wraps_reason(
    track: CounterCurve | FusedCurve, begin_s: float, end_s: float
) -> str | None:
    """Return why a counter alone does not give the energy of a time; None if it does."""
    unread_s, wraps = track.unseen_wraps(begin_s, end_s)
    if not wraps:
        return None
    return (
        f"not read for {format_duration(unread_s)}, in which the counter can wrap unseen "
        f"({'once' if wraps == 1 else f'up to {wraps} times'}); "
        "the energy of that time is modelled from the power before it, see the uncertainty"
    )


def _stuck(channel: DomainSource, span: EnergySpan) -> bool:
    """Return True for a counter of a whole device that never changed: it is broken, not zero.

    Parts inside a device (cores, an idle graphics unit) may truly use too little to count.
    """
    return not span.moved and channel.domain.inside is None


def _too_short(channels: Sequence[DomainSource], duration_s: float) -> str | None:
    slowest: DomainSource | None = None
    for channel in channels:
        if duration_s < TOO_SHORT_PERIODS * channel.track.period_s and (
            slowest is None or channel.track.period_s > slowest.track.period_s
        ):
            slowest = channel
    if slowest is None:
        return None
    return (
        f"window of {format_duration(max(duration_s, 1e-9))} is short for {slowest.domain.name}, "
        f"which changes every {format_duration(slowest.track.period_s)}; see its uncertainty"
    )


_current: contextvars.ContextVar[Window | None] = contextvars.ContextVar(
    "wattloop_window", default=None
)


def current_window() -> Window | None:
    """Return the innermost `with` window of this thread or task."""
    return _current.get()


class WindowKeeper(Protocol):
    """Interface of the session that a window belongs to."""

    def window_ended(self, window: Window) -> None:
        """Take the readings that end the window."""
        ...

    def resolve(self, window: Window) -> WindowResult:
        """Compute the energy of the window from the readings so far."""
        ...

    def settled(self, end_s: float) -> bool:
        """Return True if later readings cannot improve a window that ended at `end_s`."""
        ...


class Window(EnergyProperties):
    """A measured region. Windows may nest, overlap, and live in any thread or task.

    Beginning and ending only take readings and times; energy is computed on request,
    or in the background, so a window costs microseconds.
    """

    __slots__ = (
        "_keeper",
        "_result",
        "_token",
        "begin_s",
        "end_s",
        "name",
        "parent_id",
        "window_id",
    )

    def __init__(
        self,
        keeper: WindowKeeper,
        window_id: int,
        name: str,
        parent_id: int | None,
        begin_s: float,
    ) -> None:
        self._keeper = keeper
        self._result: WindowResult | None = None
        self._token: contextvars.Token[Window | None] | None = None
        self.window_id = window_id
        self.name = name
        self.parent_id = parent_id
        self.begin_s = begin_s
        self.end_s: float | None = None

    def end(self) -> Window:
        """End the window. Ending it twice changes nothing."""
        if self.end_s is None:
            self._keeper.window_ended(self)
        return self

    @property
    def result(self) -> WindowResult:
        if self._result is not None:
            return self._result
        result = self._keeper.resolve(self)
        if self.end_s is not None and self._keeper.settled(self.end_s):
            self._result = result
        return result

    def __enter__(self) -> Window:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        self.end()

    def leave(self) -> None:
        """Stop being the innermost window of this thread or task."""
        if self._token is not None:
            try:
                _current.reset(self._token)
            except ValueError:  # ended in another thread or task than it began
                _current.set(None)
            self._token = None

    def __repr__(self) -> str:
        state = "open" if self.end_s is None else f"{self.end_s - self.begin_s:.6g} s"
        return f"<Window {self.window_id} {self.name!r} {state}>"
