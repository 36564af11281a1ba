"""Promises of the tables for pull requests: names of tests stay text."""

from wattloop.check.figures import FigureKind, FigureSeries
from wattloop.check.markdown import comparison_markdown, table
from wattloop.check.verdict import BaselineComparison, judge


def test_names_and_remarks_are_text() -> None:
    """Promise: markup in a name or remark is neither a link, a cell nor HTML."""
    wild = "a | b <img src=x> [x](http://e) `c`\nd"
    text = table(("test",), [(wild,)])
    assert text.splitlines()[2] == "| a \\| b &lt;img src=x> \\[x](http://e) \\`c\\` d |"
    before, now = (FigureSeries(FigureKind.ENERGY, values) for values in ((1.0, 1.01), (2.0, 2.01)))
    found = BaselineComparison(wild, judge(before, now, 0.05), (), "measured", ("gpu:0",), ())
    whole = comparison_markdown(found, [wild])
    assert "### Energy check: regression" in whole
    assert "\n- a \\| b &lt;img" in whole
    (named,) = [line for line in whole.splitlines() if line.startswith("`")]
    assert named.count("`") == 2
