"""Promises of the benchmark of speed, on traces written by hand."""

import sys
from pathlib import Path

import pytest
from tests.benchmarks.test_predict_h200 import written

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import predict_speed


def test_pairs_and_a_fit_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: many predictions and a fit are timed in seconds, with the bars of both."""
    rows = [row for row in written(tmp_path) if row.model == "mlp_4096x6"]
    (tmp_path / "gpu").mkdir()
    monkeypatch.setenv("WATTLOOP_BENCHMARK_TRACES", str(tmp_path))
    monkeypatch.setattr(predict_speed, "steps_file", lambda: tmp_path)
    monkeypatch.setattr("predict_points.rows", lambda path: iter(rows))
    found = {bar.name: bar for bar in predict_speed._of_model(quick=True)}
    assert found["pairs_1e6_s"].bar == 2.0
    assert found["fit_s"].bar == 60.0
    assert all((bar.value or 0) > 0 for bar in found.values())


def test_without_measured_rows_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Promise: without rows there are no figures, but a reason."""
    monkeypatch.setattr(predict_speed, "steps_file", lambda: None)
    for bar in predict_speed._of_model(quick=True):
        assert bar.value is None
        assert "not here" in bar.note
