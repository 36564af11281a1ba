"""Promise: GPUs are allocated by the rule by which free GPUs are counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedule.small_world import small_cluster
from wattloop.schedule.engine.machines import Machines, Nodes
from wattloop.schedule.free_gpus import FreeGpus

SHAPES = st.tuples(st.just(0), st.integers(1, 12), st.booleans())


def test_the_node_with_least_to_spare_is_taken() -> None:
    """One GPU of a started node before one of a whole node, and its lowest free GPU."""
    machines = Machines(small_cluster(nodes=3, gpus_per_node=4))
    assert machines.take((0, 1, False)) == ((0, 0b0001),)
    assert machines.take((0, 4, False)) == ((1, 0b1111),)
    assert machines.take((0, 2, False)) == ((0, 0b0110),)


def test_a_packed_job_takes_whole_nodes_and_a_rest() -> None:
    """Six GPUs are a node of four and two more of one other node."""
    machines = Machines(small_cluster(nodes=3, gpus_per_node=4))
    assert machines.take((0, 6, False)) == ((0, 0b1111), (1, 0b0011))


def test_what_does_not_fit_changes_nothing() -> None:
    """Three GPUs are free, but not on one node."""
    machines = Machines(small_cluster(nodes=3, gpus_per_node=2))
    for _ in range(3):
        machines.take((0, 2, False))
    machines.give(((0, 0b01), (1, 0b01), (2, 0b01)))
    assert machines.take_if_free((0, 2, False)) is None
    assert machines.free.by_type == [3]
    with pytest.raises(ValueError, match="2 GPUs of type 0 are not free"):
        machines.take((0, 2, False))
    assert len(machines.take((0, 3, True))) == 3


@given(
    nodes=st.integers(1, 4),
    size=st.integers(1, 8),
    steps=st.lists(st.one_of(SHAPES, st.integers(0, 100)), max_size=40),
    emptiest=st.booleans(),
)
def test_what_fits_by_the_counts_can_be_had(
    nodes: int, size: int, steps: list[tuple[int, int, bool] | int], emptiest: bool
) -> None:
    """Under random allocations masks are disjoint, and the counts predict each one."""
    machines = Machines(small_cluster(nodes=nodes, gpus_per_node=size), emptiest=emptiest)
    held: list[Nodes] = []
    for step in steps:
        if isinstance(step, int):
            if held:
                machines.give(held.pop(step % len(held)))
            continue
        fits = machines.free.fits(step)
        plan: FreeGpus = machines.free.copy()
        taken = machines.take_if_free(step)
        assert (taken is not None) == fits
        if taken is not None:
            assert sum(mask.bit_count() for _, mask in taken) == step[1]
            assert len(plan.take(step)) == len(taken)
            assert plan.nodes_with == machines.free.nodes_with
            assert plan.by_type == machines.free.by_type
            held.append(taken)
    used = [0] * nodes
    for each in held:
        for node, mask in each:
            assert not used[node] & mask
            used[node] |= mask
    assert [mask ^ ((1 << size) - 1) for mask in used] == machines.free_mask
