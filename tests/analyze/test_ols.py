"""Promises of the regression: every level has its row, and the figures are those of statsmodels."""

import subprocess
import sys

import numpy as np
import pytest

from tests.analyze.synthetic_runs import GREENSCREEN, greenscreen_runs
from tests.support.libraries import library
from wattloop.analyze.ols import build_design, regression
from wattloop.analyze.table import format_level
from wattloop.analyze.table_reader import table_of
from wattloop.core.errors import ConfigError

library("scipy", reason="the extra 'analyze' is not installed")


def rows_of(found):
    return {row["term"]: row for row in found.rows}


def test_a_design_computed_by_hand():
    """Two parameters, balanced: effects are differences of means, errors s sqrt(2/3 / n_level)."""
    values = {("a", "x"): 10, ("a", "y"): 14, ("b", "x"): 20, ("b", "y"): 24, ("c", "x"): 30,
              ("c", "y"): 40}  # fmt: skip
    rows = [{"p": p, "q": q, "energy_j": float(v)} for (p, q), v in values.items()]
    found = regression(table_of(rows, name="t"))
    coefficients = {term: row["coef"] for term, row in rows_of(found).items()}
    assert coefficients == pytest.approx(
        {"p_a": -11.0, "p_b": -1.0, "p_c": 12.0, "q_x": -3.0, "q_y": 3.0}
    )
    assert found.facts["intercept"] == pytest.approx(23.0)
    # fitted a: 9, 15; b: 19, 25; c: 32, 38, so every residual is 1, 1 or 2 and SSE = 12, df = 2
    s2 = 12 / 2
    errors = {term: row["std_err"] for term, row in rows_of(found).items()}
    of_p = np.sqrt(s2 * (1 / 2) * (2 / 3))
    of_q = np.sqrt(s2 * (1 / 3) * (1 / 2))
    assert errors == pytest.approx(
        {"p_a": of_p, "p_b": of_p, "p_c": of_p, "q_x": of_q, "q_y": of_q}
    )
    total = sum((v - 23) ** 2 for v in values.values())
    assert found.r2 == pytest.approx(1 - 12 / total)
    assert found.f == pytest.approx((total - 12) / 3 / s2)


def test_it_is_statsmodels_own_formula_result():
    """Unbalanced random search: coefficients, errors, t, p, intervals, R2, F; the level that the
    formula omits is checked by making another one the omitted level."""
    pytest.importorskip("statsmodels", reason="requirements-dev.txt is not installed")
    pandas = pytest.importorskip("pandas", reason="comes with statsmodels")
    from statsmodels.formula.api import ols

    rows = greenscreen_runs(120)
    found = regression(
        table_of(rows, name="g", parameters=["batch_size", "optimizer", "internal"]), "energy_wh"
    )
    frame = pandas.DataFrame(rows)
    formula = "energy_wh ~ C(batch_size, Sum) + C(optimizer, Sum) + C(internal, Sum)"
    theirs = ols(formula, frame).fit()
    ours = rows_of(found)
    for name, level in (("batch_size", 4), ("batch_size", 64), ("internal", "None")):
        key = f"C({name}, Sum)[S.{level}]"
        row = ours[f"{name}_{level}"]
        low, high = theirs.conf_int().loc[key]
        assert (row["coef"], row["std_err"], row["t"], row["p"]) == pytest.approx(
            (theirs.params[key], theirs.bse[key], theirs.tvalues[key], theirs.pvalues[key])
        )
        assert (row["low"], row["high"]) == pytest.approx((low, high))
    expected = (theirs.rsquared, theirs.rsquared_adj, theirs.fvalue, theirs.f_pvalue)
    assert (found.r2, found.adjusted_r2, found.f, found.f_p) == pytest.approx(expected)
    # 128 is last and so omitted; renamed to sort first it is not
    frame["batch_size"] = frame["batch_size"].replace(128, 0)
    other = ols(formula, frame).fit()
    row, key = ours["batch_size_128"], "C(batch_size, Sum)[S.0]"
    assert (row["coef"], row["std_err"]) == pytest.approx((other.params[key], other.bse[key]))


