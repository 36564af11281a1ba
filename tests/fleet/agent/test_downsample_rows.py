"""Promises of earlier rows: few of them show totals and gaps of a week."""

import math
from array import array

from wattloop.fleet.agent.open_runs import ROWS, downsample_rows
from wattloop.store.journal import SampleBlock


def test_first_last_and_every_new_beginning_are_kept() -> None:
    """100,000 rows with a gap and a counter that restarts; signals are not among them."""
    times_s = array("d", range(100_000))
    values = array("d", (float(i % 70_001) for i in range(100_000)))
    values[5_000] = math.nan
    blocks = [SampleBlock(0, 1, times_s, values), SampleBlock(1_000, 1, times_s, values)]
    chosen = downsample_rows(blocks)
    kept_s = {time_s for time_s, _ in chosen}
    assert {0.0, 99_999.0, 4_999.0, 5_000.0, 5_001.0, 70_000.0, 70_001.0} <= kept_s
    assert len(chosen) < 1.1 * ROWS


def test_a_journal_without_rows_has_none() -> None:
    """It was begun a moment before its agent was killed."""
    assert downsample_rows([]) == []
