"""Promises of the campaign's figures: means over seeds, the budget, and GPUs by their jobs."""

from itertools import pairwise
from typing import Any

import pytest

from tests.schedule.small_world import PlainOracle, jobs_of, small_cluster
from wattloop.report.figures.chart import spec_of
from wattloop.schedule.engine import EngineSettings, Simulation, SimulationResult
from wattloop.schedule.metrics.curves import gpu_allocations, power_curve
from wattloop.schedule.policies.fifo import Fifo
from wattloop.schedule.step_function import StepFunction

pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")

from wattloop.report.figures import campaign
from wattloop.report.figures.campaign import (
    fairness_figure,
    gantt_figure,
    load_figure,
    miss_figure,
    power_figure,
    trade_off_figure,
)

CLUSTER = small_cluster(nodes=2)
TRUTH = PlainOracle(CLUSTER)


def row(policy: str, seed: int, **figures: float | None) -> dict[str, Any]:
    """Return one cell of a campaign."""
    usual = {"energy_kwh": 10.0, "throughput_per_h": 5.0, "jct_mean_s": 60.0, "miss_rate": 0.1}
    return {"policy": policy, "seed": seed, "jain_jct": 1.0, "jain_share": 0.5, **usual, **figures}


def simulated(**settings: Any) -> SimulationResult:
    """Simulate three jobs on two nodes with two GPUs each."""
    jobs = jobs_of([(0.0, 3_600.0), (0.0, 1_800.0), (60.0, 1_800.0)])
    return Simulation(CLUSTER, jobs, Fifo(), truth=TRUTH, settings=EngineSettings(**settings)).run()


def values(chart: Any) -> list[dict[str, Any]]:
    """Return the rows that a chart draws."""
    spec = spec_of(chart)
    (spec, *_) = spec.get("hconcat", [spec])
    layer = spec["layer"][0] if "layer" in spec else spec
    found = (layer.get("data") or spec["data"])["values"]
    assert isinstance(found, list)
    return found


def test_a_point_is_the_mean_of_its_seeds_with_one_standard_deviation() -> None:
    """10 and 14 kWh: mean 12, sd 2.83 both ways."""
    rows = [row("zeus", 0), row("zeus", 1, energy_kwh=14.0), row("fifo", 0)]
    points = values(trade_off_figure(rows, "toy"))
    zeus = next(point for point in points if point["policy"] == "zeus")
    assert zeus["energy_kwh"] == pytest.approx(12.0)
    assert zeus["energy_kwh_high"] - zeus["energy_kwh"] == pytest.approx(2.828, abs=1e-3)
    assert len(points) == 2


def test_a_setting_splits_policies() -> None:
    """Rigid and malleable jobs of one policy are two points with the setting in their names."""
    rows = [row("fifo", 0) | {"jobs": "rigid"}, row("fifo", 0) | {"jobs": "malleable"}]
    labels = {point["label"] for point in values(trade_off_figure(rows, "toy", setting="jobs"))}
    assert labels == {"fifo (rigid)", "fifo (malleable)"}


def test_names_of_points_that_coincide_are_all_readable() -> None:
    """Labels of equally good policies are a line of text apart, inside the chart."""
    rows = [row(f"policy-{number}", 0) for number in range(9)] + [row("far", 0, energy_kwh=20.0)]
    chart = trade_off_figure(rows, "toy")
    spec = spec_of(chart)
    left, right = spec["layer"][2]["encoding"]["x"]["scale"]["domain"]
    bottom, top = spec["layer"][2]["encoding"]["y"]["scale"]["domain"]
    line = 12.9 * (top - bottom) / spec["height"]
    labels = sorted((point["label_x"], point["label_y"]) for point in values(chart)[:9])
    assert all(left <= x <= right and bottom <= y <= top for x, y in labels)
    for one, other in pairwise(labels):
        assert one[0] != other[0] or other[1] - one[1] >= line


def test_every_part_of_the_trade_off_has_the_same_scale() -> None:
    """A single axis that begins at 0 would press all points into a corner."""
    parts = spec_of(trade_off_figure([row("fifo", 0), row("zeus", 0)], "toy"))["layer"]
    scales = [part["encoding"][axis]["scale"] for part in parts for axis in ("x", "y")]
    assert all(scale["zero"] is False and scale["domain"][0] > 0 for scale in scales)


