"""Promises of `benchmarks/sampling_interval.py`: it runs, and counters do not depend on the
interval.
"""

from pathlib import Path

from tests.benchmarks.running import quick_bars


def test_quick_run_measures_counters_at_every_interval(tmp_path: Path) -> None:
    """A counter read four times too rarely for its load still gives the energy of a window."""
    bars = quick_bars("sampling_interval", tmp_path)
    assert {"counter_worst_error_pct", "gauge_worst_error_pct", "worst_stop_ms"} <= set(bars)
    counter = bars["counter_worst_error_pct"]
    assert counter["value"] < counter["baselines"]["EA2P's way"]
