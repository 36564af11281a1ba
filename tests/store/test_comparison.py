"""Promises of comparisons: differences between runs are stated with their uncertainty."""

import math
from dataclasses import replace
from typing import Any

import pytest

from wattloop.core.errors import ConfigError
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, RunStatus
from wattloop.store.comparison import Cell, compare
from wattloop.store.runs import RunRecord
from wattloop.testing.journals import root_window


def run(
    run_id: str, gpu_j: float | None, duration_s: float = 10.0, known: float = 0.0
) -> RunRecord:
    window = root_window(cpu_j=500.0, gpu_j=gpu_j, duration_s=duration_s)
    domains = tuple(d._replace(known_error=known) for d in window.domains)
    return RunRecord(run_id=run_id, host="h", result=window._replace(domains=domains))


def cell(records: list[RunRecord], name: str, scope: str) -> Cell:
    rows = {(row.name, row.scope): row for row in compare(records).quantities}
    return rows[name, scope].cells[1]


def test_a_small_difference_is_within_the_uncertainty() -> None:
    """1% each: 1% apart is not real, 5% apart is."""
    near = cell([run("a", 3_000), run("b", 3_030)], "energy", "gpu")
    assert near.real is False
    assert near.difference == pytest.approx(0.01)
    assert near.difference_uncertainty == pytest.approx(0.01428, abs=1e-4)
    assert cell([run("a", 3_000), run("b", 3_150)], "energy", "gpu").real is True


def test_edp_and_power_follow_the_time_of_each_run() -> None:
    """EDP = energy x time, per scope; power = energy / time."""
    records = [run("a", 3_000, 10.0), run("b", 3_000, 20.0)]
    assert cell(records, "edp", "gpu").value == pytest.approx(60_000)
    assert cell(records, "edp", "gpu").difference == pytest.approx(1.0)
    assert cell(records, "power", "cpu").value == pytest.approx(25.0)
    assert cell(records, "time", "").difference == pytest.approx(1.0)


def test_systematic_error_cancels_on_one_sensor_only() -> None:
    """Two machines: the sensors' own 5% is added; the same machine: it is not."""
    first, second = run("a", 3_000, known=0.05), run("b", 3_150, known=0.05)
    assert cell([first, second], "energy", "gpu").real is True
    elsewhere = replace(second, host="other")
    assert cell([first, elsewhere], "energy", "gpu").real is False
    assert "different machines" in " ".join(compare([first, elsewhere]).notes)


def estimated(run_id: str, power_w: float, duration_s: float, **changes: Any) -> RunRecord:
    """Return a run on the estimate, with an error of up to half of its energy and 30 W."""
    energy_j = power_w * duration_s
    package = DomainEnergy(
        name="cpu:0/package",
        scope=Scope.CPU,
        energy_j=energy_j,
        uncertainty_j=0.001 * energy_j + 0.5 * energy_j + 30.0 * duration_s,
        provenance=Provenance.ESTIMATED,
        source="utilisation x TDP",
        known_error=0.5,
        known_error_w=30.0,
        tdp_w=100.0,
        **changes,
    )
    window = root_window(duration_s=duration_s)._replace(domains=(package,))
    return RunRecord(run_id=run_id, host="h", result=window)


def test_the_error_of_a_shared_estimate_cancels() -> None:
    """Ten against twenty epochs on one machine: twice the energy, whatever the model's error."""
    found = cell([estimated("a", 40.0, 100.0), estimated("b", 41.0, 153.0)], "energy", "cpu")
    assert found.difference == pytest.approx(0.568, abs=0.001)
    assert found.real is True
    assert found.difference_uncertainty < 0.05
    assert found.uncertainty > 0.5 * found.value  # the statement about each run alone stays


def test_what_does_not_cancel_is_said() -> None:
    """At another power the model's error differs in watts; on another machine it is independent."""
    powers = cell([estimated("a", 40.0, 100.0), estimated("b", 60.0, 100.0)], "power", "cpu")
    # 30 W too much in both: (60 + 30) / (40 + 30); to first order 0.5 +- 30/40 x 0.5
    assert powers.difference_uncertainty == pytest.approx(0.375, abs=0.01)
    other = replace(estimated("b", 41.0, 153.0), host="other")
    assert cell([estimated("a", 40.0, 100.0), other], "energy", "cpu").real is False
    tdp = estimated("b", 41.0, 153.0, device="another")
    assert cell([estimated("a", 40.0, 100.0), tdp], "energy", "cpu").real is False


def test_runs_of_earlier_versions_cancel_too() -> None:
    """Their error in watts is only in the description of the meter."""
    stated = {"name": "cpu:0/package", "provenance": "estimated", "known_error_w": 30.0}

    def old(record: RunRecord) -> RunRecord:
        assert record.result is not None
        domains = tuple(d._replace(known_error_w=0.0) for d in record.result.domains)
        feeds = [{"meter": "estimate", "domains": [stated]}]
        return replace(record, result=record.result._replace(domains=domains), feeds=feeds)

    pair = [old(estimated("a", 40.0, 100.0)), old(estimated("b", 41.0, 153.0))]
    assert cell(pair, "energy", "cpu").difference_uncertainty < 0.05


