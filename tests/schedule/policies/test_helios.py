"""Promises of Helios: less energy, caps that follow queue, price and budget, and met deadlines."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.policies.two_types import MALLEABLE, WrongOracle, random_jobs, two_types
from tests.schedule.slurm.slurm_world import job, site, view
from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.schedule.actions import Start
from wattloop.schedule.cluster import SleepState
from wattloop.schedule.driver.inventory import SchedulerNode
from wattloop.schedule.engine import EngineSettings, Simulation
from wattloop.schedule.engine.event_log import EventKind
from wattloop.schedule.engine.result import SimulationResult
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.jobs import JobKind, JobTable
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.charon import BudgetedPollux, Charon
from wattloop.schedule.policies.helios import Helios
from wattloop.schedule.policies.pollux import Pollux
from wattloop.schedule.step_function import StepFunction
from wattloop.schedule.view import ClusterView

CAPPED = JobKind("toy", caps=(1.0, 0.75, 0.5, 0.25))


def _one_gpu(jobs: JobTable, policy: Policy | None = None, **rules: object) -> SimulationResult:
    """Return an A100 of 300 W whose speed is the root of its cap."""
    cluster = small_cluster(gpus_per_node=1)
    settings = EngineSettings(strict=True, checks=True, **rules)  # type: ignore[arg-type] # any of them
    policy = policy or Helios()
    return Simulation(cluster, jobs, policy, truth=PlainOracle(cluster), settings=settings).run()


def _caps(done: SimulationResult, what: EventKind) -> list[float]:
    oracle = PlainOracle(done.cluster)
    caps = oracle.options(CAPPED).cap_w / 400
    return [float(caps[event.detail]) for event in done.log if event.what == what]


def test_a_job_alone_runs_under_a_cap_and_waiting_jobs_lift_it() -> None:
    """Its cap rises when other jobs come, and falls when they have ended."""
    done = _one_gpu(jobs_of([(0, 1000), (100, 10), (100, 10), (100, 10)], kind=CAPPED))
    alone, *_ = _caps(done, EventKind.START)
    assert alone < 1.0
    assert _caps(done, EventKind.RECAP)[0] > alone


def test_time_that_is_worth_nothing_takes_the_lowest_cap_and_dear_time_the_highest() -> None:
    """This is the one parameter for users."""
    jobs = jobs_of([(0, 100)], kind=CAPPED)
    assert _caps(_one_gpu(jobs, Helios(time_value=0)), EventKind.START) == [0.25]
    assert _caps(_one_gpu(jobs, Helios(time_value=20)), EventKind.START) == [1.0]


def test_dirty_hours_lower_the_cap_and_clean_ones_raise_it() -> None:
    """Carbon intensity is a price of joules: 12 h at twice the mean, 12 h at next to nothing."""
    day = StepFunction((0.0, 43_200.0), (400.0, 10.0), 86_400.0)
    done = _one_gpu(jobs_of([(0, 60_000)], kind=CAPPED), carbon_g_per_kwh=day)
    before, after = _caps(done, EventKind.START)[0], _caps(done, EventKind.RECAP)[0]
    assert before < after


def test_an_urgent_job_has_the_cheapest_cap_unless_its_deadline_is_tight() -> None:
    """Half the power takes 1.41 times as long; a tight deadline is less than 3 times the run
    time.
    """
    kind = JobKind("toy", caps=(1.0, 0.5))
    for factor, cap in ((4.0, 0.5), (1.5, 1.0), (1.2, 1.0)):
        jobs = jobs_of([(0, 100)], kind=kind, deadlines_s=[100 * factor])
        done = _one_gpu(jobs, Helios(time_value=0))
        assert done.finished_s[0] == pytest.approx(100 / np.sqrt(cap))


def test_costs_of_an_empty_queue_are_those_of_no_waiting_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job that runs alone has an empty queue; with -1 jobs costs were complex numbers."""
    asked = list[float]()

    def watched(self: Helios, view: ClusterView, waiting: float, value: float | None = None) -> Any:
        asked.append(waiting)
        return objective(self, view, waiting, value)

    objective = Helios._objective
    monkeypatch.setattr(Helios, "_objective", watched)
    _one_gpu(jobs_of([(0, 100), (500, 100)], kind=CAPPED, deadlines_s=[150, math.inf]))
    assert min(asked) == 0


