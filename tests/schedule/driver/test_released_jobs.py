"""Promise: a start whose GPUs another job got first is planned again, not waited for."""

from tests.schedule.small_world import small_cluster
from wattloop.schedule.driver.inventory import KnownNodes, ReleasedJob, SchedulerJob
from wattloop.schedule.driver.view import GpuSlots, split_released

KNOWN = KnownNodes(small_cluster(nodes=2), ("n1", "n2"))


def waiting(key: str) -> SchedulerJob:
    """A released job that has not begun."""
    return SchedulerJob(key=key, state="PENDING", gpus=2, gpus_per_node=2)


def start(key: str, node: str) -> ReleasedJob:
    """The action that started it: two GPUs of a node."""
    return ReleasedJob(key=key, user="ada", why="start", nodes=(node,), gpus=2)


def test_a_job_whose_gpus_are_gone_waits_again() -> None:
    """An older job took n1 a moment before; the rest of n1 is still unassigned."""
    seats = GpuSlots(KNOWN)
    seats.take([("n1", 1)])
    seated = {}
    opened = {"7": start("7", "n1"), "8": start("8", "n2")}
    coming, late = split_released([waiting("7"), waiting("8")], opened, seats, seated)
    assert [job.key for job in coming] == ["8"]
    assert [job.key for job in late] == ["7"]
    assert list(seated) == ["8"]
    assert seats.taken == {0: 0b01, 1: 0b11}


def test_a_job_that_was_taken_back_in_this_round_waits_again() -> None:
    """It was expected to start, and is removed from the notes."""
    coming, late = split_released([waiting("7")], {}, GpuSlots(KNOWN), {})
    assert not coming
    assert [job.key for job in late] == ["7"]
