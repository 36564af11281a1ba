"""Promise: a broken invariant is detected after the event that broke it, and named."""

from collections.abc import Callable
from heapq import heappush

import pytest

from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.core.errors import InvariantBroken
from wattloop.schedule.engine import EngineSettings, Simulation
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.jobs import JobKind
from wattloop.schedule.policies.fifo import Fifo

NODE_1_IS_UP = (1, 1, 1)
"""An event that changes nothing, since it is."""


def simulation() -> Simulation:
    """Two nodes with two GPUs; at 5 s three jobs run on three GPUs."""
    cluster = small_cluster(nodes=2, host_w=100.0)
    jobs = jobs_of([(0, 10), (0, 10), (4, 10), (6, 1)])
    made = Simulation(
        cluster, jobs, Fifo(), truth=PlainOracle(cluster), settings=EngineSettings(checks=True)
    )
    made.run(until_s=5.0)
    return made


def lose_a_job(made: Simulation) -> None:
    made.world.running.pop(0)


def find_a_job(made: Simulation) -> None:
    made.world.queue.add(0, 3.0)
    made.arrived += 1


def use_a_gpu_twice(made: Simulation) -> None:
    made.world.running[0].nodes = made.world.running[1].nodes


def forget_a_gpu(made: Simulation) -> None:
    made.world.machines.free_mask[1] = 0


def run_on_a_dead_node(made: Simulation) -> None:
    made.world.machines.is_up[0] = False


def change_the_gpus(made: Simulation) -> None:
    made.world.running[0].gpus = 2


def tamper_with_free_gpus(made: Simulation) -> None:
    made.view.free.take((0, 1, False))


def misplace_a_node(made: Simulation) -> None:
    nodes_with = made.world.machines.nodes_with[0]
    nodes_with[2][0] = nodes_with[0].pop(0)


def draw_power_for_nothing(made: Simulation) -> None:
    made.world.ledger.power_w += 1.0


def find_energy(made: Simulation) -> None:
    made.world.ledger.energy_j += 10.0


def forget_a_host(made: Simulation) -> None:
    made.world.ledger.host_w -= 40.0


def draw_energy_twice(made: Simulation) -> None:
    made.world.accounts.energy_j[0] += 10.0


def waste_too_much(made: Simulation) -> None:
    made.world.accounts.wasted_j[3] = 5.0


def misjudge_a_user(made: Simulation) -> None:
    made.world.use.start(0, 1, 5.0)


def turn_back_time(made: Simulation) -> None:
    made.world.ledger.now_s = 1.0
    heappush(made.world.heap, (2.0, *NODE_1_IS_UP))


def forget_an_end(made: Simulation) -> None:
    made.world.running[2].version += 1


BROKEN = [
    (lose_a_job, "3 jobs came, but 0 wait, 2 run, 0 are done and 0 can never run"),
    (find_a_job, "job 0 runs and waits"),
    (use_a_gpu_twice, "GPUs of node 0 that are not its own"),
    (forget_a_gpu, "GPUs of node 1 are neither free nor used"),
    (run_on_a_dead_node, "runs on node 0, which is down"),
    (change_the_gpus, "job 0 has 1 GPUs instead of 2"),
    (tamper_with_free_gpus, "free GPUs as policies see them are not those of the nodes"),
    (misplace_a_node, "node 0 is not kept among those with 0 free GPUs"),
    (draw_power_for_nothing, "power is 1150 W, accounted 1151 W"),
    (find_energy, "energy is .* J, accounted .* J"),
    (forget_a_host, "hosts drew .* J, accounted .* J"),
    (draw_energy_twice, "jobs drew .* J, GPUs at work .* J"),
    (waste_too_much, "job 3 wasted more energy than it drew"),
    (misjudge_a_user, "users have other GPUs than their jobs"),
    (turn_back_time, "time runs backwards, from 4 s"),
    (forget_an_end, "job 2 runs and would never end"),
]


@pytest.mark.parametrize(("damage", "message"), BROKEN)
def test_every_invariant_is_seen_when_it_breaks(
    damage: Callable[[Simulation], None], message: str
) -> None:
    """State is broken between two events: the next event raises and names the invariant."""
    made = simulation()
    heappush(made.world.heap, (5.5, *NODE_1_IS_UP))
    damage(made)
    with pytest.raises(InvariantBroken, match=message) as error:
        made.run()
    assert str(error.value).startswith("after ")


class Overdrawn(PlainOracle):
    """An oracle whose jobs draw more than their cap allows."""

    def options(self, kind: JobKind) -> PlacementOptions:
        """500 W under a cap of 400 W."""
        options = super().options(kind)
        options.power_w[:] = 500.0
        return options


def test_power_stays_under_the_cap_that_was_promised() -> None:
    """An oracle whose true power breaks its own caps is reported."""
    cluster = small_cluster()
    made = Simulation(
        cluster,
        jobs_of([(0, 1)]),
        Fifo(),
        truth=Overdrawn(cluster),
        settings=EngineSettings(checks=True),
    )
    with pytest.raises(InvariantBroken, match="after start of job 0 at 0 s: job 0 draws 500 W"):
        made.run()


def test_without_checks_nothing_is_looked_at() -> None:
    """Checks are for tests and on request: a run of a million jobs does without."""
    cluster = small_cluster()
    made = Simulation(cluster, jobs_of([(0, 1)]), Fifo(), truth=Overdrawn(cluster))
    assert made.run().is_done.all()
