"""Promises of the efficiency quotient: equation 1 of Burmester et al., in both of its units."""

import numpy as np
import pytest

from tests.analyze.synthetic_runs import greenscreen_runs
from wattloop.analyze.efficiency_quotient import quotient, quotient_of_totals, quotients, top_runs
from wattloop.analyze.table_reader import table_of
from wattloop.core.errors import ConfigError


def test_the_quotient_is_equation_1():
    """Accuracy over the mean of power times time, by hand: 0.8 / ((200*10 + 100*20) / 2)."""
    found = quotient(0.8, [200.0, 100.0], [10.0, 20.0])
    assert found.per_ws == pytest.approx(0.8 / 2_000)
    assert found.per_wh == pytest.approx(0.8 / 2_000 * 3_600)


def test_the_printed_value_of_the_final_run_is_per_wh():
    """Document 001, section 4: 6.16 from 89% and 0.14 Wh an epoch, as far as that is rounded."""
    low, high = (quotient_of_totals(0.89, wh * 3_600).per_wh for wh in (0.145, 0.135))
    assert low <= 6.16 <= high
    assert quotient_of_totals(0.89, 0.14 * 3_600).per_ws < 0.002


def test_totals_give_the_same_as_epochs():
    """The sum over epochs is the energy of the run."""
    powers, times = [150.0, 180.0, 170.0], [30.0, 31.0, 29.0]
    energy_j = sum(p * t for p, t in zip(powers, times, strict=True))
    assert quotient_of_totals(0.7, energy_j, 3).per_ws == pytest.approx(
        quotient(0.7, powers, times).per_ws
    )


@pytest.mark.parametrize(("powers", "times"), [([], []), ([1.0], []), ([0.0], [1.0])])
def test_a_quotient_of_nothing_is_refused(powers, times):
    """No epochs, epochs without times, or no energy."""
    with pytest.raises(ConfigError, match="the quotient needs"):
        quotient(0.5, powers, times)


def test_rows_are_ranked_and_variants_differ_as_they_say():
    """Training accuracy per mean epoch; validation; per whole run; above chance."""
    table = table_of(greenscreen_runs(), name="g")
    found = quotients(table)
    row = next(r for r in found.rows if r["run"] == "run 5")
    plain = greenscreen_runs()[5]
    wh = plain["energy_wh"] / 50
    assert row["quotient_per_wh"] == pytest.approx(plain["train_accuracy"] / wh)
    assert row["quotient_per_ws"] == pytest.approx(plain["train_accuracy"] / wh / 3_600)
    values = [r["quotient_per_wh"] for r in found.rows]
    assert values == sorted(values, reverse=True)
    for variant, accuracy, scale in (
        ("validation", plain["val_accuracy"], 1),
        ("total", plain["train_accuracy"], 50),
        ("gain", plain["train_accuracy"] - 0.01, 1),
    ):
        other = quotients(table, variant, chance=0.01)
        own = next(r for r in other.rows if r["run"] == "run 5")
        assert own["quotient_per_wh"] == pytest.approx(accuracy / wh / scale)


def test_power_and_time_of_epochs_are_used_where_there_is_no_total():
    """PD_i x T_i as columns, whatever their units."""
    rows = [{"run": "a", "accuracy": 50.0, "power_kw": 0.2, "epoch_time_s": 10.0}]
    found = quotients(table_of(rows, name="t"))
    assert found.rows[0]["quotient_per_ws"] == pytest.approx(0.5 / 2_000)
    assert "accuracy is in per cent" in found.notes


def test_a_run_without_energy_has_no_quotient():
    """It is counted as missing, not ranked as infinitely good."""
    rows = [{"accuracy": 0.5, "energy_j": e} for e in (10.0, 0.0, None)]
    found = quotients(table_of(rows, name="t"))
    assert len(found.rows) == 1
    assert np.isnan(found.per_ws).tolist() == [False, True, True]
    assert "2 rows without a quotient" in found.warnings[0]
    with pytest.raises(ConfigError, match="no row has accuracy and energy_j above 0"):
        quotients(table_of(rows[1:], name="t", parameters=[], results=["accuracy", "energy_j"]))


