"""Promises of the benchmark of the scheduler's engine."""

from pathlib import Path

from tests.benchmarks.running import quick_bars


def test_quick_run_has_its_bars(tmp_path: Path) -> None:
    """Promise: small jobs, every policy and its memory; SimPy and Philly where they are
    installed.
    """
    found = quick_bars("engine_speed", tmp_path)
    bars = {name: bar["value"] for name, bar in found.items()}
    always = {"fifo_2000_jobs", "busy_slowest_policy", "peak_memory"}
    assert always <= set(bars)
    assert set(bars) <= always | {"times_as_fast_as_simpy", "philly_first_1000"}
    assert all(value > 0 for value in bars.values())
