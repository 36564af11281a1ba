"""Promise: in a driver, too, a policy sees how late its jobs are against its references."""

from dataclasses import replace

import numpy as np
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
        self.down: tuple[str, ...] = ()

    def at(self, time_s: float, *jobs: SchedulerJob) -> RealisedDelay:
        live = view(self.place, *jobs, now_s=NOW_S + time_s, down=self.down)
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
    rounds.at(2459, runs("1", 600))
    rounds.at(2461)
    found = rounds.at(2600)
    assert found.own == JobAges(0, 2460)
    assert found.references[0].present == 0
    assert found.references[0].age_s == pytest.approx(1860, abs=1)


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
    assert rounds.at(899, *old, next_one).references[0] == JobAges(3, 3 * 899)
    rounds.at(901, next_one)
    found = rounds.at(1200, next_one)
    assert found.references[0] == JobAges(1, pytest.approx(900 + 900 + 1200))


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
    assert rounds.at(240).references[0].age_s == pytest.approx(90, abs=2)  # half of a round more


def test_the_references_are_computed_once_a_minute() -> None:
    """A round takes milliseconds."""
    rounds = Rounds()
    first = rounds.at(0, waits("1"))
    assert rounds.at(59, waits("1")) is first
    assert rounds.at(60, waits("1")) is not first


def test_jobs_of_the_same_schedule_are_never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not after a record began again on a full cluster, nor by when a round sees an end."""
    monkeypatch.setattr("wattloop.schedule.driver.view.MOST_ENDED", 20)
    rounds, each_s, own, sizes = Rounds(), 1800.0, list[float](), list[int]()
    free_s, jobs = [0.0] * 8, list[tuple[float, float, int]]()
    for number in range(160):  # one every 200 s, so that the queue grows: 225 s keep 8 GPUs busy
        gpu = min(range(8), key=free_s.__getitem__)
        start_s = max(200.0 * number, free_s[gpu])
        free_s[gpu] = start_s + each_s
        jobs.append((200.0 * number, start_s, gpu))
    for time_s in np.arange(0, 200.0 * 160, 70):
        present = []
        for number, (submit_s, start_s, gpu) in enumerate(jobs):
            if submit_s <= time_s < start_s + each_s:
                found = runs(str(number), start_s, f"n{1 + gpu // 4}")
                if start_s > time_s:
                    found = waits(str(number))
                submitted_s = NOW_S + submit_s
                present.append(replace(found, submit_s=submitted_s, time_limit_s=each_s))
        delay = rounds.at(float(time_s), *present)
        sizes.append(delay.jobs)
        if time_s > 10_000 and delay.jobs > len(present) + 10:
            own.append(delay.own.age_s / delay.references[0].age_s)
    assert max(sizes) < 60  # a driver that runs for months stays small
    assert max(own) == pytest.approx(1, abs=0.03)


def test_a_clock_that_is_set_back_begins_a_new_record() -> None:
    """Jobs would end before they arrive otherwise, which no simulation accepts."""
    rounds = Rounds()
    rounds.at(60, waits("1"), runs("2", 30))
    rounds.at(120, waits("1"), runs("2", 30))
    found = rounds.at(-3600, waits("1"))
    assert found == RealisedDelay(1, JobAges(1, 0), (JobAges(1, 0),))


def test_a_new_record_begins_with_the_nodes_that_are_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference cannot use them either."""
    monkeypatch.setattr("wattloop.schedule.driver.view.MOST_ENDED", 1)
    rounds, wide = Rounds(), waits("wide", gpus=8, gpus_per_node=4)
    rounds.down = ("n2",)
    rounds.at(0, runs("1", -60), wide)
    rounds.at(60, wide)
    assert rounds.at(120, wide).jobs == 1  # "1" is in the first record
    assert rounds.at(2 * HOUR_S, wide).references[0].present == 1


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
