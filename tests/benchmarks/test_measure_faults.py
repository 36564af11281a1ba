"""Promises of the benchmark of faults: it runs, and a small run meets its bars."""

from pathlib import Path

from tests.benchmarks.running import quick_bars


def test_quick_run_loses_nothing(tmp_path: Path) -> None:
    """Promise: one kill of each kind, a full disk and eight ranks: every named bar has a value."""
    found = quick_bars("measure_faults", tmp_path, "--ranks", "4")
    bars = {name: bar["value"] for name, bar in found.items()}
    assert {"runs_lost", "corrupt_files", "worst_lost_s", "ranks_total_error_pct"} <= set(bars)
    assert (bars["runs_lost"], bars["corrupt_files"], bars["programs_harmed"]) == (0, 0, 0)
