"""Promises of metrics by row: the same numbers as `metrics`, against a named row."""

import pytest

from wattloop.accounting.energy_delay import Point, ed2p, eds
from wattloop.analyze.row_metrics import row_metrics
from wattloop.analyze.table_reader import table_of
from wattloop.core.errors import ConfigError

ROWS = [
    {"run": "full", "cap": 300, "time_s": 100.0, "energy_wh": 20_000 / 3_600},
    {"run": "capped", "cap": 200, "time_s": 110.0, "energy_wh": 15_000 / 3_600},
    {"run": "lost", "cap": 100, "time_s": 120.0, "energy_wh": None},
]


def test_metrics_of_every_row_against_the_named_one():
    """EDP, ED2P, EDS, gain and gain minus loss, in SI units; missing where energy is missing."""
    found = row_metrics(table_of(ROWS, name="t"), "full", k=(1.5,))
    full, capped, lost = found.rows
    assert full["eds_1.5"] == pytest.approx(1.0)
    assert capped["edp_js"] == pytest.approx(15_000 * 110)
    assert capped["ed2p_js2"] == pytest.approx(ed2p(Point(110, 15_000)))
    reference = Point(100, 20_000)
    assert capped["eds_1.5"] == pytest.approx(eds(Point(110, 15_000), reference, 1.5))
    assert capped["energy_gain_pct"] == pytest.approx(25)
    assert capped["gain_minus_loss_pct"] == pytest.approx(15)
    assert lost["edp_js"] is None


@pytest.mark.parametrize("name", ["cap=300", "full"])
def test_the_reference_is_a_name_or_a_condition(name):
    """Both select the same row."""
    assert row_metrics(table_of(ROWS, name="t"), name).facts["reference"] == "full"


def test_default_runs_are_the_reference_by_themselves():
    """Several default runs are averaged; without one, dependent metrics are missing, with a
    warning.
    """
    rows = [
        {"time_s": 10.0, "energy_j": e, "is_default": d}
        for e, d in ((90.0, True), (110.0, True), (50.0, False))
    ]
    found = row_metrics(table_of(rows, name="t"))
    assert found.rows[2]["energy_gain_pct"] == pytest.approx(50)
    bare = row_metrics(table_of(ROWS, name="t"))
    assert bare.rows[0]["energy_gain_pct"] is None
    assert "no reference row" in bare.warnings[0]


def test_an_invalid_reference_is_refused():
    """Unknown, ambiguous or without energy, or an invalid k."""
    table = table_of(ROWS, name="t")
    for name, message in (
        ("fulll", "did you mean 'full'"),
        ("cap!=300", "2 rows have it"),
        ("lost", "the reference lost has no"),
    ):
        with pytest.raises(ConfigError, match=message):
            row_metrics(table, name)
    with pytest.raises(ConfigError, match="k is 1"):
        row_metrics(table, "full", k=(1.0,))
