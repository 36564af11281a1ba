"""Promises of results, gains and tables of a sweep: known inputs give known answers."""

from dataclasses import replace

import pytest

from tests.support.synthetic_sweep import energy_j, made_sweep, time_s
from wattloop.accounting.energy_delay import Point as Cost
from wattloop.accounting.energy_delay import eds
from wattloop.accounting.summary import parse_gpu_price
from wattloop.core.settings import Settings
from wattloop.report.sweep import points_table
from wattloop.sweep.result import (
    COMPARED,
    EDP,
    ENERGY,
    TIME,
    ComparedMetric,
    PointResult,
    SweepGroup,
    chosen_scope,
    compute_gain,
    repeated_trials,
    result_of,
)
from wattloop.sweep.tables import (
    best_rows,
    point_rows,
    power_rows,
    scaling_rows,
    synthesis_rows,
    technique_rows,
)
from wattloop.trials.trial import TrialOutcome


def group_of(gpus: int, **options: object) -> SweepGroup:
    result = result_of(*made_sweep(**options))  # type: ignore[arg-type]  # passed on as they are
    return next(group for group in result.groups if group.key[2] == gpus)


def test_gains_are_those_of_the_formula() -> None:
    """Energy, time, EDP and EDS against the default, from the means."""
    group = group_of(8)
    at = {point.label: point for point in group.points}
    low, base = Cost(time_s(150, 8), energy_j(150, 8)), Cost(time_s(260, 8), energy_j(260, 8))
    wanted = {
        ENERGY: 100 * (1 - low.energy_j / base.energy_j),
        TIME: 100 * (1 - low.time_s / base.time_s),
        EDP: 100 * (1 - low.energy_j * low.time_s / base.energy_j / base.time_s),
        ComparedMetric("eds", 1.5): 100 * (1 - eds(low, base, 1.5)),
    }
    for compared, value in wanted.items():
        gain = group.gain(at["150 W"], compared)
        assert gain is not None
        assert gain.value_pct == pytest.approx(value, abs=0.05)


def test_the_default_gains_nothing_with_certainty() -> None:
    """It is compared with itself."""
    group = group_of(8)
    for compared in COMPARED:
        assert group.reference is not None
        gain = group.gain(group.reference, compared)
        assert gain is not None
        assert (gain.value_pct, gain.half_width_pct) == (pytest.approx(0.0), 0.0)


def test_the_best_point_is_the_lowest_of_the_formula() -> None:
    """For each metric it is the point that a search by hand finds."""
    group = group_of(8)
    caps = (100, 150, 200, 260)
    by_energy = min(caps, key=lambda cap: energy_j(cap, 8))
    by_edp = min(caps, key=lambda cap: energy_j(cap, 8) * time_s(cap, 8))
    best_energy, best_edp = group.best(ENERGY), group.best(EDP)
    assert best_energy is not None
    assert best_energy[0].label == f"{by_energy} W"
    assert best_edp is not None
    assert best_edp[0].label == f"{by_edp} W"


def test_intervals_grow_with_the_noise_and_separate_chance_from_gain() -> None:
    """A gain smaller than the scatter of repeats is reported as within the noise."""
    quiet, loud = group_of(8, noise=0.001), group_of(8, noise=0.3)
    for group, beyond in ((quiet, True), (loud, False)):
        best = group.best(ENERGY)
        assert best is not None
        assert best[1].beyond_noise is beyond
    single = group_of(8, repeats=1).best(ENERGY)
    assert single is not None
    assert single[1].half_width_pct is None


def test_failed_runs_and_warm_ups_stay_out_of_the_means() -> None:
    """They are counted, and shown with their status."""
    experiment, trials = made_sweep(gpus=(8,))
    warm = replace(trials[0], key="x #warm-up 0.0", settings={**trials[0].settings, "repeat": "w"})
    bad = {"status": "timeout", "message": "did not end within 5 s"}
    failed = replace(trials[0], key=f"{trials[0].key[:-1]}9", status="timeout", outcome=bad)
    result = result_of(experiment, [*trials, warm, failed])
    point = next(p for p in result.points if p.label == "100 W")
    assert result.warm_ups == 1
    assert (len(point.repeated.outcomes), len(point.repeated.used)) == (4, 3)
    assert point.time_s is not None
    assert point.time_s.mean == pytest.approx(time_s(100, 8))
    (shown,) = [p for p in result.summary()["points"] if p["levels"]["gpu/power_limit"] == "100 W"]
    assert shown["failed"] == [bad]


def test_the_summary_has_means_and_standard_deviations() -> None:
    """The summary is stored with the sweep, by scope."""
    summary = result_of(*made_sweep(gpus=(8,))).summary()
    point = summary["points"][-1]
    assert point["energy_j"]["node"]["mean"] == pytest.approx(energy_j(260, 8))
    assert point["energy_j"]["node"]["sd"] == pytest.approx(0.01 * energy_j(260, 8))
    assert set(point["energy_j"]) == {"node", "gpu", "cpu"}
    assert {b["metric"] for b in summary["best"]} == {c.name for c in COMPARED}


def test_the_scope_is_the_widest_that_is_read() -> None:
    """A whole node where it has a meter; a modelled node only when no other scope was read."""
    _, trials = made_sweep()
    outcome = TrialOutcome.from_dict(trials[0].outcome)
    node = replace(outcome.scopes["node"], modelled=True)
    assert chosen_scope([outcome]) == "node"
    assert chosen_scope([replace(outcome, scopes={**outcome.scopes, "node": node})]) == "gpu"
    assert chosen_scope([replace(outcome, scopes={"node": node})]) == "node"
    assert chosen_scope([replace(outcome, scopes={})]) is None


