"""A run among the others that count devices of this machine, from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from wattloop.core.records import Domain
from wattloop.core.results import WindowResult
from wattloop.measure.followers import last_reading_s
from wattloop.measure.shared_node import (
    CountingRun,
    NodeRuns,
    SharedTime,
    device_key,
    machine_name,
    shared_time,
    store_key,
)
from wattloop.store.journal import Journal, journal_directory

if TYPE_CHECKING:
    from wattloop.measure.run_journal import RunJournal
    from wattloop.measure.session import Session

__all__ = ["Presence", "shared_in"]

EVENT = "neighbour"
"""Type of the events by which a journal without an end tells who else counted."""


class Presence:
    """Lists a run while it counts, and finds out with which others it shares its devices.

    Args:
        session: that measures the run.
        real: whether it reads the machine on the machine's own clock.
    """

    def __init__(self, session: Session, *, real: bool) -> None:
        self._session = session
        self._nodes = NodeRuns(machine_name(session.host), last_reading_s) if real else None
        self._listed = False
        self._written: dict[str, CountingRun] = {}

    def begin(self, from_s: float) -> None:
        """The run counts from `from_s` on."""
        session = self._session
        if self._nodes is None or not session.channels:
            return
        journal = journal_directory(session.settings.store_location) / f"{session.run_id}.journal"
        self._run = CountingRun(
            run_id=session.run_id,
            store=store_key(session.settings.store_location),
            from_s=from_s,
            devices=tuple(sorted({device_key(c.domain) for c in session.channels})),
            share=session.shares is not None,
            journal=str(journal.absolute()),
        )
        self._nodes.enter(self._run)
        self._listed = True

    def update(self, journal: RunJournal) -> None:
        """Look at the others; a run that does not count, or does so from now on, says so."""
        role = self._session.role
        if self._listed and not role.counts:
            self._leave(None)
        elif not self._listed and role.counts and journal.path is not None:
            self.begin(max(self._session.started_s, role.counts_from_s))
        if not self._listed or self._nodes is None:
            return
        for other in self._nodes.look(self._session.clock.now_s()):
            if other.meets(self._run.devices) and self._written.get(other.run_id) != other:
                self._written[other.run_id] = other
                now_s = self._session.clock.now_s()
                journal.add_event({"type": EVENT, "time_s": now_s, **other._asdict()})

    def end(self, result: WindowResult, end_s: float) -> SharedTime | None:
        """The run has ended; what it shared."""
        if not self._listed or self._nodes is None:
            return None
        others = self._nodes.look(end_s)
        run = self._run._replace(until_s=end_s)
        self._leave(end_s)
        domains = (channel.domain for channel in self._session.channels)
        return shared_time(run, others, result, _keys(domains), self._session.between)

    def _leave(self, until_s: float | None) -> None:
        if self._nodes is not None:
            self._nodes.leave(self._run.run_id, until_s)
        self._listed = False


def shared_in(
    journal: Journal,
    result: WindowResult,
    domains: Iterable[Domain],
    between: Callable[[float, float], WindowResult],
) -> SharedTime | None:
    """What a run shared that died before it could say so, from the events of its journal."""
    others: dict[str, CountingRun] = {}
    for event in journal.events:
        if isinstance(event, dict) and event.get("type") == EVENT:
            others[str(event["run_id"])] = _from_event(event)
    if not others:
        return None
    header = journal.header
    share = header.get("settings", {}).get("share") == "process"
    begin_s, end_s = result.begin_s, result.end_s
    run = CountingRun(header["run_id"], "", begin_s, (), until_s=end_s, share=share)
    return shared_time(run, others.values(), result, _keys(domains), between)


def _from_event(event: Mapping[str, Any]) -> CountingRun:
    known = {name: event[name] for name in CountingRun._fields if name in event}
    return CountingRun(**{**known, "devices": tuple(known["devices"])})


def _keys(domains: Iterable[Domain]) -> dict[str, str]:
    return {domain.name: device_key(domain) for domain in domains}
