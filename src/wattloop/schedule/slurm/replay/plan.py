"""Replay plan: the jobs and nodes of a scenario for a real Slurm, sped up."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.driver.inventory import SchedulerNode
from wattloop.schedule.engine.machines import why_never
from wattloop.schedule.engine.settings import EngineSettings
from wattloop.schedule.estimates.oracle import Oracle, PlacementOptions
from wattloop.schedule.estimates.spec import OracleSpec
from wattloop.schedule.jobs.attributes import Draws, pin_options
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.jobs.table import JobTable, remove_caps
from wattloop.schedule.scenarios.scenario import Scenario
from wattloop.schedule.slurm.squeue import parse_gpus
from wattloop.schedule.step_function import StepFunction


def match_nodes(cluster: Cluster, slurm: Callable[..., str], partition: str = "") -> dict[int, str]:
    """Map each node number of the cluster to a Slurm node with the same GPUs.

    Raises:
        ConfigError: Slurm has too few such nodes; the message lists its nodes.
    """
    found = _nodes(slurm, partition)
    left = list(found)
    names: dict[int, str] = {}
    for number, group in enumerate(cluster.node_groups):
        wanted = (group.type_name.lower(), group.gpus_per_node)
        node = next((each for each in left if (each.gpu_type, each.gpus) == wanted), None)
        if node is None:
            has = ", ".join(f"{n.name} ({n.gpus} x {n.gpu_type or 'gpu'})" for n in found) or "none"
            raise ConfigError(
                f"the scenario is wider than this Slurm: node {cluster.node_names[number]} has "
                f"{group.gpus_per_node} x {group.type_name}, and no node is left that does; Slurm "
                f"has {has}. Change the scenario's cluster, or Gres= in slurm.conf"
            )
        left.remove(node)
        names[number] = node.name
    return names


def _nodes(slurm: Callable[..., str], partition: str) -> list[SchedulerNode]:
    """Return the nodes that are up, each once."""
    only = ("-p", partition) if partition else ()
    found: dict[str, SchedulerNode] = {}
    for line in slurm("sinfo", "-h", "-N", *only, "-o", "%N|%G|%t").splitlines():
        name, gres, state = line.strip().split("|")
        if state.startswith(("down", "drain", "fail", "unk")) or "*" in state:
            continue
        gpus = parse_gpus(gres)
        found[name] = SchedulerNode(name, gpus.type_name, gpus.number, (), True)
    return list(found.values())


LEAST_SPEEDUP, MOST_SPEEDUP = 1.0, 100_000.0


@dataclass(frozen=True)
class ReplayPlan:
    """Scenario in which all times are divided by the speedup; power is unchanged.

    Attributes:
        speedup: seconds of the scenario per real second.
        asked: jobs as users submit them: one GPU count, one batch, any GPU type.
        open: the same jobs with all GPU counts that they could run on.
        truth: oracle of both tables of jobs.
    """

    scenario: str
    seed: int
    speedup: float
    cluster: Cluster
    asked: JobTable
    open: JobTable
    oracle: OracleSpec
    truth: Oracle
    settings: EngineSettings

    def options(self, job: int) -> PlacementOptions:
        """Return the possible placements of a job, including other GPU counts."""
        return self.truth.options(self.open.kinds[self.open.kind[job]])

    def asked_gpus(self, job: int) -> int:
        return int(self.asked.kinds[self.asked.kind[job]].gpus[0])

    def limit_min(self, job: int) -> int:
        """Return the time limit that a careful user would set, in whole minutes."""
        slowest_s = float(self.open.work[job] * self.options(job).sample_s.max())
        return max(1, math.ceil((1.3 * slowest_s + 15.0) / 60.0))


def replay_plan(
    scenario: Scenario, *, seed: int = 0, speedup: float = 10.0, most_jobs: int | None = None
) -> ReplayPlan:
    """Build the replay plan of a scenario.

    Raises:
        ConfigError: the speedup is invalid, or a job of the scenario fits nowhere.
    """
    check_speedup(speedup)
    world = scenario.world(seed)
    jobs = remove_caps(world.jobs)
    horizon_s = world.settings.horizon_s
    count = int(np.searchsorted(jobs.arrival_s, horizon_s, side="right"))
    jobs = _first(jobs, min(count, most_jobs or count))
    if not len(jobs):
        raise ConfigError(f"scenario {scenario.name}: has no job to replay")
    for each in jobs.kinds:
        why = why_never(each, world.truth.options(each), world.cluster)
        if why:
            raise ConfigError(f"scenario {scenario.name}: {why}")
    kinds, kind = pin_options(jobs.kinds, jobs.kind, Draws(seed), world.truth)
    asked = _faster(replace(jobs, kinds=kinds, kind=kind), speedup)
    settings = replace(
        world.settings,
        round_s=None,
        horizon_s=math.inf,
        budget_w=_faster_steps(world.settings.budget_w, speedup),
        node_events=(),
        interference=0.0,
    )
    return ReplayPlan(
        scenario=scenario.name,
        seed=seed,
        speedup=speedup,
        cluster=world.cluster,
        asked=asked,
        open=with_all_gpu_counts(
            asked, jobs, max(group.gpus_per_node for group in world.cluster.groups)
        ),
        oracle=scenario.oracle,
        truth=world.truth,
        settings=settings,
    )


def check_speedup(speedup: float) -> None:
    """Check that the speedup is in the allowed range."""
    if not LEAST_SPEEDUP <= speedup <= MOST_SPEEDUP:
        raise ConfigError(
            f"speedup {speedup:g}: give a factor from {LEAST_SPEEDUP:g} to {MOST_SPEEDUP:g}"
        )


def _first(jobs: JobTable, count: int) -> JobTable:
    columns = ("arrival_s", "kind", "user", "work", "deadline_s", "priority")
    cut = {name: getattr(jobs, name)[:count] for name in columns}
    return replace(jobs, names=jobs.names[:count], **cut)


def _faster(jobs: JobTable, speedup: float) -> JobTable:
    arrival_s = (jobs.arrival_s - jobs.arrival_s[0]) / speedup
    deadline_s: NDArray[np.float64] = (jobs.deadline_s - jobs.arrival_s[0]) / speedup
    return replace(jobs, arrival_s=arrival_s, deadline_s=deadline_s, work=jobs.work / speedup)


def with_all_gpu_counts(asked: JobTable, jobs: JobTable, widest: int) -> JobTable:
    """Return the jobs with all GPU counts within a node, which a Slurm driver can change.

    The batch stays the user's, because only the job's own code could change it. A job on several
    nodes stays as submitted.
    """
    kinds: dict[JobKind, int] = {}
    found: list[int] = []
    for number in range(len(jobs)):
        rigid = asked.kinds[asked.kind[number]]
        narrow = tuple(gpus for gpus in jobs.kinds[jobs.kind[number]].gpus if gpus <= widest)
        gpus = narrow if rigid.gpus[0] <= widest else rigid.gpus
        found.append(kinds.setdefault(replace(rigid, gpus=gpus), len(kinds)))
    return replace(asked, kinds=tuple(kinds), kind=np.array(found, dtype=np.int64))


def _faster_steps(steps: StepFunction, speedup: float) -> StepFunction:
    times_s = tuple(time_s / speedup for time_s in steps.times_s)
    return StepFunction(times_s, steps.values, steps.period_s / speedup)
