"""One run of one job on this node: its journal, from the prolog to the epilog."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattloop.core.clock import Clock
from wattloop.core.records import Domain, Gap
from wattloop.core.results import Missing, WindowResult
from wattloop.fleet.agent.earlier_rows import chosen_rows
from wattloop.fleet.agent.ledger import Account
from wattloop.fleet.agent.share_domains import ShareMeter
from wattloop.measure.domain_source import domain_sources
from wattloop.measure.meter_stream import MeterStream
from wattloop.measure.run_journal import RunJournal
from wattloop.measure.windows import window_energy
from wattloop.store.journal import JournalWriter, read_journal

__all__ = ["JobRun", "RunPlan"]

NOTES_LIMIT = 20


@dataclass(slots=True)
class RunPlan:
    """Who a run is; what a restarted agent needs to go on with it.

    Attributes:
        run_id: of the run.
        event: name of the event that began it; empty for what no job used.
        job, uid, user: whose it is.
        gpus: domains of its GPUs.
        cpus: CPUs allocated to it.
        whole: it has the node to itself.
        started_s, started_wall_s: when it began, on the machine's clocks.
        facts: what Slurm said of it.
        ended_s: when its end was heard of.
        exit_code: how it ended, where that is known.
        notes: what a reader of the run should know.
        asked: whether Slurm's controller was asked, with or without success.
        died: it ended without anybody hearing of it.
        free_s: seconds of the node that no job had, for what no job used.
        modelled: domains whose energy is partly modelled, and why.
    """

    run_id: str
    event: str = ""
    job: str = ""
    uid: int = -1
    user: str = ""
    gpus: tuple[str, ...] = ()
    cpus: int = 0
    whole: bool = False
    started_s: float = 0.0
    started_wall_s: float = 0.0
    facts: dict[str, str] = field(default_factory=dict)
    ended_s: float | None = None
    exit_code: int | None = None
    notes: list[str] = field(default_factory=list)
    asked: bool = False
    died: bool = False
    free_s: float = 0.0
    modelled: dict[str, str] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes and len(self.notes) < NOTES_LIMIT:
            self.notes.append(text)


class JobRun:
    """A run being written.

    Args:
        plan: who it is.
        domains: its domains.
        signals: its signals, name -> unit.
        missing: parts of the node that would be its own but cannot be read.
    """

    def __init__(
        self,
        plan: RunPlan,
        domains: Sequence[Domain],
        signals: Mapping[str, str],
        missing: Sequence[Missing],
        clock: Clock,
    ) -> None:
        self.plan = plan
        self.missing = list(missing)
        self.feed = MeterStream(ShareMeter(domains, signals), clock, 0)
        self._journal = RunJournal(synced=True)
        self._zero_j = {domain.name: 0.0 for domain in domains}
        self._shown_j: dict[str, float] = {}
        self._last_row_s = -math.inf
        self.path: Path | None = None

    def describe(self, domains: Sequence[Domain]) -> None:
        """What is known of the same domains by now: a cap may have been set since it began."""
        self.feed.meter = ShareMeter(domains, {s.name: s.unit for s in self.feed.signals})
        self.feed.domains = self.feed.meter.domains

    def begin(self, path: Path, header: dict[str, Any], now_s: float) -> None:
        """Create the journal.

        Raises:
            OSError: it cannot be written.
        """
        self._journal.begin(path, header, now_s)
        self.path = path

    def go_on(self, path: Path, offsets_j: Mapping[str, float]) -> bool:
        """Take up the journal of an earlier process; False when it is gone or unreadable."""
        writer = JournalWriter.reopened(path)
        journal = None if writer is None else read_journal(path)
        if writer is None or journal is None:
            return False
        self._journal.take_over(writer)
        self.path = path
        self._zero_j.update({n: j for n, j in offsets_j.items() if n in self._zero_j})
        for time_s, values in chosen_rows(journal.blocks):
            if len(values) != len(self.feed.domains):
                return True  # of another layout: its rows are in the file all the same
            self.feed.take(time_s, [Gap("not read") if math.isnan(v) else v for v in values])
            self._last_row_s = time_s
            for domain, value in zip(self.feed.domains, values, strict=True):
                if not math.isnan(value):
                    self._shown_j[domain.name] = value
        self.feed.drained()
        return True

    @property
    def offsets_j(self) -> dict[str, float]:
        """What each counter began anew from."""
        return dict(self._zero_j)

    def first_row(self, account: Account) -> None:
        """The run begins with what it had then: nothing, or what an earlier run of it left."""
        self._take(self.plan.started_s, account, {})

    def row(self, time_s: float, account: Account, gaps: Mapping[str, str]) -> None:
        """What the run has used up to an instant; `gaps` are domains that are not known."""
        if time_s > self._last_row_s:
            self._take(time_s, account, gaps)

    def begin_anew(self, name: str, energy_j: float) -> None:
        """Nobody knows what a domain used for a while: its counter starts from zero again."""
        if name in self._zero_j:
            self._zero_j[name] = energy_j
            self._shown_j.pop(name, None)

    def signals_row(self, time_s: float, values: Mapping[str, float]) -> None:
        """Signals as last read."""
        if self.feed.signals:
            row = [values.get(signal.name, math.nan) for signal in self.feed.signals]
            with self.feed.lock:
                self.feed.arrive_signals(time_s, row)

    def has(self, name: str) -> bool:
        """Whether a domain is among its own."""
        return name in self._zero_j

    def event(self, event: dict[str, Any]) -> None:
        """Something happened: a cap, a note."""
        self._journal.add_event(event)

    def flush(self, now_s: float) -> None:
        """Everything so far goes to the journal; without one, it waits."""
        if self.path is not None:
            self._journal.write([self.feed], now_s, lambda _: True)
            self.feed.thin_before(now_s)

    def result(
        self, end_s: float, account: Account, uncertainty_j: Mapping[str, float]
    ) -> WindowResult:
        """Energy of the run by what its account says."""
        modelled = [Missing(n, why) for n, why in self.plan.modelled.items() if self.has(n)]
        found = window_energy(
            domain_sources([self.feed]),
            [*self.missing, *modelled],
            name=self.plan.facts.get("name") or self.plan.job or "unallocated",
            window_id=0,
            parent_id=None,
            begin_s=self.plan.started_s,
            end_s=end_s,
            warnings=self.plan.notes + self._journal.warnings(),
        )
        # A share that is zero is known to be zero, unlike a sensor that does not move.
        still = {e.name for e in found.domains if e.energy_j is None and e.name in account.energy_j}
        domains = tuple(
            e._replace(
                energy_j=0.0 if e.name in still else e.energy_j,
                covered=1.0 if e.name in still else e.covered,
                uncertainty_j=e.uncertainty_j + uncertainty_j.get(e.name, 0.0),
            )
            for e in found.domains
        )
        missing = tuple(m for m in found.missing if m.name not in still)
        return found._replace(domains=domains, missing=missing)

    def end(self, now_s: float, end: dict[str, Any]) -> str | None:
        """Write the end and let go of the journal; what went wrong, if anything."""
        self.flush(now_s)
        return self._journal.end(end)

    def let_go(self, now_s: float) -> None:
        """The agent ends and the job goes on: whoever comes next takes the journal up."""
        self.flush(now_s)
        self._journal.release()

    def abandon(self) -> None:
        """Drop the journal as it is, in a process that shall not write any more."""
        self._journal.abandon()

    def _take(self, time_s: float, account: Account, gaps: Mapping[str, str]) -> None:
        values: list[float | Gap] = []
        for domain in self.feed.domains:
            name = domain.name
            if name in gaps:
                values.append(Gap(gaps[name]))
                continue
            joules = account.energy_j.get(name, 0.0) - self._zero_j[name]
            # A node's rest may shrink when its parts are known better; a counter never does.
            joules = max(joules, self._shown_j.get(name, joules))
            self._shown_j[name] = joules
            values.append(joules)
        self.feed.take(time_s, values)
        self._last_row_s = time_s
