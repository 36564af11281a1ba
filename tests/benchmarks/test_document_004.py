"""Promises of the benchmark of the published 8-GPU node."""

from pathlib import Path

from tests.benchmarks.running import quick_bars


def test_quick_run_predicts_the_published_caps(tmp_path: Path) -> None:
    """Promise: EDP, EDS(2) and gain minus loss within one step of 10 W, EDS(1.5) within two."""
    found = quick_bars("document_004", tmp_path)
    bars = {name: bar["value"] for name, bar in found.items()}
    for metric in ("edp", "eds_2", "gain_minus_loss"):
        assert bars[f"cap_error_{metric}"] <= 10
    assert bars["cap_error_eds_1.5"] <= 20
    assert bars["gain_error"] < 1
