"""Promises of rows behind charts: separate from definitions, once per page, and valid JSON."""

import json
import math
import re

import numpy as np
import pytest

pytest.importorskip("vl_convert", reason="vl-convert is not installed")

from wattloop.report.document import Chart, Document, Section
from wattloop.report.figures.chart import chart_parts, layers, mark, spec_of
from wattloop.report.figures.render import image_of
from wattloop.report.html import document_html
from wattloop.serve.blocks import sections_html

MANY = [{"x": n, "y": n / 7, "name": f"run {n}"} for n in range(300)]


def test_a_chart_is_small_until_it_is_written() -> None:
    """A page has the rows of all its charts separate from the definitions."""
    chart = layers(mark("point"), mark("line"), rows=MANY, x="x:Q", y="y:Q")
    spec, (table,) = chart_parts(chart)
    assert "run 299" not in json.dumps(spec)
    assert [row["name"] for row in table.rows] == [row["name"] for row in MANY]
    assert "run 299" in json.dumps(spec_of(chart))
    assert image_of(chart, ".svg").count(b'aria-roledescription="point"') == len(MANY)


def test_charts_of_the_same_rows_have_them_in_a_page_once() -> None:
    """In a report and on a page of the dashboard, also across sections."""
    charts = [mark("point", rows=[dict(row) for row in MANY], x=f"{x}:Q") for x in "xy"]
    sections = tuple(
        Section(f"part {n}", (Chart(f"chart{n}", chart, "points"),))
        for n, chart in enumerate(charts)
    )
    document = Document("t", "s", sections, 0.0, "0")
    assert document_html(document).count('"run 299"') == 1
    parts = "".join(text for _, text in sections_html(document))
    assert parts.count('"run 299"') == 1
    assert len(re.findall(r'id="(rows-\w+)"', parts)) == 1


def test_rows_with_any_content_are_valid_json() -> None:
    """NaN and infinity are null, numbers of NumPy are numbers, and a key may be missing."""
    odd = [
        {"a": math.nan, "b": np.float32(1.5), "c": np.int64(3)},
        {"a": -math.inf, "d": "</script>", "c": True},
    ]
    _, (table,) = chart_parts(mark("point", rows=odd, x="a:Q"))
    found = json.loads(table.text, parse_constant=pytest.fail)
    assert found["columns"] == ["a", "b", "c", "d"]
    assert found["rows"] == [[None, 1.5, 3, None], [None, None, True, "</script>"]]
