"""Promises of importances: the cause of the spread comes first, and irrelevant parameters get
zero.
"""

import sys

import numpy as np
import pytest

from tests.analyze.synthetic_runs import greenscreen_runs
from wattloop.analyze.importance import best_levels, importances, level_groups, variance_share
from wattloop.analyze.table_reader import table_of
from wattloop.core.errors import ConfigError


def test_the_share_between_groups_is_epsilon_squared():
    """1 where groups decide; near 0, and not above by chance, where they mean nothing."""
    values = np.array([1.0, 1.0, 5.0, 5.0])
    assert variance_share(values, np.array([0, 0, 1, 1])) == 1.0
    rng = np.random.default_rng(0)
    shares = [variance_share(rng.normal(size=30), rng.integers(0, 10, 30)) for _ in range(200)]
    assert np.mean(shares) < 0.08  # eta squared would be 9/29 = 0.31
    assert variance_share(np.ones(4), np.array([0, 0, 1, 1])) == 0.0


def test_numbers_of_many_values_are_grouped():
    """They form ten groups of equal size."""
    table = table_of([{"lr": n / 1e4, "e_j": 1.0} for n in range(200)], name="t")
    assert np.bincount(level_groups(table, "lr")).tolist() == [20] * 10


@pytest.mark.parametrize("method", ["fanova", "variance"])
def test_batch_size_decides_on_energy_as_in_the_document(method):
    """First batch size, then pre-quantisation, then nothing."""
    if method == "fanova":
        pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
        pytest.importorskip("sklearn", reason="the extra 'analyze' is not installed")
    found = importances(table_of(greenscreen_runs(200), name="g"), "energy_wh", method=method)
    assert [r["parameter"] for r in found.rows[:2]] == ["batch_size", "internal"]
    assert found.rows[0]["importance"] > 0.5
    assert found.rows[2]["importance"] < 0.05
    assert found.method == method


def test_without_optuna_the_fallback_is_used_and_named(monkeypatch):
    """Asking for fanova names the command that installs it."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    table = table_of(greenscreen_runs(), name="g")
    found = importances(table, "energy_wh")
    assert found.method == "variance"
    assert any("variance between levels" in note for note in found.notes)
    with pytest.raises(ConfigError, match=r"pip install 'wattloop\[tune,analyze\]'"):
        importances(table, "energy_wh", method="fanova")


def test_unusable_input_is_refused():
    """A target that never changes, no parameter that does, or an unknown method."""
    rows = [{"lr": 0.1, "batch": n % 2, "energy_j": 1.0, "time_s": float(n)} for n in range(6)]
    table = table_of(rows, name="t", parameters=["lr", "batch"])
    for options, message in (
        ({"target": "energy_j"}, "'energy_j' is 1 in every row"),
        ({"target": "time_s", "parameters": ["lr"]}, "no parameter has two levels"),
        ({"target": "time_s", "method": "shap"}, "unknown method 'shap'"),
    ):
        with pytest.raises(ConfigError, match=message):
            importances(table, **options)
    found = importances(table, "time_s", method="variance")
    assert "left out, one level only: lr" in found.notes


def test_functional_anova_leaves_the_rest_to_interactions():
    """Two parameters together make half of the spread, so their own shares do not add to 1."""
    pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
    pytest.importorskip("sklearn", reason="the extra 'analyze' is not installed")
    rng = np.random.default_rng(7)
    rows = []
    for _ in range(300):
        a, b = (int(v) for v in rng.integers(2, size=2))
        rows.append({"a": "xy"[a], "b": "xy"[b], "energy_j": float((2 * a - 1) * (2 * b) + 5)})
    found = importances(table_of(rows, name="t"), "energy_j", method="fanova")
    shares = {row["parameter"]: row["importance"] for row in found.rows}
    assert 0.3 < shares["a"] < 0.7
    assert sum(shares.values()) < 0.75


def test_the_best_level_of_each_parameter_is_that_of_the_known_truth():
    """Batch size 128 and no pre-quantization need least energy, Adam learns best."""
    table = table_of(greenscreen_runs(400), name="made")
    least = {row["parameter"]: row["level"] for row in best_levels(table, "energy_wh").rows}
    assert least["batch_size"] == "128"
    assert least["internal"] != "pre_quantization"
    found = best_levels(table, "val_accuracy", maximize=True)
    assert {row["parameter"]: row["level"] for row in found.rows}["optimizer"] == "Adam"
