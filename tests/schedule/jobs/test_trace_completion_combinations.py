"""Promises of distinct rows of columns, by counting or sorting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattloop.schedule.jobs import trace_completion
from wattloop.schedule.jobs.trace_completion import Combinations


@pytest.mark.parametrize("widest", [1, 1 << 24])
@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(-2, 3), st.integers(0, 500), st.integers(0, 2))))
def test_rows_are_found_again(widest, rows) -> None:
    """Each row points at itself; combinations are ordered, counted and unique."""
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    before, trace_completion.WIDEST = trace_completion.WIDEST, widest
    try:
        found = Combinations.of(*columns)
    finally:
        trace_completion.WIDEST = before
    assert found.rows == sorted(set(rows))
    assert [found.rows[n] for n in found.of_job] == rows
    assert found.counts == [rows.count(row) for row in found.rows]