def test_all_forty_levels_of_figure_10_have_their_row():
    """Ten parameters of four levels, 80 runs: 40 rows, 31 coefficients, 49 degrees of freedom, and
    differences within a parameter as in the one-hot fit of the document."""
    rows = greenscreen_runs(80)
    found = regression(table_of(rows, name="g"), "energy_wh")
    names = [f"{p}_{format_level(v)}" for p, levels in GREENSCREEN.items() for v in levels]
    assert [row["term"] for row in found.rows] == names
    assert all(row["coef"] is not None for row in found.rows)
    assert (found.facts["coefficients"], found.facts["residual_df"]) == (31, 49)
    one_hot = np.array(
        [[float(r[p] == v) for p, vs in GREENSCREEN.items() for v in vs] for r in rows]
    )
    theirs = np.linalg.pinv(one_hot) @ np.array([r["energy_wh"] for r in rows])
    ours = np.array([row["coef"] for row in found.rows])
    for first in range(0, 40, 4):
        block = slice(first, first + 4)
        assert ours[block].sum() == pytest.approx(0, abs=1e-9)
        assert ours[block] == pytest.approx(theirs[block] - theirs[block].mean())
    assert "fewer than 10 each" in found.warnings[0]


def test_the_published_r2_f_and_adjusted_r2_belong_together():
    """Document 001: R2 0.942, 30 variables, 80 runs gives F 26.49 and 0.906, as ours would."""
    r2, variables, runs = 0.942, 30, 80
    freedom = runs - variables - 1
    assert r2 / variables / ((1 - r2) / freedom) == pytest.approx(26.49, rel=2e-3)
    assert 1 - (1 - r2) * (runs - 1) / freedom == pytest.approx(0.906, abs=6e-4)


def test_parameters_that_are_not_identified_are_named_without_numbers():
    """Eval batch size is linked to train batch size (document 000); the rest stays identified."""
    rows = [{**r, "eval_batch": r["batch_size"]} for r in greenscreen_runs(200)]
    chosen = ["batch_size", "eval_batch", "optimizer"]
    found = regression(table_of(rows, name="g", parameters=chosen), "energy_wh")
    assert any("batch_size and eval_batch cannot be told apart" in w for w in found.warnings)
    ours = rows_of(found)
    assert ours["batch_size_4"]["coef"] is None
    alone = regression(
        table_of(rows, name="g", parameters=["batch_size", "optimizer"]), "energy_wh"
    )
    adam = rows_of(alone)["optimizer_Adam"]
    assert ours["optimizer_Adam"]["coef"] == pytest.approx(adam["coef"])
    assert ours["optimizer_Adam"]["std_err"] == pytest.approx(adam["std_err"])
    assert found.r2 == pytest.approx(alone.r2)


def test_large_values_that_are_not_identified_have_no_numbers_either():
    """A slope per sample of a data set of millions is tiny, but that does not determine it."""
    rng = np.random.default_rng(4)
    rows = [
        {"samples": 1e8 * n, "tokens": 2e8 * n + 5, "optimizer": "ab"[n % 2]}
        | {"energy_j": n + rng.normal()}
        for n in range(30)
    ]
    chosen = ["samples", "tokens", "optimizer"]
    found = regression(table_of(rows, name="t", parameters=chosen), "energy_j")
    ours = rows_of(found)
    assert (ours["samples"]["coef"], ours["tokens"]["coef"]) == (None, None)
    assert ours["optimizer_a"]["coef"] is not None


