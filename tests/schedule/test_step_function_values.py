"""Promises of budgets, prices and carbon over the day: understood as written, or refused."""

from pathlib import Path
from typing import Any

import pytest

from wattloop.schedule.step_function import (
    StepFunction,
    StepsError,
    budget_steps,
    carbon_steps,
    clock_s,
    price_steps,
)

HOUR_S = 3_600


@pytest.mark.parametrize(
    ("written", "meant"), [(4500, 4500), ("4500 W", 4500), ("4.5kW", 4500), ("1 MW", 1e6)]
)
def test_one_value_holds_always(written: Any, meant: float) -> None:
    """A value may have a unit or not."""
    assert budget_steps(written).steps == StepFunction.constant(meant)


def test_steps_of_a_day_repeat_and_reach_over_midnight() -> None:
    """Before the first step of the day, the last one of the evening still applies."""
    day = [{"from": "06:00", "value": "8 kW"}, {"from": "18:00", "value": "4 kW"}]
    steps = budget_steps(day).steps
    assert [steps.at(hour * HOUR_S) for hour in (0, 5, 6, 17, 18, 23, 24, 30)] == [
        *(4_000, 4_000, 8_000, 8_000, 4_000, 4_000, 4_000, 8_000)
    ]


@pytest.mark.parametrize(
    ("written", "meant_h"),
    [
        ("18:00", 18),
        ("6:30", 6.5),
        ("00:00", 0),
        (1080, 18),
        (60, 1),
        (64_800, 18),
        *[(each, None) for each in ("23:59:60", 18, "24:00", "6", True, 2_000, -60)],
    ],
)
def test_a_time_of_the_day_may_lack_its_quotes(written: Any, meant_h: float | None) -> None:
    """YAML reads 18:00 as 1,080; a value that was never a time is refused."""
    if meant_h is None:
        with pytest.raises(StepsError, match=r'write it as "18:00"'):
            clock_s(written)
    else:
        assert clock_s(written) == meant_h * HOUR_S


def test_a_country_has_its_annual_mean() -> None:
    """The mean has year and source."""
    france, poland = carbon_steps("FRA"), carbon_steps("Poland")
    assert france.steps.at(0) < 100
    assert poland.steps.at(0) > 400
    assert "France, mean of 20" in france.source


def test_hourly_values_come_from_a_csv_file(tmp_path: Path) -> None:
    """The file stands next to the scenario; its hours repeat from the first after the last."""
    (tmp_path / "grid.csv").write_text("time,g_per_kwh\n00:00,100\n01:00,300\n02:00,200\n\n")
    found = carbon_steps({"csv": "grid.csv"}, tmp_path)
    assert [found.steps.at(hour * HOUR_S) for hour in range(5)] == [100, 300, 200, 100, 300]
    assert found.source == "grid.csv, hour by hour"


def test_a_csv_file_with_many_columns_needs_one_of_them(tmp_path: Path) -> None:
    """The column is chosen by name; the error for a wrong one suggests a near one."""
    (tmp_path / "grid.csv").write_text("a,price,carbon\n1,0.2,100\n2,0.3,120\n")
    written = {"csv": "grid.csv", "column": "price"}
    assert price_steps(written, tmp_path).steps.values == (0.2, 0.3)
    with pytest.raises(StepsError, match="has columns a, price, carbon; say which"):
        price_steps({"csv": "grid.csv"}, tmp_path)
    with pytest.raises(StepsError, match="no column 'prise'; did you mean 'price'"):
        price_steps({"csv": "grid.csv", "column": "prise"}, tmp_path)


def test_only_prices_fall_below_zero(tmp_path: Path) -> None:
    """As day-ahead prices do; a negative budget or intensity is a fault of the file."""
    (tmp_path / "day.csv").write_text("hour,eur_per_kwh\n0,0.08\n1,-0.012\n2,-1e-3\n")
    day = {"csv": "day.csv"}
    assert price_steps(day, tmp_path).steps.values == (0.08, -0.012, -0.001)
    assert price_steps([{"from": "12:00", "value": -0.05}]).steps.at(0) == -0.05
    for read in (budget_steps, carbon_steps):
        with pytest.raises(StepsError, match=r"day\.csv:3: '-0\.012' is not a number, 0 or more"):
            read(day, tmp_path)
    for wrong in (float("nan"), "-inf", "low"):
        with pytest.raises(StepsError, match="number"):
            price_steps(wrong)


@pytest.mark.parametrize(
    "text", ["g\n", "", "g\n1\nx\n", "g\n1\n-3\n", "g\nnan\n", "t,g\n1,2\n3\n"]
)
def test_a_csv_file_without_clean_numbers_is_refused(tmp_path: Path, text: str) -> None:
    """A gap is not zero."""
    (tmp_path / "grid.csv").write_text(text)
    with pytest.raises(StepsError, match=r"grid\.csv.*(no values|is not a number)"):
        carbon_steps({"csv": "grid.csv"}, tmp_path)


@pytest.mark.parametrize(
    ("written", "place", "said"),
    [
        ("much", (), "'much' is not a power"),
        (float("nan"), (), "must be a number"),
        (-5, (), "0 or more, not -5"),
        ("-5 W", (), "0 or more"),
        (True, (), "not a power"),
        (None, (), "must be a number"),
        ([], (), "no step"),
        ([3], (0,), "write {from"),
        ([{"from": "06:00", "valeu": 3}], (0, "valeu"), "did you mean 'value'"),
        ([{"from": "06:00"}], (0,), "'value' is missing"),
        ([{"from": "later", "value": 3}], (0, "from"), "not a time of the day"),
        ([{"from": "06:00", "value": "x"}], (0, "value"), "not a power"),
        (
            [{"from": "18:00", "value": 1}, {"from": "06:00", "value": 2}],
            (1, "from"),
            "not after the step before",
        ),
        ({"cvs": "x"}, ("cvs",), "did you mean 'csv'"),
        ({}, (), "write a value"),
        ({"csv": "none.csv"}, ("csv",), r"none\.csv: cannot be read: No such file"),
    ],
)
def test_a_fault_says_where_and_what(written: Any, place: tuple[Any, ...], said: str) -> None:
    """The scenario can name line and field."""
    with pytest.raises(StepsError, match=said) as caught:
        budget_steps(written)
    assert caught.value.place == place


def test_a_country_that_is_none_is_refused_with_near_ones() -> None:
    """Near names are suggested, as everywhere."""
    with pytest.raises(StepsError, match="did you mean FRA"):
        carbon_steps("Frnace")


def test_norway_is_not_a_boolean() -> None:
    """YAML reads NO as false; the error says what to write."""
    with pytest.raises(StepsError, match="write NOR"):
        carbon_steps(False)
