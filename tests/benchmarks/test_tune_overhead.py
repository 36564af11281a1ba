"""Promises of the benchmark of the tuner's own cost."""

from pathlib import Path

from tests.benchmarks.running import quick_bars


def test_quick_run_has_its_bars(tmp_path: Path) -> None:
    """Promise: a short trial inside and outside of a search, and 300 trials listed and resumed."""
    found = quick_bars("tune_overhead", tmp_path)
    bars = {name: bar["value"] for name, bar in found.items()}
    reads = {f"{what}_300{ending}" for what in ("list", "resume") for ending in ("", "_cpu")}
    assert set(bars) == {"trial_cpu", "trial_wall", "epoch_cpu", *reads}
    assert all(value is not None for value in bars.values()), bars
    assert bars["trial_cpu"] > 0