def test_two_pairs_of_linked_parameters_are_two_groups():
    """Independent dependencies are not reported as one."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(60):
        a, b = int(rng.integers(3)), int(rng.integers(3))
        rows.append({"a": a, "b": b, "a2": a + 10, "b2": b + 10, "c": int(rng.integers(2))})
    design = build_design(table_of(rows, name="t", parameters=list(rows[0])), list(rows[0]))
    assert sorted(design.aliased) == [("a", "a2"), ("b", "b2")]
    assert design.rank == 1 + 2 + 2 + 1


def test_one_level_is_left_out_and_named():
    """A constant parameter explains nothing; having only such parameters is an error."""
    rows = [{**r, "seed": 3} for r in greenscreen_runs(60)]
    found = regression(table_of(rows, name="g", parameters=["seed", "batch_size"]), "energy_wh")
    assert "left out, one level only: seed" in found.notes
    assert len(found.rows) == 4
    with pytest.raises(ConfigError, match="no parameter has two levels"):
        regression(table_of(rows, name="g", parameters=["seed"]), "energy_wh")


def test_numbers_may_stay_numbers():
    """A number may have one slope, on request or with very many values; its scale does not
    matter.
    """
    rng = np.random.default_rng(2)
    rows = [
        {
            "lr": float(x),
            "year": 2026 + n / 100,
            "energy_j": 5 + 3e6 * float(x) + rng.normal(0, 0.1),
        }
        for n, x in enumerate(rng.uniform(1e-6, 1e-4, 50))
    ]
    table = table_of(rows, name="t", parameters=["lr", "year"])
    found = regression(table)
    assert rows_of(found)["lr"]["coef"] == pytest.approx(3e6, rel=0.01)
    assert not found.warnings
    four = table_of(greenscreen_runs(200), name="g", parameters=["batch_size"])
    assert len(regression(four, "energy_wh", numeric=["batch_size"]).rows) == 1
    with pytest.raises(ConfigError, match="is not a number"):
        regression(four, "energy_wh", numeric=["optimizer"])


def test_rows_left_out_reveal_what_r2_hides():
    """Many levels explain noise:

    R2 is high, that of held-out rows is not, and the result says so.
    """
    rng = np.random.default_rng(1)
    rows = [
        {**{f"p{n}": int(rng.integers(4)) for n in range(8)}, "energy_j": float(rng.normal())}
        for _ in range(40)
    ]
    parameters = [f"p{n}" for n in range(8)]
    found = regression(table_of(rows, name="t", parameters=parameters))
    assert found.r2 > 0.4
    assert found.cv_r2 < 0
    assert any("overfitted" in w for w in found.warnings)


def test_an_exact_fit_is_warned_about():
    """Rounding errors look significant, and the result warns of that."""
    rows = [{"p": n % 3, "q": n % 2, "energy_j": 2.0 * (n % 3) + n % 2} for n in range(12)]
    found = regression(table_of(rows, name="t"))
    assert found.r2 == pytest.approx(1)
    assert any("the fit is exact" in w for w in found.warnings)


def test_the_parameter_that_matters_has_the_largest_share():
    """The second table has F and partial eta squared from leaving one parameter out."""
    found = regression(table_of(greenscreen_runs(200), name="g"), "energy_wh")
    table = found.others[0]
    assert [r["parameter"] for r in table.rows[:2]] == ["batch_size", "internal"]
    assert table.rows[0]["partial_eta2"] > 0.9
    assert table.rows[-1]["p"] > 0.05
    assert {r["df"] for r in table.rows} == {3}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("epochs", "'epochs' is 50 in all 12 rows; there is nothing to explain"),
        ("optimizer", "is not a number"),
        ("energy_hw", "did you mean 'energy_wh'"),
        ("energy_wh", r"12 rows for \d+ coefficients; leave parameters out"),
    ],
)
def test_unusable_input_is_refused(target, message):
    """Constant, text, unknown, or more coefficients than rows."""
    with pytest.raises(ConfigError, match=message):
        regression(table_of(greenscreen_runs(12), name="g"), target)


def test_missing_values_leave_rows_out_and_say_so():
    """No value is filled in."""
    rows = greenscreen_runs(100)
    for row in rows[:5]:
        row["energy_wh"] = None
    found = regression(table_of(rows, name="g", parameters=["batch_size"]), "energy_wh")
    assert found.facts["rows"] == 95
    assert "5 rows with missing values left out" in found.notes


def test_it_loads_nothing_heavy():
    """Ten thousand rows are explained in less time than pandas or scipy.stats take to load."""
    program = (
        "import sys\n"
        "from wattloop.analyze.ols import regression\n"
        "from wattloop.analyze.table_reader import table_of\n"
        "rows = [{'p': n % 3, 'energy_j': 1.0 + n % 5} for n in range(12)]\n"
        "regression(table_of(rows, name='t'))\n"
        "print(sorted({'pandas', 'scipy.stats', 'statsmodels', 'sklearn'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_folds_named_are_the_folds_used():
    """Seven rows make seven folds, not ten."""
    rows = [{"p": n % 2, "energy_j": float(n)} for n in range(7)]
    found = regression(table_of(rows, name="t", parameters=["p"]))
    assert "cv_r2: R2 of rows left out of the fit, 7 folds" in found.notes
