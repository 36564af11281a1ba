"""Promises of `benchmarks/measure_overhead.py`: it runs without other tools and names its bars."""

from pathlib import Path

from tests.benchmarks.running import quick_bars

PROMISED = ["import_ms", "setup_ms", "window_us", "cpu_pct_10hz", "cpu_pct_100hz"]


def test_quick_run_writes_the_promised_bars(tmp_path: Path) -> None:
    """Other programs look for these names, with value, unit, bar and baselines."""
    bars = list(quick_bars("measure_overhead", tmp_path, "--no-peers").values())
    assert [bar["name"] for bar in bars][: len(PROMISED)] == PROMISED
    for bar in bars:
        assert set(bar) == {"name", "value", "unit", "bar", "baselines"}
        assert bar["value"] is None or bar["value"] >= 0
    assert all(bar["value"] is not None and bar["bar"] for bar in bars[: len(PROMISED)])