def test_what_was_not_read_is_not_compared() -> None:
    """A missing scope has no difference, and the totals are marked as different in kind."""
    records = [run("a", 3_000), run("b", None)]
    missing = cell(records, "energy", "gpu")
    assert (missing.value, missing.difference, missing.real) == (None, None, None)
    assert "gpu:0 in one only" in " ".join(compare(records).notes)


def test_estimates_and_dead_runs_are_pointed_out() -> None:
    """A measured run next to an estimated or crashed one is not a fair comparison."""
    guess = run("b", 3_000)
    assert guess.result is not None
    domains = tuple(d._replace(provenance=Provenance.ESTIMATED) for d in guess.result.domains)
    guess = replace(guess, result=guess.result._replace(domains=domains), status=RunStatus.DIED)
    notes = " ".join(compare([run("a", 3_000), guess]).notes)
    assert "is measured, that of b is estimated" in notes
    assert "b: died" in notes
    dead = replace(run("b", 2_000), status=RunStatus.DIED)
    (verdict,) = compare([run("a", 3_000), dead]).verdicts
    assert "not certain" in verdict
    assert verdict.endswith("but b did not finish")


def test_nonsense_is_refused() -> None:
    """One run, or the same run twice."""
    with pytest.raises(ConfigError, match="two runs"):
        compare([run("a", 1)])
    with pytest.raises(ConfigError, match="twice"):
        compare([run("a", 1), run("a", 1)])


def test_plain_data_has_percent_and_verdict() -> None:
    """The output of `--json`."""
    data = compare([run("a", 3_000), run("b", 3_300)]).to_dict()
    row = next(q for q in data["quantities"] if (q["name"], q["scope"]) == ("energy", "gpu"))
    assert row["values"][1]["difference_pct"] == pytest.approx(10.0)
    assert row["values"][1]["within_uncertainty"] is False


def test_a_vanishing_energy_is_compared() -> None:
    """Its square underflows, and the comparison continues."""
    found = cell([run("a", 1e-200), run("b", 3_000)], "energy", "gpu")
    assert found.difference == pytest.approx(3e203)
    assert found.real is True


def test_a_run_that_shared_its_devices_is_named() -> None:
    """Its energy is partly that of other runs, unless it was divided among them."""
    shared = {"overlap_s": 4.0, "share": 0.4, "runs": [], "left_out_j": 0.0, "divided": False}
    alone, both = run("a", 3_000), replace(run("b", 3_000), shared=shared)
    assert "b: other runs used the same devices for 4.00 s" in " ".join(
        compare([alone, both]).notes
    )
    more = replace(both, result=run("b", 4_000).result)
    assert compare([alone, more]).verdicts[0].endswith("but b shared its devices with other runs")
    divided = replace(both, shared=shared | {"divided": True})
    assert compare([alone, divided]).notes == ()


def test_costs_of_a_step_are_compared_where_two_runs_have_them() -> None:
    """Half the energy per step is real though the totals are equal; one run alone has no row."""
    records = [run("a", 3_000), run("b", 3_000), run("c", 3_000)]
    costs = [{"step_j": 35.0, "step_s": 0.1, "token_j": 1.0}, {"step_j": 17.5, "step_s": 0.1}, {}]
    rows = {row.name: row for row in compare(records, costs).quantities if "per" in row.name}
    assert list(rows) == ["energy per step", "time per step"]
    first, half, unknown = rows["energy per step"].cells
    assert first.uncertainty == pytest.approx(0.01 * math.hypot(500.0, 3_000.0) * 35.0 / 3_500.0)
    assert (half.difference, half.real) == (pytest.approx(-0.5), True)
    assert (unknown.value, unknown.difference) == (None, None)
    assert rows["time per step"].cells[1].real is False


def test_a_verdict_says_of_what_it_is_certain() -> None:
    """Of two runs by their sensors; of two names where both were repeated."""
    pair = [replace(run("1", 3_000), name="a"), replace(run("2", 2_000), name="b")]
    (alone,) = compare(pair).verdicts
    assert "Certain of these two runs: more than the sensors err" in alone

    def verdict(*groups: tuple[float, ...]) -> str:
        repeats = [[{"energy_j": energy_j} for energy_j in group] for group in groups]
        (found,) = compare(pair, repeats=repeats).verdicts
        return found

    steady = verdict((3_000, 3_030, 2_970), (2_000, 2_020, 1_980))
    assert steady.startswith("b is better than a") and "means of 3 and 3 runs differ" in steady
    vague = verdict((3_000, 600, 9_000), (2_000, 9_000, 700))
    assert vague.startswith("b against a: not certain") and "but runs vary" in vague
    other_way = verdict((3_000, 1_000, 1_010), (2_000, 2_010, 2_020))
    assert other_way.startswith("b against a: not certain")
    assert verdict((3_000,), (2_000, 2_010)) == alone


def test_two_runs_of_one_name_are_told_apart_only_beyond_what_it_varies() -> None:
    pair = [replace(run("1", 3_000), name="a"), replace(run("2", 2_800), name="a")]
    for spread, certain in ((10.0, True), (500.0, False)):
        group = [{"energy_j": 3_000.0 + spread * n} for n in (-2, -1, 0, 1, 2)]
        (found,) = compare(pair, repeats=[group, group]).verdicts
        assert ("2 is better than 1" in found) is certain
        assert "two of 5 runs of this name" in found