def test_a_budget_that_falls_lowers_caps_instead_of_stopping_jobs() -> None:
    """The job continues more slowly, and the budget holds to the watt."""
    # estimated to end before the fall, but slowed by a second job on the node
    cluster = small_cluster(gpus_per_node=2)
    rules = EngineSettings(
        budget_w=StepFunction((0.0, 300.0), (700.0, 330.0)),
        interference=0.9,
        strict=True,
        checks=True,
    )
    jobs = jobs_of([(0, 100), (0, 100)], kind=CAPPED)
    done = Simulation(
        cluster, jobs, Helios(time_value=20), truth=PlainOracle(cluster), settings=rules
    ).run()
    assert done.over_budget_s == 0
    assert done.is_done.all()


def test_it_needs_less_energy_than_pollux_on_the_same_jobs() -> None:
    """It is at most a third slower, at any load of this cluster."""
    for rate_per_s in (0.002, 0.01):
        jobs = random_jobs(1, 60, rate_per_s, urgent=0.0)
        runs = [
            Simulation(
                two_types(), jobs, policy, truth=WrongOracle(), oracle=WrongOracle(0.1)
            ).run()
            for policy in (Helios(), Pollux())
        ]
        active_j = [run.active_j for run in runs]
        jct_s = [float((run.finished_s - jobs.arrival_s).mean()) for run in runs]
        assert active_j[0] < 0.93 * active_j[1]
        assert jct_s[0] < 1.34 * jct_s[1]


class _PickyOracle(PlainOracle):
    """An oracle with one kind that is five times as fast on an H100, and one that gains little."""

    def options(self, kind: JobKind) -> PlacementOptions:
        found = super().options(kind)
        faster = {"picky": 5.0, "easy": 1.5}[kind.model]
        return replace(
            found, sample_s=found.sample_s / np.where(found.type_index == 1, faster, 1.0)
        )


def test_fast_gpus_go_to_the_job_that_loses_most_on_slow_ones() -> None:
    """Both wait for the H100s; the one that takes 167 s there would need 250 s elsewhere."""
    cluster = two_types()
    jobs = replace(
        jobs_of([(0, 400), (0, 40_000), (1, 1000), (1, 4000)]),
        kinds=(
            JobKind("easy", gpus=(4,)),
            JobKind("picky", gpus=(4,)),
            JobKind("easy", gpus=(4,), types=("a100",)),
        ),
        kind=np.array([0, 2, 0, 1]),
    )
    done = Simulation(cluster, jobs, Helios(), truth=_PickyOracle(cluster)).run()
    assert done.started_s[1] == 0  # the A100s are in use all the time
    assert done.started_s[3] < done.started_s[2]


def test_a_job_waits_for_gpus_that_gain_it_more_than_the_wait_costs() -> None:
    """Five times as fast on H100s, it leaves A100s idle for a minute but not for hours."""
    cluster = two_types()
    for busy_s, waits in ((60.0, True), (40_000.0, False)):
        jobs = replace(
            jobs_of([(0, busy_s * 4 * 1.5), (1, 4000)]),
            kinds=(JobKind("easy", gpus=(4,), types=("h100",)), JobKind("picky", gpus=(4,))),
            kind=np.array([0, 1]),
        )
        done = Simulation(cluster, jobs, Helios(), truth=_PickyOracle(cluster)).run()
        assert (done.started_s[1] > 30.0) == waits


def test_the_job_that_gains_least_by_waiting_starts_on_the_slow_gpus() -> None:
    """The H100s are taken for 240 s; the job that is five times as fast there is next in line."""
    jobs = replace(
        jobs_of([(0, 1440), (1, 1000), (1, 1000)]),
        kinds=(
            JobKind("easy", gpus=(4,), types=("h100",)),
            JobKind("easy", gpus=(4,)),
            JobKind("picky", gpus=(4,)),
        ),
        kind=np.array([0, 1, 2]),
    )
    cluster = two_types()
    done = Simulation(cluster, jobs, Helios(), truth=_PickyOracle(cluster)).run()
    assert done.started_s.tolist() == [0, 1, 240]


class _HopefulOracle(_PickyOracle):
    """An oracle that estimates a hundredth of the true time on the H100s."""

    def options(self, kind: JobKind) -> PlacementOptions:
        found = super().options(kind)
        if kind.types != ("h100",):
            return found
        return replace(found, sample_s=found.sample_s / 100)


