"""Attribute the energy of a node to its jobs, so that the shares add up at any moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wattloop.accounting.device_shares import (
    IDLE_OF_LIMIT,
    IDLE_SPREAD,
    SETTLE_MOST_S,
    RunningDivision,
    SharePart,
    UseInterval,
)
from wattloop.core.records import Domain, Scope
from wattloop.core.results import non_overlapping
from wattloop.measure.process_share import known_idle_w

# The energy of a node over one interval, in which no job starts or ends, is split among its jobs.
# With E the energy of a CPU package (or of DRAM), P_idle its power with nothing to do, T the length
# of the interval, c_j of C CPUs allocated to job j, t_j of the node's busy CPU time b used by it:
#
#     E_static  = min(E, P_idle T)          E_j = E_static c_j / C + (E - E_static) t_j / b
#
# A GPU belongs to the job that has it. Jobs that share one have parts of each interval by the
# utilisation of their processes and what it costs (`RunningDivision`). A job that has all CPUs and
# no neighbour gets all of it. The rest is recorded as unattributed, so that the parts add up to the
# node.

UNATTRIBUTED = ""
"""The share that no job used."""
SHARED = frozenset({Scope.CPU, Scope.DRAM})


class Occupant(NamedTuple):
    """A job on the node during an interval.

    Attributes:
        whole: it has the node to itself.
        cpu_s: CPU time that it used; None where that cannot be read.
        gpu_parts: GPU -> part of it that is the job's, by slices of MIG; all of it where not named.
        gpu_use: GPU -> part of the time in which the job's processes used it, where that is known.
    """

    run: str
    gpus: frozenset[str] = frozenset()
    cpus: float = 0
    whole: bool = False
    cpu_s: float | None = None
    gpu_parts: Mapping[str, float] = {}
    gpu_use: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class SharedInterval:
    """An interval in which no job started or ended.

    Attributes:
        busy_s: CPU time of everything on the node; None where that cannot be read.
        others_use: GPU that MIG splits -> use of its instances that no job has.
    """

    begin_s: float
    end_s: float
    occupants: tuple[Occupant, ...] = ()
    busy_s: float | None = None
    others_use: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """The node's domains, and its number of CPUs."""

    domains: Mapping[str, Domain]
    cpus: int
    counted: frozenset[str] = field(init=False)
    """Parts that may be added without counting a joule twice; none of them is the whole node."""

    def __post_init__(self) -> None:
        parts = ((d.name, d.inside) for d in self.domains.values() if d.scope is not Scope.NODE)
        object.__setattr__(self, "counted", frozenset(non_overlapping(parts)))

    def is_shared(self, name: str) -> bool:
        """Return True when a domain is split by CPUs and CPU time."""
        return self.domains[name].scope in SHARED or name == "psys"

    def is_node(self, name: str) -> bool:
        return self.domains[name].scope is Scope.NODE and name != "psys"

    def of_job(self, gpus: frozenset[str], whole: bool) -> list[str]:
        if whole:
            return list(self.domains)
        return [name for name in self.domains if name in gpus or self.is_shared(name)]


class EnergyShare(NamedTuple):
    """One run's share of one domain; for shared domains also by each rule alone."""

    energy_j: float
    by_cpus_j: float
    by_time_j: float


Divide = Callable[[str, UseInterval], Mapping[Hashable, SharePart] | None]
"""Divides an interval of a GPU among its jobs; None where it has no rule of its own."""


def split(
    layout: NodeLayout,
    interval: SharedInterval,
    energy_j: Mapping[str, float],
    idle_w: Mapping[str, float],
    divide: Divide | None = None,
) -> dict[str, dict[str, EnergyShare]]:
    """Return run -> domain -> share; the shares of a domain add up to its `energy_j`.

    Args:
        layout: the node's domains.
        interval: its time and its jobs.
        energy_j: joules of each domain in that time; a domain that is not named is not split.
        idle_w: power of shared domains with nothing to do; by CPU time alone where not named.
        divide: divides a GPU among jobs by their use; in proportion to it unless given.
    """
    parts: dict[str, dict[str, EnergyShare]] = {run.run: {} for run in interval.occupants}
    parts[UNATTRIBUTED] = {}
    # Alone only: where Slurm shares nodes by force, several may have all CPUs.
    alone = interval.occupants[0] if len(interval.occupants) == 1 else None
    owner = alone.run if alone is not None and alone.whole else None
    by_cpus, by_time = _weights(layout, interval)
    duration_s = interval.end_s - interval.begin_s
    for name, joules in energy_j.items():
        if owner is not None:
            parts[owner][name] = EnergyShare(joules, joules, joules)
        elif layout.is_shared(name):
            static = min(1.0, idle_w.get(name, 0.0) * duration_s / joules) if joules > 0 else 1.0
            _share(parts, name, joules, static, by_cpus, by_time)
        elif not layout.is_node(name):
            _give_device(parts, name, joules, interval, divide)
    if owner is None:
        _attribute_rest(layout, parts, energy_j)
    return parts


