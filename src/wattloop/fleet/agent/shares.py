"""Whose joules they are: the energy of a node over one stretch of time, split among its jobs.

In a stretch nobody comes or goes. With E the energy of a CPU package (or of DRAM), P_idle its
power with nothing to do, T the stretch, c_j of C CPUs allocated to job j and t_j of the node's
busy CPU time b used by it:

    E_static  = min(E, P_idle T)          E_j = E_static c_j / C + (E - E_static) t_j / b

A GPU belongs to the job that has it. A job that has all CPUs and no neighbour gets all of
it. What is left is nobody's, and kept as such: parts add up to the node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wattloop.core.records import Domain, Scope
from wattloop.core.results import non_overlapping

__all__ = ["NOBODY", "Layout", "Occupant", "Part", "Stretch", "split"]

NOBODY = ""
"""The share that no job used."""
SHARED = frozenset({Scope.CPU, Scope.DRAM})


class Occupant(NamedTuple):
    """A job on the node during a stretch.

    Attributes:
        run: its key in the result.
        gpus: domains of its GPUs.
        cpus: CPUs allocated to it.
        whole: it has the node to itself.
        cpu_s: CPU time that it used; None where that cannot be read.
    """

    run: str
    gpus: frozenset[str] = frozenset()
    cpus: int = 0
    whole: bool = False
    cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which nobody came or went.

    Attributes:
        busy_s: CPU time of everything on the node; None where that cannot be read.
    """

    begin_s: float
    end_s: float
    occupants: tuple[Occupant, ...] = ()
    busy_s: float | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """The node's domains, and how many CPUs it has."""

    domains: Mapping[str, Domain]
    cpus: int
    counted: frozenset[str] = field(init=False)
    """Parts that may be added without counting a joule twice; none of them is the whole node."""

    def __post_init__(self) -> None:
        parts = ((d.name, d.inside) for d in self.domains.values() if d.scope is not Scope.NODE)
        object.__setattr__(self, "counted", frozenset(non_overlapping(parts)))

    def is_shared(self, name: str) -> bool:
        """Whether a domain is split by CPUs and CPU time."""
        return self.domains[name].scope in SHARED or name == "psys"

    def is_node(self, name: str) -> bool:
        """Whether a domain covers the whole node."""
        return self.domains[name].scope is Scope.NODE and name != "psys"

    def of_job(self, gpus: frozenset[str], whole: bool) -> list[str]:
        """Domains that a job's run has; the others hold nothing of it."""
        if whole:
            return list(self.domains)
        return [name for name in self.domains if name in gpus or self.is_shared(name)]


class Part(NamedTuple):
    """What one run gets of one domain; for shared ones also by each rule alone."""

    energy_j: float
    by_cpus_j: float
    by_time_j: float


def split(
    layout: Layout, stretch: Stretch, energy_j: Mapping[str, float], idle_w: Mapping[str, float]
) -> dict[str, dict[str, Part]]:
    """Run -> domain -> its part; the parts of a domain add up to `energy_j` of it.

    Args:
        layout: the node's domains.
        stretch: who was there.
        energy_j: joules of each domain in that time; a domain that is not named is not split.
        idle_w: power of shared domains with nothing to do; by CPU time alone where not named.
    """
    parts: dict[str, dict[str, Part]] = {run.run: {} for run in stretch.occupants}
    parts[NOBODY] = {}
    # Alone only: where Slurm shares nodes by force, several may have all CPUs.
    alone = stretch.occupants[0] if len(stretch.occupants) == 1 else None
    owner = alone.run if alone is not None and alone.whole else None
    by_cpus, by_time = _weights(layout, stretch)
    duration_s = stretch.end_s - stretch.begin_s
    for name, joules in energy_j.items():
        if owner is not None:
            parts[owner][name] = Part(joules, joules, joules)
        elif layout.is_shared(name):
            static = min(1.0, idle_w.get(name, 0.0) * duration_s / joules) if joules > 0 else 1.0
            _share(parts, name, joules, static, by_cpus, by_time)
        elif not layout.is_node(name):
            _hand_over(parts, name, joules, stretch.occupants)
    if owner is None:
        _leave_rest(layout, parts, energy_j)
    return parts


def _weights(layout: Layout, stretch: Stretch) -> tuple[dict[str, float], dict[str, float]]:
    """Shares by allocated CPUs and by CPU time; what is missing to 1 is nobody's."""
    jobs = stretch.occupants
    cpus = max(layout.cpus, sum(one.cpus for one in jobs))
    by_cpus = {one.run: one.cpus / cpus for one in jobs}
    busy_s = stretch.busy_s
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
    parts: dict[str, dict[str, Part]],
    name: str,
    joules: float,
    static: float,
    by_cpus: Mapping[str, float],
    by_time: Mapping[str, float],
) -> None:
    left = [joules, joules, joules]
    for run in by_cpus:
        cpus_j, time_j = joules * by_cpus[run], joules * by_time[run]
        part = Part(static * cpus_j + (1 - static) * time_j, cpus_j, time_j)
        parts[run][name] = part
        left = [rest_j - given_j for rest_j, given_j in zip(left, part, strict=True)]
    parts[NOBODY][name] = Part(*(max(0.0, rest_j) for rest_j in left))


def _hand_over(
    parts: dict[str, dict[str, Part]], name: str, joules: float, jobs: Sequence[Occupant]
) -> None:
    """A device goes to whom it belongs; two jobs on one card (oversubscribed) get half each."""
    owners = [one.run for one in jobs if name in one.gpus] or [NOBODY]
    for run in owners:
        each_j = joules / len(owners)
        parts[run][name] = Part(each_j, each_j, each_j)


def _leave_rest(
    layout: Layout, parts: dict[str, dict[str, Part]], energy_j: Mapping[str, float]
) -> None:
    """Meters of the whole node: what their jobs did not get by its parts is nobody's.

    The rest is below zero where a slow meter of the node lags behind its parts; later stretches
    make up for it.
    """
    nodes = [name for name in layout.domains if layout.is_node(name)]
    whole_j = sum(energy_j.get(name, 0.0) for name in nodes)
    given_j = sum(
        part.energy_j
        for run, own in parts.items()
        if run != NOBODY
        for name, part in own.items()
        if name in layout.counted
    )
    for name in nodes:
        own_j = energy_j.get(name, 0.0)
        rest_j = own_j - given_j * (own_j / whole_j if whole_j > 0 else 1 / len(nodes))
        parts[NOBODY][name] = Part(rest_j, rest_j, rest_j)