def test_nobody_waits_for_ever_for_a_job_that_does_not_end_when_it_was_believed_to() -> None:
    """An overdue job is estimated to take as long again, so the A100s are used in the end."""
    cluster = two_types()
    jobs = replace(
        jobs_of([(0, 240_000.0), (1, 4000)]),
        kinds=(JobKind("easy", gpus=(4,), types=("h100",)), JobKind("picky", gpus=(4,))),
        kind=np.array([0, 1]),
    )
    done = Simulation(
        cluster, jobs, Helios(), truth=_PickyOracle(cluster), oracle=_HopefulOracle(cluster)
    ).run()
    assert done.started_s[1] < 0.1 * done.finished_s[0]


def test_nobody_waits_for_ever_behind_ever_new_jobs_that_go_nowhere_else() -> None:
    """Short jobs that run only on H100s keep these full: the waiting job takes A100s in the end."""
    cluster = two_types()
    jobs = replace(
        jobs_of([(0, 360.0), (1, 40_000.0), *((2 + 50.0 * turn, 360.0) for turn in range(400))]),
        kinds=(JobKind("easy", gpus=(4,), types=("h100",)), JobKind("picky", gpus=(4,))),
        kind=np.array([0, 1] + [0] * 400),
    )
    done = Simulation(cluster, jobs, Helios(), truth=_PickyOracle(cluster)).run()
    assert 1 < done.started_s[1] <= 1 + 40_000 / 4 + 60 < done.finished_s.max()


def test_where_time_is_worth_nothing_nobody_waits_for_ever_either() -> None:
    """A wait costs nothing then and could be endless: it ends after 4000 s / 4 GPUs."""
    cluster = two_types()
    jobs = replace(
        jobs_of([(0, 240_000.0), (1, 4000)]),
        kinds=(JobKind("easy", gpus=(4,), types=("h100",)), JobKind("picky", gpus=(4,))),
        kind=np.array([0, 1]),
    )
    done = Simulation(cluster, jobs, Helios(time_value=0), truth=_PickyOracle(cluster)).run()
    assert done.started_s[1] == 1 + 4000 / 4


class _HungryOracle(_PickyOracle):
    """An oracle whose H100s draw twice as much."""

    def options(self, kind: JobKind) -> PlacementOptions:
        found = super().options(kind)
        return replace(found, power_w=found.power_w * np.where(found.type_index == 1, 2.0, 1.0))


def test_nobody_waits_for_gpus_that_the_budget_will_never_let_him_have() -> None:
    """Four H100s draw 2,400 W, and 2,200 W do not allow that even on an idle cluster."""
    cluster = two_types()
    jobs = replace(
        jobs_of([(0, 90.0), (1, 4000)]),
        kinds=(JobKind("easy", types=("h100",)), JobKind("picky", gpus=(4,))),
        kind=np.array([0, 1]),
    )
    for budget_w, waits in ((2200.0, False), (5000.0, True)):
        settings = EngineSettings(budget_w=StepFunction.constant(budget_w), strict=True)
        truth = _HungryOracle(cluster)
        done = Simulation(cluster, jobs, Helios(), truth=truth, settings=settings).run()
        assert (done.started_s[1] > 1) == waits


class _CoolOracle(PlainOracle):
    """An oracle whose jobs draw no more than idle GPUs."""

    def options(self, kind: JobKind) -> PlacementOptions:
        found = super().options(kind)
        return replace(found, power_w=40.0 * found.gpus)


def test_jobs_that_cost_nothing_on_any_type_are_started() -> None:
    """A ratio of zero costs does not make a job wait."""
    cluster = two_types()
    jobs = jobs_of([(0, 100)] * 3, kind=JobKind("toy", gpus=(4,)))
    done = Simulation(cluster, jobs, Helios(), truth=_CoolOracle(cluster)).run()
    assert done.is_done.all()


