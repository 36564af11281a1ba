"""Promises of the front: its points are the undominated ones, and ties stay together."""

import itertools

import numpy as np
import pytest

from tests.analyze.synthetic_runs import cali3_runs
from wattloop.analyze.pareto import default_objectives, find_knee, nondominated, pareto_front
from wattloop.analyze.table_reader import table_of
from wattloop.core.errors import ConfigError


def beaten(one, other):
    return (other <= one).all() and (other < one).any()


@pytest.mark.parametrize("columns", [2, 3, 4])
def test_the_front_is_that_of_the_definition(columns):
    """The result is compared with a check of every pair, on small numbers with many ties."""
    costs = np.random.default_rng(columns).integers(0, 6, (120, columns)).astype(float)
    expected = [not any(beaten(one, other) for other in costs) for one in costs]
    assert nondominated(costs).tolist() == expected


def test_equal_points_are_on_the_front_together():
    """Equal points do not dominate each other."""
    costs = np.array([[1.0, 2.0], [1.0, 2.0], [2.0, 2.0]])
    assert nondominated(costs).tolist() == [True, True, False]


def test_the_front_follows_the_directions():
    """The front of two columns differs for each of the four directions."""
    rows = [{"a_j": a, "accuracy": b} for a, b in itertools.product((1.0, 2.0), (0.1, 0.2))]
    table = table_of(rows, name="t")
    found = {
        (less, more): pareto_front(table, {"a_j": less, "accuracy": more}).rows[0]["run"]
        for less, more in itertools.product((False, True), repeat=2)
    }
    assert found == {
        (False, False): "row 1",
        (False, True): "row 2",
        (True, False): "row 3",
        (True, True): "row 4",
    }


def test_the_knee_is_where_giving_up_little_gains_most():
    """Farthest from the chord; for three objectives nearest to the best of each."""
    costs = np.array([[0.0, 10.0], [1.0, 2.0], [5.0, 1.0], [10.0, 0.0]])
    assert find_knee(costs, "chord") == 1
    assert find_knee(costs, "utopia") == 1
    assert find_knee(costs[:2], "chord") is None
    bulging = np.array([[0.0, 10.0], [9.0, 9.0], [10.0, 0.0]])
    assert find_knee(bulging, "chord") is None
    assert find_knee(np.array([[0, 5, 5], [1, 1, 1], [5, 0, 5.0]]), "utopia") == 1


def test_energy_and_quality_are_the_usual_objectives():
    """Otherwise energy and time; rows without one of them are left out and counted."""
    rows = cali3_runs()
    assert default_objectives(table_of(rows, name="t")) == {"energy_wh": False, "accuracy": True}
    bare = table_of([{"energy_j": 1.0, "time_s": 2.0}], name="t")
    assert default_objectives(bare) == {"energy_j": False, "time_s": False}
    rows[0]["accuracy"] = None
    found = pareto_front(table_of(rows, name="t"))
    assert len(found.is_on_front) == 399
    assert "1 row with missing values left out" in found.notes
    knees = [r for r in found.rows if r["knee"]]
    assert [k["run"] for k in knees] == [found.knee]


def test_unusable_input_is_refused():
    """One objective, an unknown knee, or a chord of three objectives."""
    table = table_of(cali3_runs(), name="t")
    for objectives, knee, message in (
        ({"energy_wh": False}, None, "two objectives or more"),
        (None, "bend", "unknown knee 'bend'"),
        ({"energy_wh": False, "accuracy": True, "runtime_s": False}, "chord", "use utopia"),
        ({"energy_wh": False, "precision": True}, None, "is not a number"),
    ):
        with pytest.raises(ConfigError, match=message):
            pareto_front(table, objectives, knee=knee)
