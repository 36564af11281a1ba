"""The run of one job on this node: its domains and journal, from prolog to epilog."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from wattloop.core.clock import Clock
from wattloop.core.records import Domain, DomainKind, Gap, Provenance, Signal
from wattloop.core.results import Missing, WindowResult
from wattloop.fleet.agent.attribution import Account, NodeLayout
from wattloop.measure.domain_source import domain_sources
from wattloop.measure.meter_stream import MeterStream
from wattloop.measure.run_journal import RunJournal
from wattloop.measure.windows import window_energy
from wattloop.meters.base import Meter, Reading
from wattloop.store.journal import JournalWriter, SampleBlock, read_journal

ROWS = 2_000


"""Enough for totals, holes and edges; a week has 600,000."""


Row = tuple[float, Sequence[float]]


def chosen_rows(blocks: Sequence[SampleBlock]) -> list[Row]:
    """Select rows of a journal: first, last, around a restart, and every n-th."""
    rows: list[Row] = []
    for block in blocks:
        if block.feed == 0:
            width = block.width
            rows += [
                (time_s, block.values[i * width : (i + 1) * width])
                for i, time_s in enumerate(block.times_s)
            ]
    stride = max(1, len(rows) // ROWS)
    chosen: list[Row] = []
    for i, row in enumerate(rows):
        edge = i in (0, len(rows) - 1) or _anew(row, rows[i + 1]) or _anew(rows[i - 1], row)
        if edge or i % stride == 0:
            chosen.append(row)
    return chosen


def _anew(earlier: Row, later: Row) -> bool:
    return any(
        b < a or math.isnan(b) != math.isnan(a) for a, b in zip(earlier[1], later[1], strict=False)
    )


EXACT_S = 1e-6


"""Rows of a share are computed for an instant: they have no age, unlike a sensor's readings."""


def share_domain(
    layout: NodeLayout, domain: Domain, *, cpus: int, whole: bool, limit_w: float | None
) -> Domain:
    """Return a domain of the node as a job has it.

    Args:
        layout: the node's.
        domain: of the node.
        cpus: CPUs of the job.
        whole: the job has the node to itself.
        limit_w: power limit in force now, of a GPU that has one.
    """
    if not layout.is_shared(domain.name) or whole:
        return _share(domain, f"{domain.source}, all of it the job's", **_limits(domain, limit_w))
    tdp_w = None if domain.tdp_w is None else domain.tdp_w * cpus / max(cpus, layout.cpus)
    return _share(
        domain,
        f"{domain.source}; the job's share: power above idle by CPU time, idle power by "
        f"{cpus} of {layout.cpus} CPUs",
        provenance=Provenance.weakest((Provenance.MODELLED, domain.provenance)),
        tdp_w=tdp_w or None,
        tdp_note="" if tdp_w is None else f"TDP, for {cpus} of {layout.cpus} CPUs",
    )


def unattributed_domain(layout: NodeLayout, domain: Domain) -> Domain:
    """Return a domain of the node for energy that no job used."""
    provenance = domain.provenance
    if layout.is_shared(domain.name) or layout.is_node(domain.name):
        provenance = Provenance.weakest((Provenance.MODELLED, provenance))
    source = f"{domain.source}; what no job used"
    return _share(domain, source, provenance=provenance, tdp_w=None, tdp_note="")


def _limits(domain: Domain, limit_w: float | None) -> dict[str, object]:
    """Return the present limit, which may be a cap set for this job."""
    if limit_w is None or domain.tdp_w is None or abs(limit_w - domain.tdp_w) < 0.5:
        return {}
    default_w = max(limit_w, domain.tdp_w)
    note = f"enforced power limit {limit_w:g} W of {default_w:g} W default"
    return {"tdp_w": limit_w, "tdp_note": note if limit_w < default_w else ""}


def _share(domain: Domain, source: str, **changes: object) -> Domain:
    kept = domain._replace(
        kind=DomainKind.COUNTER,
        source=source,
        update_period_s=EXACT_S,
        averaging_s=0.0,
        wrap_j=None,
        read_cost_s=0.0,
        resolution=domain.resolution if domain.kind is DomainKind.COUNTER else 0.0,
    )
    return kept._replace(**changes)  # type: ignore[arg-type]  # names and types are Domain's own


class ShareMeter(Meter):
    """A meter whose readings the agent computes and passes to its feed."""

    name: ClassVar[str] = "agent"

    def __init__(self, domains: Sequence[Domain], signals: Mapping[str, str]) -> None:
        self._domains = tuple(domains)
        self._signals = tuple(Signal(name, unit) for name, unit in signals.items())

    @property
    def domains(self) -> tuple[Domain, ...]:
        return self._domains

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Return the signals of the run's GPUs."""
        return self._signals

    def read(self) -> Sequence[Reading]:
        return [Gap("computed by the agent")] * len(self._domains)


NOTES_LIMIT = 20


@dataclass(slots=True)
class RunPlan:
    """Identity of a run; a restarted agent resumes from it.

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
        if text not in self.notes and len(self.notes) < NOTES_LIMIT:
            self.notes.append(text)


class JobRun:
    """A run that is being written.

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
        """Update the domains: a cap may have been set since the run began."""
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
        """Resume the journal of an earlier process; False when it is missing or unreadable."""
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
        """Return the energy at which each counter was last restarted."""
        return dict(self._zero_j)

    def first_row(self, account: Account) -> None:
        """Write the first row: nothing, or what an earlier part of the run left."""
        self._take(self.plan.started_s, account, {})

    def row(self, time_s: float, account: Account, gaps: Mapping[str, str]) -> None:
        """Write the energy of the run up to an instant; `gaps` are unknown domains."""
        if time_s > self._last_row_s:
            self._take(time_s, account, gaps)

    def restart_counter(self, name: str, energy_j: float) -> None:
        """Start a domain's counter from zero again after a gap of unknown energy."""
        if name in self._zero_j:
            self._zero_j[name] = energy_j
            self._shown_j.pop(name, None)

    def signals_row(self, time_s: float, values: Mapping[str, float]) -> None:
        if self.feed.signals:
            row = [values.get(signal.name, math.nan) for signal in self.feed.signals]
            with self.feed.lock:
                self.feed.arrive_signals(time_s, row)

    def has(self, name: str) -> bool:
        """Return True for a domain of the run."""
        return name in self._zero_j

    def event(self, event: dict[str, Any]) -> None:
        """Record an event: a cap, a note."""
        self._journal.add_event(event)

    def flush(self, now_s: float) -> None:
        """Write everything to the journal; without one, it waits."""
        if self.path is not None:
            self._journal.write([self.feed], now_s, lambda _: True)
            self.feed.thin_before(now_s)

    def result(
        self, end_s: float, account: Account, uncertainty_j: Mapping[str, float]
    ) -> WindowResult:
        """Return the energy of the run by its account."""
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
        """Write the end and release the journal; return the error, if any."""
        self.flush(now_s)
        return self._journal.end(end)

    def let_go(self, now_s: float) -> None:
        """Release the journal: the job continues, and the next agent resumes the journal."""
        self.flush(now_s)
        self._journal.release()

    def abandon(self) -> None:
        """Drop the journal as it is, in a process that must not write any more."""
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