def _weights(
    layout: NodeLayout, interval: SharedInterval
) -> tuple[dict[str, float], dict[str, float]]:
    """Return shares by allocated CPUs and by CPU time; the rest to 1 is unattributed."""
    jobs = interval.occupants
    cpus = max(layout.cpus, sum(one.cpus for one in jobs))
    by_cpus = {one.run: one.cpus / cpus for one in jobs}
    busy_s = interval.busy_s
    if busy_s is None:
        busy_s = sum(one.cpu_s or 0.0 for one in jobs)
    # A job whose time cannot be read is taken to be as busy as its CPUs are.
    times_s = {
        one.run: by_cpus[one.run] * busy_s if one.cpu_s is None else one.cpu_s for one in jobs
    }
    whole_s = max(busy_s, sum(times_s.values()))
    if whole_s <= 0:
        return by_cpus, by_cpus
    return by_cpus, {run: time_s / whole_s for run, time_s in times_s.items()}


def _share(
    parts: dict[str, dict[str, EnergyShare]],
    name: str,
    joules: float,
    static: float,
    by_cpus: Mapping[str, float],
    by_time: Mapping[str, float],
) -> None:
    left = [joules, joules, joules]
    for run in by_cpus:
        cpus_j, time_j = joules * by_cpus[run], joules * by_time[run]
        part = EnergyShare(static * cpus_j + (1 - static) * time_j, cpus_j, time_j)
        parts[run][name] = part
        left = [rest_j - given_j for rest_j, given_j in zip(left, part, strict=True)]
    parts[UNATTRIBUTED][name] = EnergyShare(*(max(0.0, rest_j) for rest_j in left))


def _give_device(
    parts: dict[str, dict[str, EnergyShare]],
    name: str,
    joules: float,
    interval: SharedInterval,
    divide: Divide | None,
) -> None:
    """Give a device's energy to its job, that of a card with several jobs by their use, where it is
    known; else to jobs on instances of MIG by their slices, and to others on one card (time slices,
    oversubscribed) the same part each. The rest is unattributed.
    """
    jobs = [one for one in interval.occupants if name in one.gpus]
    wanted = {one.run: one.gpu_parts.get(name, 1.0) for one in jobs}
    used: dict[Hashable, float] = {j.run: j.gpu_use[name] for j in jobs if name in j.gpu_use}
    if used.keys() == wanted.keys():
        idle: dict[Hashable, float] = {}
        if name in interval.others_use:
            idle = dict[Hashable, float](wanted.items())
            idle[UNATTRIBUTED] = max(0.0, 1 - sum(wanted.values()))
            used[UNATTRIBUTED] = interval.others_use[name]
        step = UseInterval(interval.end_s - interval.begin_s, joules, {**used}, idle=idle)
        divided = divide(name, step) if divide is not None else None
        for user, own in (divided or {}).items():  # also of jobs that have ended
            by_rule_j = own.energy_j - own.uncertainty_j
            given = EnergyShare(own.energy_j, own.energy_j, by_rule_j)
            parts.setdefault(str(user), {})[name] = given
        if divided is not None and used:
            return
        if sum(used.values()) > 0 and not idle:
            wanted = {str(run): use / sum(used.values()) for run, use in used.items()}
    whole, left_j = max(1.0, sum(wanted.values())), joules
    for run, part in wanted.items():
        share = part / whole
        own_j = joules * share
        # how much each used is not known: the interval is E x share x (1 - share)
        parts[run][name] = EnergyShare(own_j, own_j, own_j * share)
        left_j -= own_j
    if not wanted or left_j > 1e-9 * joules:
        parts[UNATTRIBUTED][name] = EnergyShare(left_j, left_j, left_j)


def _attribute_rest(
    layout: NodeLayout, parts: dict[str, dict[str, EnergyShare]], energy_j: Mapping[str, float]
) -> None:
    """Attribute meters of the whole node: energy beyond the jobs' parts is unattributed.

    The rest is below zero where a slow meter of the node lags behind its parts; later intervals
    make up for it.
    """
    nodes = [name for name in layout.domains if layout.is_node(name)]
    whole_j = sum(energy_j.get(name, 0.0) for name in nodes)
    given_j = sum(
        part.energy_j
        for run, own in parts.items()
        if run != UNATTRIBUTED
        for name, part in own.items()
        if name in layout.counted
    )
    for name in nodes:
        own_j = energy_j.get(name, 0.0)
        rest_j = own_j - given_j * (own_j / whole_j if whole_j > 0 else 1 / len(nodes))
        parts[UNATTRIBUTED][name] = EnergyShare(rest_j, rest_j, rest_j)


