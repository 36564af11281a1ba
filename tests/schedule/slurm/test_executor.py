"""Promise: the power of a job that could not be held again is not given to another one."""

import math

from wattloop.schedule.driver.inventory import ReleasedJob, SchedulerJob, Why
from wattloop.schedule.slurm.executor import releases_within_budget, stale_releases


def opened(key: str, why: Why) -> ReleasedJob:
    return ReleasedJob(key=key, user="ada", why=why, gpus=1)


def wanted(key: str, why: Why) -> tuple[ReleasedJob, SchedulerJob]:
    return opened(key, why), SchedulerJob(key=key, state="PENDING", gpus=1)


def test_starts_and_standbys_that_the_plan_lacks_are_held() -> None:
    """Running jobs, released jobs of others, and jobs still in the plan stay."""
    notes = {
        key: opened(key, why)
        for key, why in (("1", "start"), ("2", "standby"), ("3", "ran"), ("4", "pass"))
    }
    assert stale_releases(notes, {"1"}) == ["2"]


def test_under_a_budget_nothing_starts_while_one_could_not_be_held() -> None:
    """Job 2 began since the poll; jobs without GPUs start all the same."""
    plan = [wanted("5", "start"), wanted("6", "standby"), wanted("7", "pass")]
    late = {"2": opened("2", "standby")}
    kept = releases_within_budget(plan, ["2"], late, 4_500.0)
    assert [each.key for each, _ in kept] == ["7"]


def test_a_job_held_in_time_keeps_no_other_out() -> None:
    """Without a budget, no job is kept out either."""
    plan = [wanted("5", "start"), wanted("7", "pass")]
    assert releases_within_budget(plan, ["2"], {}, 4_500.0) == plan
    late = {"2": opened("2", "standby")}
    assert releases_within_budget(plan, ["2"], late, math.inf) == plan
