"""Promise: a queue knows which job came first, also for jobs that left and came back."""

from hypothesis import given
from hypothesis import strategies as st

from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.schedule.queue import JobQueue


@given(st.lists(st.integers(0, 19), max_size=60))
def test_order_of_arrival_whatever_came_and_went(moves: list[int]) -> None:
    """Waiting numbers leave, and others begin to wait, as after a preemption."""
    jobs = jobs_of([(float(number), 1.0) for number in range(20)])
    queue = JobQueue(jobs, PlainOracle(small_cluster()), [50.0])
    waiting: set[int] = set()
    for job in moves:
        if job in waiting:
            queue.remove(job)
        else:
            queue.add(job, 1.0)
        waiting ^= {job}
        assert list(queue.by_arrival()) == queue.in_order() == sorted(waiting)
        assert queue.head() == min(waiting, default=None)