def test_unusable_input_is_refused():
    """A loss, no quality at all, an unknown variant, or a chance level that is not a share."""
    rows = [{"eval_loss": 0.5, "energy_j": 1.0}]
    with pytest.raises(ConfigError, match="no column of quality"):
        quotients(table_of(rows, name="t"))
    with pytest.raises(ConfigError, match="of 'eval_loss' less is better"):
        quotients(table_of(rows, name="t"), quality="eval_loss")
    table = table_of(greenscreen_runs(5), name="g")
    for options, message in (
        ({"variant": "best"}, "unknown quotient 'best'"),
        ({"variant": "gain"}, "needs the accuracy of guessing; give --chance"),
        ({"chance": 3.0}, "it is a share"),
        ({"epochs": 0.0}, "0 epochs"),
        ({"energy": "time_s"}, "'time_s' is in s, not in J"),
    ):
        with pytest.raises(ConfigError, match=message):
            quotients(table, **options)


def test_the_top_tables_are_three_and_keep_the_threshold():
    """By accuracy, by energy per epoch, by quotient, without runs that are not good enough."""
    rows = greenscreen_runs()
    table = table_of(rows, name="g")
    found = top_runs(table, count=3, threshold=0.4)
    assert [t.name for t in (found, *found.others)] == ["accuracy", "power", "quotient"]
    good = [r for r in rows if r["train_accuracy"] >= 0.4]
    best = max(good, key=lambda r: r["train_accuracy"])
    thrifty = min(good, key=lambda r: r["energy_wh"])
    efficient = max(good, key=lambda r: r["train_accuracy"] / r["energy_wh"])
    firsts = [t.rows[0]["run"] for t in (found, *found.others)]
    assert firsts == [f"run {r['run']}" for r in (best, thrifty, efficient)]
    assert found.facts["below_threshold"] == len(rows) - len(good)
    assert [len(t.rows) for t in (found, *found.others)] == [3, 3, 3]
    assert top_runs(table, "power").others == ()
    with pytest.raises(ConfigError, match=r"no run reaches train_accuracy 2; the best has 0\.9"):
        top_runs(table, threshold=2.0)
    with pytest.raises(ConfigError, match="unknown order 'speed'"):
        top_runs(table, "speed")


def test_the_best_by_the_whole_run_say_so():
    """Energy of a run is not called energy of an epoch."""
    table = table_of(greenscreen_runs(), name="g")
    found = top_runs(table, found=quotients(table, "total"))
    assert "energy per run (Wh)" in found.headers
    assert [t.title for t in (found, *found.others)][1] == "g: lowest energy per run"
    assert "energy per epoch (Wh)" in top_runs(table).headers


def test_epochs_that_a_run_did_not_have_are_not_taken():
    """Warm-up and most epochs are settings, and a column of text is refused."""
    rows = [
        {"warmup_epochs": 2, "max_epochs": 90, "epochs": 10, "name": n, "schedule": "step"}
        | {"accuracy": 0.9, "energy_j": 100.0}
        for n in "ab"
    ]
    table = table_of(rows, name="t")
    assert quotients(table).per_ws.tolist() == pytest.approx([0.09, 0.09])
    for row in rows:
        del row["epochs"]
    found = quotients(table_of(rows, name="t"))
    assert found.per_ws.tolist() == pytest.approx([0.009, 0.009])
    assert any("counts as one epoch" in note for note in found.notes)
    with pytest.raises(ConfigError, match="'schedule' is not a number"):
        quotients(table, epochs="schedule")
    with pytest.raises(ConfigError, match="'schedule' is not a number"):
        quotients(table, quality="schedule")
