"""Promises of the table reader: roles of columns are inferred and reported; bad files are
refused.
"""

import numpy as np
import pytest

from tests.analyze.synthetic_runs import GREENSCREEN, cali3_runs, greenscreen_runs
from wattloop.analyze.table import column_unit
from wattloop.analyze.table_reader import read_csv, table_of
from wattloop.core.errors import ConfigError


def written(tmp_path, text, name="runs.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_parameters_and_results_of_the_documents_are_distinguished():
    """Names and values decide, and the result lists the roles."""
    table = table_of(greenscreen_runs(), name="g")
    assert table.parameters == tuple(GREENSCREEN)
    assert table.results == ("train_accuracy", "val_accuracy", "epochs", "energy_wh", "time_s")
    assert table.names[0] == "run 0"
    table = table_of(cali3_runs(), name="c")
    assert table.parameters == (
        "batch_size",
        "precision",
        "dataloader_workers",
        "tpu_cores",
        "gradient_accumulation_steps",
    )
    assert len(table.results) == 7
    assert "parameters, by their names and values: batch_size" in table.notes[0]


def test_declared_columns_are_not_inferred():
    """They must exist, and a column cannot have both roles."""
    rows = [{"a": 1, "b": 2, "c": 3}]
    table = table_of(rows, name="t", parameters=["b"], results=["a"])
    assert (table.parameters, table.results, table.notes) == (("b",), ("a",), ())
    with pytest.raises(ConfigError, match="no column 'd'"):
        table_of(rows, name="t", parameters=["d"])
    with pytest.raises(ConfigError, match="'a' cannot be a parameter and a result"):
        table_of(rows, name="t", parameters=["a"], results=["a"])


def test_names_of_other_tools_are_understood():
    """Optuna's and W&B's prefixes mark a parameter, whatever the rest of the name says."""
    rows = [{"params_power_w": n, "config.time_s": n, "power_limit_w": n} for n in range(60)]
    table = table_of([{**r, "value_j": r["power_limit_w"] / 7} for r in rows], name="t")
    assert table.parameters == ("params_power_w", "config.time_s", "power_limit_w")
    assert table.results == ("value_j",)


def test_failed_rows_are_left_out_and_counted():
    """Status columns of several tools are understood; a table of failures only is refused."""
    rows = [
        {"lr": 0.1, "energy_j": 1.0, "status": s}
        for s in ("ended", "diverged", "out_of_memory", "diverged", None)
    ]
    table = table_of(rows, name="t")
    assert len(table) == 1
    assert table.left_out == {"diverged": 2, "out_of_memory": 1, "no status": 1}
    optuna = table_of([{"x": 1, "state": "COMPLETE"}, {"x": 2, "state": "FAIL"}], name="o")
    assert optuna.left_out == {"FAIL": 1}
    with pytest.raises(ConfigError, match="every row failed: diverged"):
        table_of([{"lr": 0.1, "status": "diverged"}], name="t")


def test_a_csv_is_read_with_its_types(tmp_path):
    """Numbers, text, gaps; `None` is a level and not a gap; semicolons and a BOM do not matter."""
    text = "﻿run;preprocessing;batch;energy (Wh)\na;None;4;1.5\nb;minmax;32;\nc;None;32;nan\n"
    table = read_csv(written(tmp_path, text))
    assert table.column("preprocessing") == ("None", "minmax", "None")
    assert table.column("batch") == (4, 32, 32)
    assert table.column("energy (Wh)") == (1.5, None, None)
    assert table.names == ("a", "b", "c")
    assert column_unit("energy (Wh)") == ("J", 3_600.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty; the first line holds the names"),
        ("\n\n", "empty"),
        ("a,b\n", "no rows below the names"),
        ("a,a\n1,2\n", "column 'a' is there 2 times"),
        ("a,\n1,2\n", "a column has no name"),
        ("a,b\n1,2\n1\n", ":3: 1 values for 2 columns"),
        (b"\xff\xfe\x00a", "not text in UTF-8"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, message):
    """The error names the place of the mistake."""
    with pytest.raises(ConfigError, match=message):
        read_csv(written(tmp_path, text))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_csv(str(tmp_path / "none.csv"))


def test_numbers_of_numpy_are_plain_numbers():
    """They become Python numbers."""
    rows = [{"x": np.float64(1.5), "n": np.int64(3), "b": np.bool_(True), "m": np.float32("nan")}]
    table = table_of(rows, name="t")
    assert [type(table.column(c)[0]) for c in "xnbm"] == [float, int, bool, type(None)]


def test_a_word_among_the_numbers_of_a_result_is_refused(tmp_path):
    """As text it would no longer be a result, and another column would be analysed without a
    message.
    """
    text = "lr,energy_wh\n0.1,5\n0.1,6\n0.2,oops\n0.2,7\n0.3,\n"
    with pytest.raises(ConfigError, match=r":4: energy_wh is 'oops', not a number as in 3 other"):
        read_csv(written(tmp_path, text))
    assert read_csv(written(tmp_path, text), parameters=["lr", "energy_wh"]).parameters
    semicolons = "lr;energy_wh\n0,1;5,5\n0,2;6,5\n"
    with pytest.raises(ConfigError, match=r":2: energy_wh is '5,5'; write decimals with a point"):
        read_csv(written(tmp_path, semicolons))
    level = "time,lr\nday,1\nnight,2\n"
    assert read_csv(written(tmp_path, level)).column("time") == ("day", "night")
