"""Contract test of scheduling policies, also of third parties.

def test_my_policy_keeps_the_contract():
    check_policy(MyPolicy)
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace

import numpy as np

from wattloop.schedule.actions import Action, Wake
from wattloop.schedule.engine import EngineSettings, Simulation, SimulationResult
from wattloop.schedule.estimates.noisy import NoisyOracle
from wattloop.schedule.jobs import JobKind
from wattloop.schedule.objectives import EDP, ENERGY, TIME
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.view import ClusterView, RunningJob
from wattloop.testing.synthetic_cluster import (
    FormulaOracle,
    World,
    random_world,
    synthetic_cluster,
    synthetic_jobs,
)

Make = Callable[[], Policy]

EVENTS_PER_JOB = 200
DECISIONS_PER_JOB = 2_000
DECISIONS_AT_ONCE_PER_JOB = 10
"""More than these, and jobs are started and stopped without end."""
LOOKED_AT_FIRST, LOOKED_AT_EVERY = 20, 7
"""Looking twice at every decision of a long simulation would take too long."""


def check_policy(make: Make, *, seeds: Iterable[int] = range(6)) -> None:
    """Raise AssertionError with the promise that the policy breaks, and where.

    Args:
        make: a new policy, each time the same.
        seeds: of random clusters and jobs, tried in addition to the usual ones.
    """
    policy = make()
    assert isinstance(policy, Policy), f"{type(policy).__name__} is not a Policy"
    assert policy.name, "a policy has a name"
    assert policy.__doc__, f"{policy.name}: its class says in a line what it does"
    _check_idle(make)
    for world in _usual_worlds():
        check_policy_in(make, world)
    for seed in seeds:
        check_policy_in(make, random_world(seed))


def check_policy_in(make: Make, world: World) -> SimulationResult:
    """Check the contract in one world: pure, possible, and no job starves."""
    policy = make()
    where = f"{policy.name} in {world.what}"
    result = _simulated(Watched(make, where), world)
    assert not result.refusals, f"{where}: an impossible action: {result.refused[0]}"
    waiting = np.flatnonzero(~result.is_done)
    lost = [int(job) for job in waiting if int(job) not in result.never]
    assert not lost, f"{where}: jobs {lost} were never done, and nothing happens any more"
    assert len(result.log) <= EVENTS_PER_JOB * len(world.jobs), f"{where}: it never settles"
    again = _simulated(make(), world)
    assert again.event_hash == result.event_hash, f"{where}: twice the same is not the same"
    return result


class Watched(Policy):
    """A policy whose decisions are checked.

    Args:
        make: a new policy, each time the same.
        where: for messages.
    """

    def __init__(self, make: Make, where: str) -> None:
        self._make, self._where = make, where
        self._policy = make()
        self._decided = self._decided_at_once = 0
        self._last_s = -1.0
        self.name = self._policy.name
        self.needs_free_gpus = self._policy.needs_free_gpus
        self.sets_caps = self._policy.sets_caps
        self.references = self._policy.references  # type: ignore[method-assign] # the same ones

    def decide(self, view: ClusterView) -> Sequence[Action]:
        """What the policy decides, if it decides so again and leaves everything as it was."""
        self._count(view)
        if self._decided > LOOKED_AT_FIRST and self._decided % LOOKED_AT_EVERY:
            return self._policy.decide(view)
        before = _seen(view)
        actions = list(self._policy.decide(view))
        after = _seen(view)
        where = f"{self._where} at {view.now_s:g} s"
        for what, old in before.items():
            assert after[what] == old, f"{where}: deciding changed {what}"
        assert list(self._policy.decide(view)) == actions, f"{where}: asked twice, it differs"
        fresh = list(self._make().decide(view))
        assert fresh == actions, f"{where}: it decides by what it remembers, not by what it sees"
        return actions

    def _count(self, view: ClusterView) -> None:
        self._decided += 1
        self._decided_at_once = 1 + self._decided_at_once * (view.now_s == self._last_s)
        self._last_s = view.now_s
        where = f"{self._where} at {view.now_s:g} s"
        jobs = len(view.jobs)
        at_once = DECISIONS_AT_ONCE_PER_JOB * jobs
        assert self._decided_at_once <= at_once, f"{where}: it never settles"
        assert self._decided <= DECISIONS_PER_JOB * jobs, f"{where}: it never comes to an end"


def _simulated(policy: Policy, world: World) -> SimulationResult:
    return Simulation(
        world.cluster,
        world.jobs,
        policy,
        truth=world.truth,
        oracle=world.oracle,
        settings=world.settings,
    ).run()


def _seen(view: ClusterView) -> dict[str, object]:
    """All of a view that can be changed, copied."""
    queue = view.queue
    names = [field.name for field in fields(RunningJob)]
    return {
        "who waits": [(job, queue.work(job)) for job in queue.in_order()],
        "the queue's columns": [column.tolist() for column in queue.columns()],
        "the queue's costs": [queue.cost(each).tolist() for each in (TIME, ENERGY, EDP)],
        "the free GPUs": ([list(counts) for counts in view.free.nodes_with], [*view.free.by_type]),
        "what runs": {
            job: [getattr(running, name) for name in names] for job, running in view.running.items()
        },
        "what users had": view.use.gpu_s(view.now_s).tolist(),
        "the view": (view.now_s, view.power_w, view.budget_w, view.power_error, view.time_error),
    }


def _check_idle(make: Make) -> None:
    """Check that a policy does nothing on an empty cluster."""
    (world,) = _usual_worlds(("one GPU",))
    jobs = synthetic_jobs(np.random.default_rng(0), world.jobs.kinds, 0)
    simulation = Simulation(world.cluster, jobs, make(), truth=world.truth)
    actions = [each for each in make().decide(simulation.view) if not isinstance(each, Wake)]
    assert not actions, f"{make().name}: no job waits, and it asks for {actions}"


def _usual_worlds(names: Sequence[str] = ()) -> list[World]:
    """What any cluster may bring, one at a time."""
    one = JobKind("one")
    rigid = JobKind("rigid", gpus=(4,), batches=(16,))
    malleable = JobKind("malleable", gpus=(1, 2, 4, 8), batches=(16, 64))
    capped = replace(malleable, model="capped", caps=(0.5, 0.75, 1.0))
    too_large = JobKind("too large", gpus=(64,))
    elsewhere = JobKind("elsewhere", types=("v100",))
    of_one_type = JobKind("of one type", gpus=(1, 2), types=("h100",))
    two_types = (("a100", 1, 8), ("h100", 1, 8))
    every_second = EngineSettings(round_s=1.0, checks=True)
    worlds = [
        _world("one GPU", (("a100", 1, 1),), (one,), 8),
        _world("rigid jobs", (("a100", 2, 4),), (one, rigid), 12),
        _world("jobs that come together", two_types, (malleable, rigid), 15, together=True),
        _world("kinds of all sorts", two_types, (one, rigid, malleable, capped, of_one_type), 25),
        _world("jobs that can never run", two_types, (one, too_large, elsewhere), 9),
        _world("a noisy oracle", two_types, (malleable, capped), 20, noise=0.1),
        _world("rounds of a second", two_types, (malleable, rigid), 15, settings=every_second),
    ]
    return [world for world in worlds if not names or world.what in names]


def _world(
    what: str,
    groups: tuple[tuple[str, int, int], ...],
    kinds: tuple[JobKind, ...],
    count: int,
    *,
    together: bool = False,
    noise: float = 0.0,
    settings: EngineSettings | None = None,
) -> World:
    cluster = synthetic_cluster(*groups)
    jobs = synthetic_jobs(np.random.default_rng(count), kinds, count, together=together)
    truth = FormulaOracle(cluster)
    oracle = NoisyOracle(truth, seed=count, share=noise)
    return World(what, cluster, jobs, truth, oracle, settings or EngineSettings(checks=True))
