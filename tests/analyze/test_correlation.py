"""Promises of correlations: scipy's numbers, over the rows that have both values."""

import numpy as np
import pytest

from tests.support.libraries import library
from wattloop.analyze.correlation import correlations, ranks
from wattloop.analyze.table_reader import table_of
from wattloop.core.errors import ConfigError

stats = library("scipy.stats", reason="the extra 'analyze' is not installed")


def made(count=40):
    rng = np.random.default_rng(5)
    x = rng.normal(size=count).round(1)  # with ties
    rows = [
        {
            "power_w": float(v),
            "accuracy": float(-0.4 * v + rng.normal()),
            "fp16": "yes" if v > 0 else "no",
            "optimizer": "abc"[n % 3],
            "epochs": 50,
        }
        for n, v in enumerate(x)
    ]
    rows[3]["accuracy"] = None
    return rows


def test_r_rho_and_p_are_those_of_scipy():
    """With ties, and without the row that misses a value."""
    rows = made()
    found = correlations(table_of(rows, name="t"))
    row = next(r for r in found.rows if {r["one"], r["other"]} == {"power_w", "accuracy"})
    x, y = zip(*[(r["power_w"], r["accuracy"]) for r in rows if r["accuracy"]], strict=True)
    pearson, spearman = stats.pearsonr(x, y), stats.spearmanr(x, y)
    assert (row["r"], row["r_p"]) == pytest.approx((pearson.statistic, pearson.pvalue))
    assert (row["rho"], row["rho_p"]) == pytest.approx((spearman.statistic, spearman.pvalue))
    assert row["rows"] == 39


def test_ranks_of_equal_values_are_shared():
    """Ranks are those of scipy's rankdata."""
    values = np.array([3.0, 1.0, 3.0, 2.0, 3.0])
    assert ranks(values).tolist() == stats.rankdata(values).tolist()


def test_two_levels_count_as_0_and_1_and_other_text_is_left_out():
    """The result names both columns, and one that never changes."""
    found = correlations(table_of(made(), name="t"), "power_w")
    row = next(r for r in found.rows if r["other"] == "fp16")
    assert row["r"] > 0.7
    assert "fp16: no is 0, yes is 1" in found.notes
    assert "left out, text: optimizer" in found.notes
    assert "left out, the same in every row: epochs" in found.notes
    assert {r["one"] for r in found.rows} == {"power_w"}


def test_correlating_nothing_is_refused():
    """Too few rows, a target that never changes, fewer than two columns."""
    with pytest.raises(ConfigError, match="2 rows are too few"):
        correlations(table_of(made()[:2], name="t"))
    with pytest.raises(ConfigError, match="'epochs' cannot be correlated: the same in every row"):
        correlations(table_of(made(), name="t"), "epochs")
    with pytest.raises(ConfigError, match="fewer than two columns"):
        correlations(table_of(made(), name="t"), columns=["power_w", "epochs"])
