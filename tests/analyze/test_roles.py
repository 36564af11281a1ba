"""Promises of roles: energy, time, power and quality are found by their names, in SI units."""

import pytest

from tests.analyze.synthetic_runs import cali3_runs, greenscreen_runs
from wattloop.analyze.roles import (
    default_target,
    find_energy,
    find_power,
    find_quality,
    find_time,
    with_energy,
)
from wattloop.analyze.table_reader import table_of
from wattloop.core.errors import ConfigError


def one(**values):
    return table_of([values], name="t", parameters=[], results=list(values))


@pytest.mark.parametrize(
    ("column", "value", "joules"),
    [
        ("energy_j", 5.0, 5.0),
        ("energy_wh", 2.0, 7_200.0),
        ("Energy (Wh)", 2.0, 7_200.0),
        ("total_energy_kwh", 1.0, 3.6e6),
        ("energy_kWh", 1.0, 3.6e6),
        ("Energy (kWh)", 1.0, 3.6e6),
        ("energyKJ", 1.0, 1e3),
        ("energyMedianJ", 1.0, 1.0),
        ("gpu_energy_j_mean", 3.0, 3.0),
    ],
)
def test_energy_is_in_joules_whatever_the_name(column, value, joules):
    """The name gives the unit."""
    assert find_energy(one(**{column: value})).values[0] == pytest.approx(joules)


def test_the_energy_of_the_whole_comes_before_that_of_a_part():
    """The order of columns does not matter, and a gain is not an energy."""
    table = one(cpu_energy_j=1.0, energy_gain_pct=9.0, energy_j=2.0, time_s=1.0)
    assert find_energy(table).column == "energy_j"


def test_a_name_without_a_unit_is_taken_as_si_with_a_note():
    """The result states the assumption."""
    assert "taken as s" in find_time(one(runtime=3.0)).note
    with pytest.raises(ConfigError, match="'time_s' is in s, not in J"):
        find_energy(one(time_s=1.0), "time_s")
    with pytest.raises(ConfigError, match="no column of energy, such as energy_j"):
        find_energy(one(accuracy=1.0))


@pytest.mark.parametrize(
    ("found_by", "column"),
    [
        (find_energy, "energy_mj"),
        (find_energy, "energy_mj_mean"),
        (find_energy, "energy_uJ"),
        (find_energy, "Energy_GJ"),
        (find_power, "power_mW"),
        (find_time, "runtime_h"),
        (find_time, "time_min"),
    ],
)
def test_a_unit_that_is_not_known_is_not_taken_as_si(found_by, column):
    """An error by a factor of a thousand is not assumed away; other analyses continue."""
    table = one(**{column: 3.0}, accuracy=0.5)
    with pytest.raises(ConfigError, match=f"'{column}': the unit .* is not known here; known are"):
        found_by(table)
    assert with_energy(table) is table


def test_an_energy_below_zero_is_refused():
    """As the smallest value it would rank as the best."""
    rows = [{"energy_wh": e, "accuracy": 0.5} for e in (1.0, -2.5, None)]
    with pytest.raises(ConfigError, match=r"energy_wh is -2.5 in row 2: no energy is below 0"):
        find_energy(table_of(rows, name="t"))


def test_per_cent_become_shares():
    """An accuracy of 94.3 is 0.943."""
    found = find_quality(one(accuracy=94.3))
    assert found.values[0] == pytest.approx(0.943)
    assert found.note == "accuracy is in per cent"
    assert find_quality(one(f1_score=37.0)).values[0] == 37.0


def test_training_and_validation_are_distinguished():
    """Equation 1 takes training accuracy, and the front takes held-out accuracy."""
    table = table_of(greenscreen_runs(5), name="g")
    assert find_quality(table).column == "train_accuracy"
    assert find_quality(table, held_out=True).column == "val_accuracy"


def test_energy_is_made_of_power_and_time_where_there_is_none():
    """Per run or per epoch, and the result says so; a table with energy stays as it is."""
    run = with_energy(one(power_w=100.0, time_s=30.0))
    assert find_energy(run).values[0] == 3_000.0
    assert "energy_j = power_w x time_s" in run.notes
    epoch = with_energy(one(average_power=100.0, time_per_epoch=30.0))
    assert epoch.column("energy_per_epoch_j") == (3_000.0,)
    assert "average_power has no unit: taken as W" in epoch.notes
    table = table_of(cali3_runs(), name="c")
    assert with_energy(table) is table
    assert with_energy(one(power_w=1.0, accuracy=1.0)).results == ("power_w", "accuracy")
    assert find_power(one(accuracy=1.0)) is None


def test_the_usual_target_is_energy_and_per_epoch_where_epochs_differ():
    """A total depends on how long a run was allowed to train."""
    rows = [{"lr": n, "energy_j": 1.0 * n, "energy_per_epoch_j": 1.0, "epochs": n} for n in (1, 2)]
    assert default_target(table_of(rows, name="t")) == "energy_per_epoch_j"
    same = [{**row, "epochs": 3} for row in rows]
    assert default_target(table_of(same, name="t")) == "energy_j"
    assert default_target(one(accuracy=1.0)) == "accuracy"
    with pytest.raises(ConfigError, match="no result with numbers"):
        default_target(table_of([{"optimizer": "SGD"}], name="t"))
