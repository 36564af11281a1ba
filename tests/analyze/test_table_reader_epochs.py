"""Promises of logs with a row per epoch: they give equation 1 of Burmester et al."""

import pytest

from wattloop.analyze.efficiency_quotient import quotient, quotients
from wattloop.analyze.table_reader import fold_epochs, table_of

POWERS = {"a": [200.0, 180.0, 190.0], "b": [100.0, 110.0]}
TIMES = {"a": [10.0, 11.0, 12.0], "b": [30.0, 31.0]}


def logged():
    rows = [
        {"run": run, "epoch": n, "batch_size": len(run), "power_w": p, "time_s": TIMES[run][n],
         "accuracy": 0.2 * (n + 1)}
        for run, powers in POWERS.items()
        for n, p in enumerate(powers)
    ]  # fmt: skip
    return rows[::-1]  # the order of rows must not matter


def test_the_quotient_of_a_log_is_that_of_its_epochs():
    """Accuracy of the last epoch over the mean of PD_i T_i."""
    table = fold_epochs(table_of(logged(), name="log"))
    assert sorted(table.names) == ["a", "b"]
    found = {row["run"]: row["quotient_per_ws"] for row in quotients(table).rows}
    assert found["a"] == pytest.approx(quotient(0.6, POWERS["a"], TIMES["a"]).per_ws)
    assert found["b"] == pytest.approx(quotient(0.4, POWERS["b"], TIMES["b"]).per_ws)


def test_energy_and_time_of_a_run_are_sums():
    """The result says so, and parameters stay."""
    table = fold_epochs(table_of(logged(), name="log"))
    place = table.names.index("b")
    assert table.column("energy_j")[place] == pytest.approx(100 * 30 + 110 * 31)
    assert table.column("time_s")[place] == pytest.approx(61)
    assert table.column("power_w")[place] == pytest.approx((100 * 30 + 110 * 31) / 61)
    assert table.column("epochs")[place] == 2
    assert table.parameters == ("batch_size",)
    assert "energy of a run: sum of power_w x time_s" in table.notes


def test_a_missing_epoch_leaves_the_sum_missing():
    """An unknown part is not zero."""
    rows = logged()
    rows[0]["power_w"] = None
    table = fold_epochs(table_of(rows, name="log"))
    assert table.column("energy_j")[table.names.index("b")] is None


def test_other_tables_stay_as_they_are():
    """Tables with one row per run, or without epochs."""
    for rows in ([{"run": 1, "epoch": 5}, {"run": 2, "epoch": 7}], [{"run": 1}, {"run": 1}]):
        table = table_of(rows, name="t")
        assert fold_epochs(table) is table
