"""Promises of tables: values are unchanged, missing ones are missing, and mistakes are named."""

import math

import numpy as np
import pytest

from wattloop.analyze.table import format_level
from wattloop.analyze.table_reader import table_of
from wattloop.core.errors import ConfigError

ROWS = [
    {"lr": 0.1, "optimizer": "SGD", "energy_j": 10.0, "accuracy": 0.5},
    {"lr": 0.01, "optimizer": "Adam", "energy_j": 20.0, "accuracy": None},
    {"lr": 0.1, "optimizer": "Adam", "energy_j": math.inf, "accuracy": 0.7},
]


def made():
    return table_of(ROWS, name="runs")


def test_missing_values_are_not_zero():
    """None, NaN and infinity are NaN among numbers; a complete table leaves them out and counts
    them.
    """
    table = made()
    assert np.isnan(table.numbers("accuracy")).tolist() == [False, True, False]
    assert np.isnan(table.numbers("energy_j")).tolist() == [False, False, True]
    complete = table.complete(["accuracy", "energy_j"])
    assert complete.names == ("row 1",)
    assert complete.left_out == {"no accuracy": 1, "no energy_j": 1}


def test_an_unknown_column_names_the_nearest():
    """The error for a typing mistake suggests the intended column."""
    with pytest.raises(ConfigError, match=r"runs: no column 'acuracy'; did you mean 'accuracy'\?"):
        made().column("acuracy")
    with pytest.raises(ConfigError, match="known are lr, optimizer, energy_j, accuracy"):
        made().column("zzz")


def test_text_is_not_a_number():
    """The message names the value and the row, and the columns of numbers."""
    with pytest.raises(ConfigError, match=r"'SGD' in row 1; numbers are in energy_j, accuracy"):
        made().numbers("optimizer")


def test_levels_are_ordered_numbers_by_size():
    """10 comes after 9, and text after numbers."""
    table = table_of([{"b": v} for v in (10, 9, "inactive", 10.0)], name="t", parameters=["b"])
    assert table.levels("b") == ["9", "10", "inactive"]
    assert not table.is_numeric("b")
    assert format_level(64.0) == "64"
    assert format_level(True) == "true"


def test_one_and_true_are_two_values():
    """A dictionary treats them as equal keys; a table must not."""
    table = table_of([{"b": 1}, {"b": True}, {"b": 1}], name="t", parameters=["b"])
    assert table.labels("b") == ["1", "true", "1"]


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("lr=0.1", ["row 1", "row 3"]),
        ("lr = 0.10", ["row 1", "row 3"]),
        ("optimizer!=SGD", ["row 2", "row 3"]),
        ("accuracy>=0.7", ["row 3"]),
        ("accuracy<0.7", ["row 1"]),
    ],
)
def test_conditions_choose_rows_and_missing_values_never_pass(condition, kept):
    """Conditions are those of `--where`."""
    table = made().where(condition)
    assert list(table.names) == kept
    assert table.left_out == {f"not {condition}": 3 - len(kept)}


def test_an_invalid_condition_is_refused():
    """An invalid comparison, an invalid number or no remaining row; each error has a remedy."""
    with pytest.raises(ConfigError, match="write a condition as COLUMN>=VALUE"):
        made().where("accuracy")
    with pytest.raises(ConfigError, match="'much' is not a number"):
        made().where("accuracy>much")
    with pytest.raises(ConfigError, match=r"no row with accuracy>0.9; it has 0.5 to 0.7"):
        made().where("accuracy>0.9")
    with pytest.raises(ConfigError, match=r"no row with optimizer=LBFGS; it has Adam, SGD"):
        made().where("optimizer=LBFGS")


def test_too_few_rows_say_why():
    """The message counts the rows that were left out before."""
    table = made().where("lr=0.1")
    with pytest.raises(ConfigError, match=r"2 rows \(1 not lr=0.1\) are too few for clusters"):
        table.needs_rows(3, "clusters")


def test_more_is_better_by_name_unless_declared():
    """A search declares the direction of its metric; a CSV has names only."""
    table = table_of(
        [{"lr": 1, "eval_loss": 1.0, "accuracy": 1.0, "score": 1.0}],
        name="t",
        directions={"score": False},
    )
    found = {c: table.more_is_better(c) for c in ("eval_loss", "accuracy", "score")}
    assert found == {"eval_loss": False, "accuracy": True, "score": False}


def test_a_varying_column_has_two_values():
    """A gap is not a value, and 64 is 64.0."""
    rows = [{"a": 64, "b": None, "c": 1, "d": None}, {"a": 64.0, "b": 2, "c": 3, "d": None}]
    table = table_of(rows, name="t")
    assert [table.varies(name) for name in "abcd"] == [False, False, True, False]