def test_a_user_that_had_more_waits_longer() -> None:
    """Of two equal waiting jobs, the one of the user with less past use starts first."""
    jobs = jobs_of([(0, 1000), (10, 100), (10, 100)], users=[0, 0, 1])
    started_s = _one_gpu(jobs).started_s
    assert started_s[2] < started_s[1]
    started_s = _one_gpu(jobs, Helios(fairness=0)).started_s
    assert started_s[1] < started_s[2]


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    budgets_w=st.lists(st.floats(1050, 4000), min_size=1, max_size=4),
    round_s=st.sampled_from([None, 1.0]),
)
def test_never_above_budgets_that_change_with_estimates_off_by_a_tenth(
    seed: int, budgets_w: list[float], round_s: float | None
) -> None:
    """Realised power counts, under any noise, with caps that rise and fall."""
    times_s = tuple(600.5 * number for number in range(len(budgets_w)))
    done = Simulation(
        two_types(),
        random_jobs(seed, 20),
        Helios(),
        truth=WrongOracle(),
        oracle=WrongOracle(0.1, seed),
        settings=EngineSettings(
            budget_w=StepFunction(times_s, tuple(budgets_w), 600.5 * len(budgets_w)),
            round_s=round_s,
            horizon_s=20_000,
            strict=True,
            checks=True,
        ),
    ).run()
    assert done.over_budget_s == 0
    assert done.is_done.sum() > 0


def test_it_sees_caps_and_uses_several() -> None:
    """Placement over GPUs, type and cap."""
    done = Simulation(two_types(), random_jobs(2, 40), Helios(), truth=WrongOracle()).run()
    options = WrongOracle().options(MALLEABLE)
    starts = [
        e.detail for e in done.log if e.what == EventKind.START and done.jobs.kind[e.job] == 0
    ]
    assert len({float(options.cap_w[option]) for option in starts}) > 1


