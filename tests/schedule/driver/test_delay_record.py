"""Promise: in a driver, too, a policy sees how late its jobs are against its references."""

from dataclasses import replace

import pytest

from tests.schedule.slurm.slurm_world import NOW_S, job, seen, site, view
from wattloop.schedule.driver.inventory import SchedulerJob
from wattloop.schedule.driver.managed_cluster import ManagedCluster
from wattloop.schedule.driver.view import DelayRecord
from wattloop.schedule.policies.charon import BudgetedPollux
from wattloop.schedule.policies.helios import Helios
from wattloop.schedule.view import JobAges, RealisedDelay

HOUR_S = 3600.0


class Rounds:
    """Rounds of a driver on two nodes of four GPUs, at times after `NOW_S`."""

    def __init__(self, place: ManagedCluster | None = None) -> None:
        self.place = place or site()
        self.record = DelayRecord((BudgetedPollux(),))

    def at(self, time_s: float, *jobs: SchedulerJob) -> RealisedDelay:
        live = view(self.place, *jobs, now_s=NOW_S + time_s)
        found = self.record.update(live, seen(self.place, *jobs), self.place)
        assert found is not None
        return found


def waits(key: str, **facts: object) -> SchedulerJob:
    return job(key, submit_s=NOW_S, **facts)


def runs(key: str, since_s: float, node: str = "n1", gpus: int = 1) -> SchedulerJob:
    placed = ((node, gpus),)
    return job(key, "RUNNING", submit_s=NOW_S, start_s=NOW_S + since_s, placed=placed, gpus=gpus)


def test_a_job_that_ends_has_the_work_that_it_took() -> None:
    """Half of its time limit: the reference, which had started it at once, is corrected."""
    rounds = Rounds()
    rounds.at(0, waits("1"))
    late = rounds.at(600, waits("1"))
    assert late == RealisedDelay(1, JobAges(1, 600), (JobAges(1, 600),))
    rounds.at(601, runs("1", 600))
    rounds.at(2400, runs("1", 600))
    found = rounds.at(2460)
    assert found.own == JobAges(0, 2460)
    assert found.references[0].present == 0
    assert found.references[0].age_s == pytest.approx(1800, abs=2)


def test_a_job_that_is_cancelled_while_it_waits_does_not_count() -> None:
    """Neither here nor there."""
    rounds = Rounds()
    rounds.at(0, waits("1"), waits("2"))
    assert rounds.at(120, waits("1")) == RealisedDelay(1, JobAges(1, 120), (JobAges(1, 120),))


def test_what_ran_before_the_driver_is_not_run_again_by_the_reference() -> None:
    """Jobs that have had 45 minutes of their hour end after 15 more; the next one starts then."""
    rounds = Rounds()
    old = [runs("1", -2700, "n1", 4), runs("2", -2700, "n2", 4)]
    rounds.at(0, *old, waits("3", gpus=4, gpus_per_node=4))
    next_one = waits("3", gpus=4, gpus_per_node=4)
    assert rounds.at(840, *old, next_one).references[0] == JobAges(3, 3 * 840)
    found = rounds.at(900, next_one)
    assert found.references[0].age_s == pytest.approx(840 + 840 + 900)
    found = rounds.at(1200, next_one)
    assert found.references[0] == JobAges(1, pytest.approx(840 + 840 + 1200))


def test_the_reference_has_the_same_budget() -> None:
    """With power for one job it starts the second after the first, too."""
    place = site()
    idle_w, full_w = place.known.cluster.idle_w, place.known.cluster.types[0].tdp_w
    rounds = Rounds(site(budget_w=idle_w + 1.2 * full_w))
    both = [waits("1"), waits("2")]
    rounds.at(0, *both)
    assert rounds.at(HOUR_S + 60, *both).references[0] == JobAges(1, 2 * HOUR_S + 60)


def test_a_preempted_job_begins_again() -> None:
    """What it had done is lost; the reference does not count it as work."""
    rounds = Rounds()
    rounds.at(0, waits("1"))
    rounds.at(60, runs("1", 0))
    rounds.at(90, replace(runs("1", 0), state="COMPLETING"))
    assert rounds.at(120, waits("1")).own == JobAges(1, 120)
    rounds.at(180, runs("1", 120))
    assert rounds.at(240).references[0].age_s == pytest.approx(60, abs=2)


def test_the_references_are_computed_once_a_minute() -> None:
    """A round takes milliseconds."""
    rounds = Rounds()
    first = rounds.at(0, waits("1"))
    assert rounds.at(59, waits("1")) is first
    assert rounds.at(60, waits("1")) is not first


def test_old_jobs_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a driver that runs for months stays small; jobs that are there stay."""
    monkeypatch.setattr("wattloop.schedule.driver.view.MOST_RECORDED", 10)
    rounds = Rounds()
    kept = waits("kept")
    for number in range(50):
        rounds.at(float(number), kept, runs(str(number), number - 0.5))
    found = rounds.at(1e4, kept)
    assert 10 <= found.jobs <= 20
    assert found.own.present == 1


def test_a_late_job_runs_at_full_power_in_a_driver() -> None:
    """Helios reads the driver's record as it reads the simulator's."""
    hurries = []
    for time_s in (0.0, 7200.0):  # the driver starts none of them; the reference ends all
        rounds, policy = Rounds(), Helios()
        waiting = [waits(str(number)) for number in range(8)]
        rounds.at(0, *waiting)
        live = view(rounds.place, *waiting, now_s=NOW_S + time_s)
        live.view.delay = rounds.at(time_s, *waiting)
        policy.decide(live.view)
        hurries.append(policy._hurry)
    assert hurries == [0.0, 1.0]