def test_more_points_than_names_fit_have_a_legend() -> None:
    """Six policies at three settings: colours and shapes, no names."""
    rows = [row(f"p{n}", 0) | {"load": load} for n in range(6) for load in ("a", "b", "c")]
    spec = spec_of(trade_off_figure(rows, "toy", setting="load"))
    assert "text" not in {part["mark"]["type"] for part in spec["layer"]}
    assert spec["encoding"]["color"]["legend"] is not None


def test_a_policy_without_throughput_is_no_point() -> None:
    """A missing value is left out, and the others are drawn."""
    rows = [row("fifo", 0, throughput_per_h=None), row("zeus", 0)]
    assert [point["policy"] for point in values(trade_off_figure(rows, "toy"))] == ["zeus"]


def test_policies_without_deadlines_have_no_bar() -> None:
    """Without deadlines the share of missed ones is left out."""
    bars = values(miss_figure([row("fifo", 0, miss_rate=None), row("zeus", 0)], "toy"))
    assert [bar["policy"] for bar in bars] == ["zeus"]


def test_fairness_is_drawn_both_ways() -> None:
    """Of completion times and of GPU seconds."""
    bars = values(fairness_figure([row("fifo", 0)], "toy"))
    assert {bar["of"]: bar["value"] for bar in bars} == {"Completion time": 1.0, "GPU seconds": 0.5}


def test_completion_time_is_drawn_against_the_rate_in_minutes() -> None:
    """60 s are one minute; one point per policy and rate."""
    rows = [row("fifo", 0) | {"rate_per_s": 0.001}, row("fifo", 0) | {"rate_per_s": 0.002}]
    points = values(load_figure(rows, "toy"))
    assert [(point["setting"], point["minutes"]) for point in points] == [
        (0.001, 1.0),
        (0.002, 1.0),
    ]


def test_unfinished_jobs_are_in_the_load_figure() -> None:
    """A policy that leaves long jobs over must not look quick."""
    rows = [row("fifo", 0, age_mean_s=600.0) | {"rate_per_s": 0.001}]
    ended, everyone = spec_of(load_figure(rows, "toy"))["hconcat"]
    assert ended["title"]["text"] == "jobs that ended"
    assert [point["minutes"] for point in everyone["data"]["values"]] == [10.0]


def test_the_budget_is_drawn_where_there_is_one() -> None:
    """A dashed line that follows its steps; none without a budget."""
    steps = StepFunction((0.0, 1_800.0), (700.0, 400.0))
    with_budget = power_figure({"fifo": power_curve(simulated(budget_w=steps), 10)}, "toy")
    layers = spec_of(with_budget)["layer"]
    assert {point["kw"] for point in layers[1]["data"]["values"]} == {0.7, 0.4}
    without = spec_of(power_figure({"fifo": power_curve(simulated(), 10)}, "toy"))
    assert len(without["layer"]) == 1


def test_many_policies_get_a_strip_each_with_the_budget() -> None:
    """Lines of more than four policies would hide each other."""
    curve = power_curve(simulated(budget_w=StepFunction.constant(700.0)), 10)
    strips = spec_of(power_figure({f"p{n}": curve for n in range(5)}, "toy"))["vconcat"]
    assert [strip["title"]["text"] for strip in strips] == ["p0", "p1", "p2", "p3", "p4"]
    assert all(len(strip["layer"]) == 2 for strip in strips)


def test_every_gpu_second_of_a_job_is_in_the_chart() -> None:
    """Replaying the events gives each GPU one job at a time."""
    result = simulated(horizon_s=3_000.0)
    found = gpu_allocations(result, TRUTH)
    had_s = [sum(e.end_s - e.begin_s for e in found if e.job == job) for job in range(3)]
    assert had_s == pytest.approx(result.gpu_s.tolist())
    assert {(e.job, e.end) for e in found} == {
        (0, "still running"),
        (1, "finished"),
        (2, "finished"),
    }
    assert len({(each.node, each.gpu) for each in found}) == 3
    bars = values(gantt_figure(result, TRUTH, "toy"))
    assert sorted(bar["job"] for bar in bars) == [0, 1, 2]


def test_omitted_parts_of_the_chart_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text counts the GPUs of intervals beyond the first, for a folder and for a page alike."""
    result = simulated(horizon_s=3_000.0)
    monkeypatch.setattr(campaign, "MOST_BARS", 2)
    charts = campaign.over_time_figures({"zeus{a: 1}": result}, TRUTH, "toy")
    assert list(charts) == ["power", "gpus-zeus-a--1"]
    said = spec_of(charts["gpus-zeus-a--1"])["title"]["subtitle"]
    assert "first 2 of 3 stretches" in said
    assert "of 3 stretches" not in spec_of(charts["power"])["title"]["subtitle"]
