"""Promises of findings: text, cells and plain data agree."""

import json

from wattloop.analyze.analysis_result import Findings, cell


def made():
    inner = Findings(title="inner", columns={"x": "X"}, rows=({"x": 1},))
    return Findings(
        title="outer",
        name="main",
        columns={"run": "run", "value": "value"},
        rows=({"run": "a", "value": 1234.56, "more": 2}, {"run": "b", "value": None}),
        formats={"value": ".1f"},
        facts={"r2": 0.5},
        notes=("how",),
        warnings=("beware",),
        others=(inner,),
    )


def test_text_has_everything_in_order():
    """Title, aligned columns, facts, notes, warnings, then the other tables."""
    assert made().text.splitlines() == [
        "outer",
        "run  value",
        "a    1234.6",
        "b    -",
        "r2: 0.5",
        "how",
        "warning: beware",
        "",
        "inner",
        "X",
        "1",
    ]


def test_plain_data_keeps_what_is_not_shown():
    """Values in full, and fields without a column."""
    data = json.loads(json.dumps(made().to_dict()))
    assert data["rows"][0] == {"run": "a", "value": 1234.56, "more": 2}
    assert data["tables"][0]["rows"] == [{"x": 1}]
    assert data["facts"] == {"r2": 0.5}


def test_cells_are_short_and_missing_is_a_dash():
    """Four digits, and whole numbers in full."""
    values = (None, float("nan"), True, 7, 0.123456, 12345.6, 1e-7, "x")
    assert [cell(v) for v in values] == [
        *("-", "-", "yes", "7", "0.1235", "12,346", "1e-07", "x"),
    ]
