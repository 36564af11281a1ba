"""Promises of the figures of a simulation, checked by hand."""

import numpy as np
import pytest

from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.schedule.engine import EngineSettings, Simulation, SimulationResult
from wattloop.schedule.jobs import JobTable
from wattloop.schedule.metrics import compare, metrics_of, spread
from wattloop.schedule.metrics.curves import power_curve
from wattloop.schedule.metrics.metrics import jain
from wattloop.schedule.policies.fifo import Fifo
from wattloop.schedule.step_function import StepFunction


def simulated(jobs: JobTable, **settings: object) -> SimulationResult:
    """Simulate FIFO on two GPUs."""
    cluster = small_cluster()
    return Simulation(
        cluster,
        jobs,
        Fifo(),
        truth=PlainOracle(cluster),
        settings=EngineSettings(**settings),  # type: ignore[arg-type] # each test names its own
    ).run()


def test_energy_is_what_was_drawn_at_work_and_idle() -> None:
    """Two GPUs, one job of 100 s at 300 W: 100 s x (300 + 50) W."""
    found = metrics_of(simulated(jobs_of([(0.0, 100.0)])))
    assert found.active_kwh == pytest.approx(100 * 300 / 3.6e6)
    assert found.idle_kwh == pytest.approx(100 * 50 / 3.6e6)
    assert found.energy_kwh == pytest.approx(100 * 350 / 3.6e6)
    assert found.utilisation == {"a100": pytest.approx(0.5)}
    assert found.peak_power_w == pytest.approx(350.0)


def test_completion_times_count_from_arrival() -> None:
    """Three jobs of 100 s on two GPUs: the third waits for the first."""
    found = metrics_of(simulated(jobs_of([(0.0, 100.0), (10.0, 100.0), (20.0, 100.0)])))
    assert found.jct_mean_s == pytest.approx((100 + 100 + 180) / 3)
    assert found.queue_mean_s == pytest.approx(80 / 3)
    assert found.makespan_s == pytest.approx(200.0)


def test_jobs_cut_off_by_the_horizon_are_unfinished_and_have_an_age() -> None:
    """A policy gains nothing in `age_mean_s` by leaving jobs undone."""
    found = metrics_of(simulated(jobs_of([(0.0, 100.0), (0.0, 900.0)]), horizon_s=500.0))
    assert (found.jobs_done, found.jobs_unfinished) == (1, 1)
    assert found.jct_mean_s == pytest.approx(100.0)
    assert found.age_mean_s == pytest.approx(300.0)
    assert found.throughput_per_h == pytest.approx(1 / 500 * 3600)


def test_a_deadline_is_missed_when_late_or_overdue_and_open_when_still_to_come() -> None:
    """Four urgent jobs: in time, late, overdue at the end, not yet due at the end."""
    jobs = jobs_of(
        [(0.0, 100.0), (0.0, 100.0), (1.0, 5_000.0), (1.0, 5_000.0)],
        deadlines_s=[100.0, 99.0, 900.0, 9_000.0],
    )
    found = metrics_of(simulated(jobs, horizon_s=1_000.0))
    assert (found.deadlines, found.misses) == (3, 2)
    assert found.miss_rate == pytest.approx(2 / 3)


def test_without_deadlines_there_is_no_miss_rate() -> None:
    """A missing rate is not zero."""
    assert metrics_of(simulated(jobs_of([(0.0, 1.0)]))).miss_rate is None


def test_nothing_at_all_has_figures_too() -> None:
    """An empty table of jobs ends at once, without energy and without means."""
    found = metrics_of(simulated(jobs_of([])))
    assert (found.jobs, found.energy_kwh, found.jct_mean_s) == (0, 0.0, None)


def test_time_over_budget_is_counted() -> None:
    """350 W against a budget of 300 W for 100 s."""
    found = metrics_of(simulated(jobs_of([(0.0, 100.0)]), budget_w=StepFunction.constant(300.0)))
    assert found.over_budget_s == pytest.approx(100.0)
    assert found.over_budget_kwh == pytest.approx(100 * 50 / 3.6e6)


def test_carbon_follows_the_hour() -> None:
    """350 W for 50 s at 100 g/kWh, then 50 s at 300 g/kWh."""
    steps = StepFunction((0.0, 50.0), (100.0, 300.0))
    found = metrics_of(simulated(jobs_of([(0.0, 100.0)]), carbon_g_per_kwh=steps))
    assert found.carbon_kg == pytest.approx(350 * 50 / 3.6e6 * 0.4)


def test_jains_index_at_its_ends() -> None:
    """Equal shares give 1; one of four with all of it gives 1/4."""
    assert jain(np.array([3.0, 3.0, 3.0])) == pytest.approx(1.0)
    assert jain(np.array([8.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert jain(np.array([])) is None


def test_the_curve_has_the_energy_of_the_simulation_and_its_peak() -> None:
    """Bins add up, and a peak within a bin is not averaged away."""
    result = simulated(jobs_of([(0.0, 100.0), (95.0, 5.0), (300.0, 10.0)]))
    curve = power_curve(result, bins=7)
    width_s = result.end_s / 7
    assert (curve.mean_w * width_s).sum() == pytest.approx(result.total_j)
    assert curve.max_w.max() == pytest.approx(600.0)
    assert curve.mean_w.max() < 600.0
    assert curve.max_w[4] == pytest.approx(100.0)


def test_a_difference_from_a_negative_cost_has_no_percentage() -> None:
    """-2 to -3 is 1 less, not 50% more."""
    found = compare([-2.0, -4.0], [-3.0, -5.0])
    assert found is not None
    assert (found.mean, found.relative, found.relative_half_width) == (-1.0, None, None)


def test_differences_are_paired_by_seed() -> None:
    """Seeds differ a lot, and policies a little: only the pairs show it."""
    a = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0]
    b = [value - 1.0 - 0.01 * number for number, value in enumerate(a)]
    found = compare(a, b)
    assert found is not None and found.half_width is not None
    assert found.mean == pytest.approx(-1.03)
    assert found.half_width < 0.03
    assert found.p_value == pytest.approx(2 / 2**7)  # only equal signs are as extreme
    assert found.relative == pytest.approx(-1.03 / 40)


def test_one_seed_has_no_interval_and_no_test() -> None:
    """Its spread is unknown."""
    found = compare([1.0], [2.0])
    assert found is not None
    assert (found.half_width, found.p_value) == (None, None)
    assert spread([None, 1.0, 3.0]) == spread([1.0, 3.0])


def test_chance_gives_a_large_p_value() -> None:
    """Differences of both signs are within chance; many seeds use the sampled test."""
    a = [0.0] * 20
    b = [(-1.0) ** number for number in range(20)]
    found = compare(a, b)
    assert found is not None and found.p_value is not None
    assert found.p_value > 0.9
