"""Promise: counts of free GPUs tell a policy what fits, and a copy serves for planning."""

import pytest

from wattloop.schedule.free_gpus import FreeGpus

# One type: a node with all four GPUs free, two nodes with two, one with none.
COUNTS = [[1, 0, 2, 0, 1]]


@pytest.mark.parametrize(
    ("gpus", "spread", "fits"),
    [
        (1, False, True),
        (2, False, True),
        (3, False, True),
        (4, False, True),
        (5, False, True),  # the whole node, and one of a node with two
        (6, False, True),
        (7, False, False),  # three of one node are not available in addition to the whole one
        (7, True, True),
        (8, True, True),
        (9, True, False),
    ],
)
def test_a_shape_fits_where_its_gpus_can_be_had_together(
    gpus: int, spread: bool, fits: bool
) -> None:
    """A packed shape takes one node or whole ones and a rest; a spread one takes any GPUs."""
    assert FreeGpus(COUNTS).fits((0, gpus, spread)) is fits


def test_the_node_with_least_to_spare_is_taken() -> None:
    """Two GPUs come from a node with two, three from the node with four."""
    free = FreeGpus(COUNTS)
    assert free.take((0, 2, False)) == [2]
    assert free.take((0, 3, False)) == [4]
    assert free.nodes_with == [[2, 1, 1, 0, 0]]
    assert free.by_type == [3]


def test_a_spread_shape_takes_the_largest_remains_first() -> None:
    """Seven GPUs: four, two, and one of the last two."""
    free = FreeGpus(COUNTS)
    assert free.take((0, 7, True)) == [4, 2, 2]
    assert free.nodes_with == [[3, 1, 0, 0, 0]]


def test_a_copy_is_its_own() -> None:
    """Planning changes nothing."""
    free = FreeGpus(COUNTS)
    free.copy().take((0, 4, False))
    assert (free.nodes_with, free.total) == (COUNTS, 8)


def test_released_gpus_are_free_again() -> None:
    """The GPUs return to a node that had none free."""
    free = FreeGpus(COUNTS)
    free.give(0, 3, 0)
    assert (free.nodes_with, free.by_type) == ([[0, 0, 2, 1, 1]], [11])


def test_busy_gpus_are_not_taken() -> None:
    """It is a ValueError, and the counts stay."""
    free = FreeGpus(COUNTS)
    with pytest.raises(ValueError, match="9 GPUs of type 0 are not free"):
        free.take((0, 9, True))
    assert free.by_type == [8]