@pytest.mark.parametrize("max_delay", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("rate_per_s", [0.005, 0.02, 0.04])
def test_the_promised_delay_is_kept_on_any_trace(rate_per_s: float, max_delay: float) -> None:
    """On idle, busy and crowded clusters jobs take at most so much longer than at full power."""
    for seed in range(3):
        jobs = random_jobs(seed, 120, rate_per_s)
        means_s, energy_j = [], []
        for delay in (0.0, max_delay):
            done = Simulation(two_types(), jobs, Helios(max_delay=delay), truth=WrongOracle()).run()
            means_s.append(float((done.finished_s - jobs.arrival_s).mean()))
            energy_j.append(done.active_j)
        assert means_s[1] <= (1 + max_delay) * means_s[0]
        assert energy_j[1] <= energy_j[0] * 1.005


def test_within_the_promise_jobs_are_slow_also_on_a_crowded_cluster() -> None:
    """Jobs wait as well, but are not late on average: it saves a twentieth."""
    jobs = random_jobs(0, 120, 0.04)
    done = [
        Simulation(two_types(), jobs, Helios(max_delay=each), truth=WrongOracle()).run()
        for each in (0.0, 0.3)
    ]
    assert done[1].active_j < 0.95 * done[0].active_j


MANY = 300


def _trace(what: str, seed: int) -> JobTable:
    """Return jobs that come one by one at some rate, ten at a time, or with a few very long
    ones.
    """
    rates = {"idle": 0.004, "busy": 0.012, "crowded": 0.016}
    jobs = random_jobs(seed, MANY, rates.get(what, 0.006))
    if what in rates:
        return jobs
    jobs = replace(jobs, deadline_s=np.full(MANY, np.inf))
    if what == "bursts":
        return replace(jobs, arrival_s=np.repeat(jobs.arrival_s[::10], 10))
    dice = np.random.default_rng(seed)
    return replace(jobs, work=np.minimum(200 * (1 + dice.pareto(1.3, MANY)), 50_000))


def _mean_s(jobs: JobTable, policy: Policy, seed: int) -> float:
    done = Simulation(
        two_types(), jobs, policy, truth=WrongOracle(), oracle=WrongOracle(0.1, seed)
    ).run()
    return float((done.finished_s - jobs.arrival_s).mean())


@pytest.mark.parametrize("seed", [5, 6])
@pytest.mark.parametrize("what", ["idle", "busy", "crowded", "bursts", "a long tail"])
def test_jobs_are_on_average_no_later_than_promised(what: str, seed: int) -> None:
    """15% over Pollux, and a tenth of that as the tolerance for a few hundred jobs."""
    jobs = _trace(what, seed)
    assert _mean_s(jobs, Helios(), seed) <= (1 + 1.1 * 0.15) * _mean_s(jobs, Pollux(), seed)


def test_without_a_promise_jobs_on_a_busy_cluster_are_later() -> None:
    """So the realised delay is what the promise depends on."""
    jobs = _trace("busy", 5)
    least_s = _mean_s(jobs, Pollux(), 5)
    assert _mean_s(jobs, Helios(mean_delay=None), 5) > 1.2 * least_s


@pytest.mark.parametrize(
    ("what", "budget_w", "needs_it"),
    [
        ("idle", 3300.0, False),
        ("bursts", 3300.0, False),
        ("busy", 3800.0, True),
        ("a long tail", 3800.0, True),
        ("a long tail", 4200.0, True),
    ],
)
def test_under_a_budget_jobs_are_no_later_than_pollux_makes_them_within_it(
    what: str, budget_w: float, needs_it: bool
) -> None:
    """The promise, of a reference that has the same power; some worlds break it without."""
    jobs, rules = _trace(what, 5), EngineSettings(budget_w=StepFunction.constant(budget_w))
    found = []
    for policy in (BudgetedPollux(), Helios(), *([Helios(mean_delay=None)] if needs_it else ())):
        oracle = WrongOracle(0.1, 5)
        simulation = Simulation(
            two_types(), jobs, policy, truth=WrongOracle(), oracle=oracle, settings=rules
        )
        done = simulation.run()
        assert done.over_budget_s == 0
        found.append(float((done.finished_s - jobs.arrival_s).mean()))
    least_s, promised_s, *without_s = found
    assert promised_s <= (1 + 1.1 * 0.15) * least_s
    assert all(mean_s > 1.2 * least_s for mean_s in without_s)


def test_the_reference_under_a_budget_looks_at_eight_jobs() -> None:
    """Of equal ones, too, such as those of an array: it costs as much time as Helios otherwise."""
    place = site(
        budget_w=1e5,
        nodes=tuple(SchedulerNode(f"n{i}", "a100", 4, ("gpu",), True) for i in (1, 2, 3)),
    )
    seen = view(place, *(job(str(number)) for number in range(12))).view
    starts = BudgetedPollux().decide(seen)
    assert len(starts) == 8
    assert all(isinstance(each, Start) for each in starts)


@pytest.mark.parametrize("policy", [Helios(), Charon(), BudgetedPollux()])
@pytest.mark.parametrize("budget_w", [math.inf, 3000.0])
def test_a_job_that_no_node_can_run_alone_in_the_queue_of_a_driver(
    policy: Policy, budget_w: float
) -> None:
    """The policy starts nothing; after five errors a driver would release all jobs and end."""
    wide = job("wide", gpus=16, gpus_per_node=4)
    assert list(policy.decide(view(site(budget_w), wide).view)) == []
    assert len(policy.decide(view(site(budget_w), wide, job("one")).view)) == 1


def test_the_reference_is_pollux_where_there_is_no_budget() -> None:
    """Start by start."""
    jobs = random_jobs(3, 60, 0.02)
    starts = [
        Simulation(two_types(), jobs, policy, truth=WrongOracle()).run().started_s
        for policy in (Pollux(), BudgetedPollux())
    ]
    assert np.array_equal(*starts)


def test_green_hours_are_stronger_than_the_promise() -> None:
    """Jobs that wait for green hours are late on purpose."""
    assert Helios(delay="6 h").references() == ()


def test_a_deadline_counts_the_time_in_which_gpus_wake_up() -> None:
    """A job with little time to spare runs under a higher cap on GPUs that sleep."""
    asleep = SleepState("doze", 10.0, enter_s=2.0, exit_s=28.0, enter_j=0, exit_j=0, after_s=10.0)
    cluster = small_cluster(gpus_per_node=1)
    types = tuple(replace(each, sleeps=(asleep,)) for each in cluster.types)
    cluster = replace(cluster, types=types)
    kind = JobKind("toy", caps=(1.0, 0.1))  # 100 and 316 s
    jobs = jobs_of([(1000, 100)], kind=kind, deadlines_s=[1000 + 330])
    policy = Helios(time_value=0)
    policy.sleeps = True
    done = Simulation(cluster, jobs, policy, truth=PlainOracle(cluster)).run()
    assert done.finished_s[0] <= jobs.deadline_s[0]