def test_tables_of_the_literature_have_their_rows() -> None:
    """Table 1 per group and metric; best EDP with its time; powers; scaling; synthesis."""
    kinds = (("gemm", "jax"), ("triad", "jax"), ("gemm", "tf"))
    result = result_of(*made_sweep(gpus=(1, 8), workloads=kinds))
    assert len(point_rows(result)) == 3 * 2 * 4
    assert {row["metric"] for row in best_rows(result)} == {
        "Energy",
        "Energy gain minus time loss",
        "EDP",
        "ED2P",
        "EDS (k=1.5)",
        "EDS (k=2)",
    }
    technique = technique_rows([result])
    assert len(technique) == 6
    eight = next(row for row in technique if row["gpus"] == 8)
    assert eight["setting"] == "150 W"
    assert eight["time_pct"] == pytest.approx(100 * (time_s(150, 8) / time_s(260, 8) - 1))
    power = power_rows([result])[0]
    assert (power["main"], power["second"]) == ("gpu", "cpu")
    assert power["baseline"]["main"].mean == pytest.approx(240.0)
    assert power["power cap"]["main"].mean == pytest.approx(200.0)
    scaling = [r for r in scaling_rows(result) if r["gpus"] == 8 and r["is_default"]]
    assert scaling[0]["speed_up"] == pytest.approx(8**0.8)
    synthesis = synthesis_rows([result])
    assert [(r["platform"], r["library"], r["workloads"]) for r in synthesis] == [
        ("formula card", "jax", 2),
        ("formula card", "tf", 1),
    ]
    assert synthesis[1]["edp_pct"] == pytest.approx(eight["edp_pct"])


def test_settings_of_several_levers_name_those_that_were_moved() -> None:
    """`1695 MHz` alone could be any clock; levers at their default are left out."""
    facts = {"levels": {"gpu/power_limit": "260 W", "gpu/sm_clock": "1695 MHz"}}
    defaults = {"gpu/power_limit": "260 W", "gpu/sm_clock": "not locked"}
    point = PointResult(facts, repeated_trials([], "node"), (), defaults)
    assert point.label == "sm_clock 1695 MHz"
    both = replace(point, facts={"levels": {**facts["levels"], "gpu/power_limit": "170 W"}})
    assert both.label == "power_limit 170 W, sm_clock 1695 MHz"
    assert replace(point, facts={"levels": defaults}).label == "default"


def test_two_levers_of_one_technique_count_by_the_better() -> None:
    """Clocks of cores and of memory are both `clock`, and neither hides the other by its order."""
    experiment, trials = made_sweep(gpus=(8,))
    (cap,) = experiment.facts["axes"]
    worse = {**cap, "name": "gpu/other", "default": "x", "levels": [{"label": "x", "number": 1.0}]}
    for axes in ([cap, worse], [worse, cap]):
        both = replace(experiment, facts={**experiment.facts, "axes": axes})
        for trial in trials:
            levels = trial.settings["point"]["levels"]
            levels["gpu/other"] = "y" if levels["gpu/power_limit"] == "100 W" else "x"
            if levels["gpu/other"] == "y":
                levels["gpu/power_limit"] = "260 W"
        (row,) = technique_rows([result_of(both, trials)])
        assert row["setting"] == "150 W"


def test_the_interval_of_a_gain_is_of_both_sides() -> None:
    """By hand: energies of 9 to 11 against 90 to 110, each 10 % / sqrt(3) t(2), in quadrature."""
    ours = [Cost(1.0, joules) for joules in (9.0, 10.0, 11.0)]
    theirs = [Cost(1.0, joules) for joules in (90.0, 100.0, 110.0)]
    found = compute_gain(ours, theirs, ENERGY)
    each = 4.303 * 0.1 / 3**0.5
    assert found.value_pct == pytest.approx(90.0)
    assert found.half_width_pct == pytest.approx(10.0 * each * 2**0.5)


def test_a_winner_within_noise_is_a_tie() -> None:
    """Two caps within the scatter of their repeats tie; a clear winner does not."""
    same = group_of(8, caps_w=(250, 260), noise=0.2)  # both draw as much as the load
    best = same.best(EDP)
    assert best is not None
    assert [p.label for p in same.ties(best[0], EDP)] == [
        "250 W" if best[0].is_default else "260 W"
    ]
    clear = group_of(8, caps_w=(150, 260), noise=0.001)
    best = clear.best(EDP)
    assert best is not None
    assert best[0].label == "150 W"
    assert clear.ties(best[0], EDP) == []
    once = group_of(8, caps_w=(250, 260), repeats=1)
    best = once.best(EDP)
    assert best is not None
    assert once.ties(best[0], EDP) == []  # its noise is unknown


def test_a_price_of_gpus_gives_their_cost_by_number() -> None:
    """Promise: as many GPUs as the point asked for, for as long as it ran; none without a price."""
    result = result_of(*made_sweep())
    assert "gpu_cost" not in result.summary()["points"][0]
    priced = replace(result, price=parse_gpu_price("2.50", Settings()))
    rows = [row for row in scaling_rows(priced) if row["setting"] == "150 W"]
    assert {row["gpus"] for row in rows} == {1, 8}
    for row in rows:
        hours = row["gpus"] * row["time_s"].mean / 3_600
        assert row["gpu_cost"].mean == pytest.approx(2.50 * hours)
    assert priced.summary()["points"][0]["currency"] == "EUR"
    assert points_table(priced).headers[-1] == "GPU cost (EUR)"
