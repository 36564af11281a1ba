"""Promises of the interval between rounds of the driver."""

import pytest

from tests.schedule.slurm.slurm_world import job
from wattloop.schedule.driver.event_log import RoundReport
from wattloop.schedule.driver.inventory import SchedulerJob
from wattloop.schedule.driver.rounds import RoundInterval

FULL = RoundReport(waiting=100, running=16, free_gpus=0)
IDLE = RoundReport(waiting=0, running=3, free_gpus=13)


def jobs(running: range, waiting: range) -> dict[str, SchedulerJob]:
    """Return jobs by their numbers."""
    found = [job(str(n), "RUNNING") for n in running] + [job(str(n)) for n in waiting]
    return {each.key: each for each in found}


def test_while_nothing_happens_the_interval_is_as_told() -> None:
    """The interval does not depend on how many jobs wait."""
    pace = RoundInterval(1.0)
    for second in range(3):
        pace.count_changes(jobs(range(16), range(16, 500)), float(second))
    assert pace.every_s(FULL, took_s=0.1) == 1.0


def test_while_jobs_come_and_go_rounds_follow_each_other_sooner() -> None:
    """About as often as changes happen, and at most five times as often as configured."""
    pace = RoundInterval(1.0)
    pace.count_changes(jobs(range(16), range(16, 100)), 0.0)
    pace.count_changes(jobs(range(4, 20), range(20, 100)), 1.0)  # 4 ended, 4 began
    assert pace.every_s(FULL, took_s=0.01) == pytest.approx(5 / 8)
    pace.count_changes(jobs(range(20, 36), range(36, 100)), 2.0)
    assert pace.every_s(FULL, took_s=0.01) == pytest.approx(0.2)


def test_what_happened_long_ago_is_no_reason_to_hurry() -> None:
    """A burst of submissions is over after some seconds."""
    pace = RoundInterval(1.0)
    pace.count_changes({}, 0.0)
    pace.count_changes(jobs(range(16), range(16, 100)), 1.0)
    pace.count_changes(jobs(range(16), range(16, 100)), 10.0)
    assert pace.every_s(FULL, took_s=0.01) == 1.0


def test_rounds_that_take_long_leave_slurm_time_in_between() -> None:
    """They take a third of the time at most by default."""
    pace = RoundInterval(1.0)
    pace.count_changes(jobs(range(16), range(16, 600)), 0.0)
    pace.count_changes(jobs(range(16, 32), range(32, 600)), 0.5)
    assert pace.every_s(FULL, took_s=0.2) == pytest.approx(0.6)
    assert pace.every_s(FULL, took_s=0.7) == 1.0


def test_a_job_on_idle_gpus_is_seen_soon() -> None:
    """With an empty queue a poll is cheap, and a job submitted now waits for the next one."""
    pace = RoundInterval(1.0)
    pace.count_changes(jobs(range(3), range(0)), 0.0)
    assert pace.every_s(IDLE, took_s=0.01) == pytest.approx(0.2)
    assert pace.every_s(IDLE, took_s=0.05) == pytest.approx(0.5)


def test_an_operator_who_wants_few_rounds_gets_few() -> None:
    """The shortest interval is a fifth of the configured one."""
    pace = RoundInterval(30.0)
    pace.count_changes(jobs(range(16), range(16, 100)), 0.0)
    pace.count_changes(jobs(range(16, 32), range(32, 100)), 0.5)
    assert pace.every_s(FULL, took_s=0.01) == pytest.approx(6.0)
