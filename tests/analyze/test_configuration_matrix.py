"""Promises of the configuration matrix: all runs, worst to best, against all levels."""

import numpy as np
import pytest

from tests.analyze.synthetic_runs import GREENSCREEN, greenscreen_runs
from wattloop.analyze.configuration_matrix import configuration_matrix
from wattloop.analyze.table import format_level
from wattloop.analyze.table_reader import table_of
from wattloop.core.errors import ConfigError


def test_every_run_has_one_level_of_each_parameter():
    """40 columns for ten parameters of four levels, ten fields dark in each line."""
    table = table_of(greenscreen_runs(100), name="g")
    found = configuration_matrix(table, "energy_wh")
    assert found.switched.shape == (100, 40)
    expected = [(p, format_level(v)) for p, values in GREENSCREEN.items() for v in values]
    assert list(found.levels) == expected
    assert found.switched.sum(axis=1).tolist() == [10] * 100


def test_runs_go_from_worst_to_best():
    """Energy falls, accuracy rises (figure 7), unless told otherwise."""
    table = table_of(greenscreen_runs(), name="g")
    assert (np.diff(configuration_matrix(table, "energy_wh").values) <= 0).all()
    assert (np.diff(configuration_matrix(table, "val_accuracy").values) >= 0).all()
    turned = configuration_matrix(table, "energy_wh", more_is_better=True)
    assert (np.diff(turned.values) >= 0).all()


def test_the_level_that_matters_stands_apart():
    """Batch 4 is in the worst runs, batch 128 in the best; irrelevant levels are in the middle."""
    found = configuration_matrix(table_of(greenscreen_runs(400), name="g"), "energy_wh")
    rows = {(r["parameter"], r["level"]): r for r in found.rows}
    assert rows["batch_size", "4"]["standing"] < 0.25
    assert rows["batch_size", "128"]["standing"] > 0.7
    assert rows["batch_size", "4"]["z"] < -10
    quiet = [abs(r["z"]) for (p, _), r in rows.items() if p not in ("batch_size", "internal")]
    assert max(quiet) < 4
    assert found.rows[0]["parameter"] == "batch_size"


def test_a_parameter_of_very_many_values_is_shown_in_four_groups():
    """The result says that it grouped them."""
    rows = [{"lr": n / 100, "energy_j": float(n)} for n in range(1, 41)]
    found = configuration_matrix(table_of(rows, name="t", parameters=["lr"]), "energy_j")
    assert len(found.levels) == 4
    assert found.switched.sum(axis=0).tolist() == [10] * 4
    assert "in four groups of equal size: lr" in found.notes


def test_a_matrix_without_order_or_levels_is_refused():
    """All runs are equal, or no parameter has levels."""
    rows = [{"lr": 0.1 * n, "energy_j": 1.0, "time_s": float(n)} for n in range(1, 4)]
    table = table_of(rows, name="t")
    with pytest.raises(ConfigError, match="'energy_j' is 1 in every row"):
        configuration_matrix(table, "energy_j")
    with pytest.raises(ConfigError, match="no parameters to show"):
        configuration_matrix(table, "time_s", parameters=[])


def test_ties_are_corrected_for():
    """z is Mann and Whitney's with the correction for ties, as in scipy."""
    stats = pytest.importorskip("scipy.stats", reason="the extra 'analyze' is not installed")
    rng = np.random.default_rng(6)
    rows = [{"p": "abc"[rng.integers(3)], "epochs": int(rng.integers(3))} for _ in range(60)]
    table = table_of(rows, name="t", parameters=["p"], results=["epochs"])
    found = configuration_matrix(table, "epochs", more_is_better=True)
    values = np.array([row["epochs"] for row in rows])
    for row in found.rows:
        on = np.array([r["p"] == row["level"] for r in rows])
        theirs = stats.mannwhitneyu(
            values[on], values[~on], use_continuity=False, method="asymptotic"
        )
        assert abs(row["z"]) == pytest.approx(stats.norm.isf(theirs.pvalue / 2))


def test_a_parameter_may_be_what_runs_are_sorted_by():
    """It is then not a column of the matrix."""
    found = configuration_matrix(table_of(greenscreen_runs(), name="g"), "batch_size")
    assert "batch_size" not in {parameter for parameter, _ in found.levels}