# The joules of every run on the node, kept so that they add up to the node's at any moment.
#
# A domain that falls silent waits: when it speaks again, what it counted meanwhile goes to those
# who were there. What comes after a job's run is closed, or too late to know who was there, is
# unattributed.

REMEMBER_S = 900.0
"""Time for which the jobs of past intervals are known, for domains that fell silent."""
Take = Callable[[str, float], float]
Readable = Callable[[str, float], bool]


@dataclass(slots=True)
class Account:
    """Joules of one run by domain since it began, and by each rule alone."""

    energy_j: dict[str, float] = field(default_factory=dict)
    by_cpus_j: dict[str, float] = field(default_factory=dict)
    by_time_j: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, part: EnergyShare) -> None:
        self.energy_j[name] = self.energy_j.get(name, 0.0) + part.energy_j
        self.by_cpus_j[name] = self.by_cpus_j.get(name, 0.0) + part.by_cpus_j
        self.by_time_j[name] = self.by_time_j.get(name, 0.0) + part.by_time_j

    def doubt_j(self, name: str) -> float:
        """Return the uncertainty of a share due to the rule of attribution."""
        own_j = self.energy_j.get(name, 0.0)
        rules_j = (self.by_cpus_j.get(name, 0.0), self.by_time_j.get(name, 0.0))
        return max(abs(own_j - rule_j) for rule_j in rules_j)

    def to_state(self) -> dict[str, Any]:
        return {n: [j, self.by_cpus_j[n], self.by_time_j[n]] for n, j in self.energy_j.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Account:
        account = cls()
        for name, values in state.items():
            account.add(name, EnergyShare(*(float(v) for v in values)))
        return account


class EnergyLedger:
    """Accounts of all runs, `UNATTRIBUTED` included.

    Args:
        layout: the node's domains.
        known_s: from when on each domain's energy is known.
        shared_gpus: use of GPUs that jobs share, by an earlier agent.
        idle_w: power of domains with nothing to do, as far as it is known.
    """

    def __init__(
        self,
        layout: NodeLayout,
        known_s: Mapping[str, float],
        shared_gpus: Mapping[str, Any] | None = None,
        idle_w: Mapping[str, float] | None = None,
    ) -> None:
        self.layout = layout
        self.accounts: dict[str, Account] = {UNATTRIBUTED: Account()}
        self.done_s: dict[str, float] = dict(known_s)
        """Up to when each domain is shared out."""
        self._intervals: deque[SharedInterval] = deque()
        self._idle_w: Mapping[str, float] = idle_w or {}
        self.shared_gpus: dict[str, RunningDivision] = {}
        for name, steps in (shared_gpus or {}).items():
            if name in layout.domains:
                self.shared_gpus[name] = self._division(name, steps)

    def open(self, run: str, account: Account | None = None) -> Account:
        """Open an account, or resume a saved one."""
        self.accounts[run] = Account() if account is None else account
        return self.accounts[run]

    def close(self, run: str) -> Account:
        for division in self.shared_gpus.values():
            division.close(run)
        return self.accounts.pop(run)

    def is_settled(self, run: str, ended_s: float) -> bool:
        """Return True when no correction of a job that ended so long ago is to be waited for."""
        divisions = self.shared_gpus.values()
        return ended_s >= SETTLE_MOST_S or all(one.is_settled(run) for one in divisions)

    def renew_unattributed(self) -> Account:
        """Return the account of unattributed energy and begin a new one."""
        old = self.accounts[UNATTRIBUTED]
        self.accounts[UNATTRIBUTED] = Account()
        return old

    def extend(self, intervals: Iterable[SharedInterval]) -> None:
        self._intervals.extend(intervals)

    def attribute(self, take: Take, readable: Readable, idle_w: Mapping[str, float]) -> None:
        """Attribute all energy that is known by now.

        `take` returns the joules of a domain since the last call, `readable` whether they are
        known up to an instant.
        """
        silent: set[str] = set()
        self._idle_w = idle_w
        for interval in self._intervals:
            energy_j: dict[str, float] = {}
            for name, done_s in self.done_s.items():
                if done_s >= interval.end_s or name in silent:
                    continue
                if not readable(name, interval.end_s):
                    silent.add(name)
                    continue
                if done_s < interval.begin_s:
                    self._add_unattributed(name, take(name, interval.begin_s))
                energy_j[name] = take(name, interval.end_s)
                self.done_s[name] = interval.end_s
            if energy_j:
                self._book(split(self.layout, interval, energy_j, idle_w, self._divide))
        self._forget()

    def is_complete(self, run_domains: Iterable[str], until_s: float) -> bool:
        """Return True when these domains are attributed up to an instant."""
        return all(self.done_s.get(name, until_s) >= until_s for name in run_domains)

    def _divide(self, name: str, step: UseInterval) -> Mapping[Hashable, SharePart] | None:
        """Divide an interval of a GPU that several jobs have, or had until a while ago."""
        division = self.shared_gpus.get(name)
        if division is None and len(step.use) > 1:
            division = self.shared_gpus[name] = self._division(name)
        if division is None or step.duration_s <= 0:
            return None
        ended = (division.users & self.accounts.keys()) - step.use.keys() - {UNATTRIBUTED}
        found = division.divide(step, ended)
        if not division.is_shared:
            del self.shared_gpus[name]
        return found

    def _division(self, name: str, steps: Any = ()) -> RunningDivision:
        domain = self.layout.domains[name]
        limit_w, seen_w = domain.tdp_w, self._idle_w.get(name)
        if seen_w is not None and limit_w is not None:  # a card that was never idle shows more
            seen_w = seen_w if seen_w < (IDLE_OF_LIMIT + IDLE_SPREAD) * limit_w else None
        return RunningDivision(known_idle_w(domain.device), seen_w, limit_w, steps)

    def _book(self, parts: Mapping[str, Mapping[str, EnergyShare]]) -> None:
        for run, own in parts.items():
            account = self.accounts.get(run) or self.accounts[UNATTRIBUTED]
            for name, part in own.items():
                account.add(name, part)

    def _add_unattributed(self, name: str, joules: float) -> None:
        self.accounts[UNATTRIBUTED].add(name, EnergyShare(joules, joules, joules))

    def _forget(self) -> None:
        """Drop intervals that every domain has passed, and those too long ago."""
        behind_s = min(self.done_s.values(), default=float("inf"))
        intervals = self._intervals
        while intervals:
            too_old = intervals[0].end_s < intervals[-1].end_s - REMEMBER_S
            if intervals[0].end_s > behind_s and not too_old:
                return
            intervals.popleft()


OVER_S = 10.0
"""The least mean power over so long: shorter ones are noise of the sensor."""


class LearnedIdlePower:
    """Idle power in watts by domain.

    Args:
        domains: those that are shared by CPU time, and GPUs, which jobs may share.
        stated_w: of one CPU package, if the operator knows it.
        fitted_w: from this machine's idle lines (`wattloop idle`).
    """

    def __init__(
        self,
        domains: Mapping[str, Domain],
        stated_w: float | None = None,
        fitted_w: Mapping[str, float] | None = None,
    ) -> None:
        self.watts: dict[str, float] = {}
        self.sources: dict[str, str] = {}
        self._learned = []
        for name, domain in domains.items():
            if stated_w is not None and domain.scope is Scope.CPU and domain.inside is None:
                self.watts[name], self.sources[name] = stated_w, "as set by cpu_idle_w"
            elif fitted_w and name in fitted_w:
                self.watts[name], self.sources[name] = fitted_w[name], "fitted by 'wattloop idle'"
            else:
                self._learned.append(name)
                self.sources[name] = "the least seen over 10 s"
        self._begin_s = 0.0
        self._sum_j: dict[str, float] = {}
        self._least_w: dict[str, float] = {}

    def learn(self, totals_j: Mapping[str, float], now_s: float) -> None:
        """Learn from the energy of each domain since the beginning."""
        if not self._sum_j:
            self._begin_s, self._sum_j = now_s, dict(totals_j)
        length_s = now_s - self._begin_s
        if length_s < OVER_S:
            return
        for name in self._learned:
            gained_j = totals_j.get(name, 0.0) - self._sum_j.get(name, 0.0)
            if gained_j > 0 and length_s < 2 * OVER_S:
                least_w = min(self._least_w.get(name, float("inf")), gained_j / length_s)
                self._least_w[name] = self.watts[name] = least_w
        self._begin_s, self._sum_j = now_s, dict(totals_j)

    def to_state(self) -> dict[str, Any]:
        return dict(self._least_w)

    def resume(self, state: Mapping[str, Any]) -> None:
        """Resume from what was learned before."""
        for name in self._learned:
            if isinstance(state.get(name), int | float):
                self._least_w[name] = self.watts[name] = float(state[name])
