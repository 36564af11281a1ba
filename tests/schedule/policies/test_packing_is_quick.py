"""Promise: the optimisations of packing do not change a single decision."""

from dataclasses import replace

import pytest

from wattloop.schedule.engine import Simulation
from wattloop.schedule.objectives import EDP
from wattloop.schedule.policies.zeus import Zeus
from wattloop.testing.synthetic_cluster import random_world


class PlainZeus(Zeus):
    """The same costs, computed for every job and compared as arrays even when one job waits."""

    objective = replace(EDP, name="plain edp", degree=None, keeps_order=False)


@pytest.mark.parametrize("seed", range(12))
def test_costs_of_a_kind_give_the_events_that_costs_of_each_job_give(seed: int) -> None:
    """In random simulations, to the last event."""
    world = random_world(seed)
    quick, plain = (
        Simulation(world.cluster, world.jobs, policy, truth=world.truth, settings=world.settings)
        for policy in (Zeus(), PlainZeus())
    )
    assert quick.run().event_hash == plain.run().event_hash
