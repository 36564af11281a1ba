"""Promise: no job overtakes, and no job waits for a round without need."""

from tests.schedule.policies.by_hand import Job, starts
from tests.schedule.small_world import small_cluster
from wattloop.schedule.engine import EngineSettings

TABLES = {"solo": [(1, 1.0, 300.0)], "pair": [(2, 0.5, 600.0)]}


def test_a_small_job_waits_behind_a_large_one() -> None:
    """It waits though a GPU is free for it."""
    jobs = [Job("solo", 0, 100), Job("pair", 10, 200), Job("solo", 20, 10)]
    assert starts("fifo", TABLES, jobs) == [(0, 0.0, 1), (1, 100.0, 2), (2, 200.0, 1)]


def test_all_that_fit_start_in_one_round() -> None:
    """Three jobs arrived since the last round, on four GPUs; the fourth and fifth wait."""
    jobs = [Job("solo", 1, 100), Job("solo", 2, 100), Job("solo", 3, 50), Job("pair", 4, 200),
            Job("solo", 5, 10)]  # fmt: skip
    found = starts("fifo", TABLES, jobs, small_cluster(1, 4), EngineSettings(round_s=10.0))
    assert found[:4] == [(0, 10.0, 1), (1, 10.0, 1), (2, 10.0, 1), (3, 60.0, 2)]
