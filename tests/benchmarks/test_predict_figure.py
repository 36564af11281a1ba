"""Promises of the figure of predicted against measured steps."""

import sys
from pathlib import Path

import pytest

from wattloop.report.figures.chart import spec_of

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from predict_figure import PredictedStep, predicted_figures


def test_every_step_is_a_point_in_three_panels_with_its_units() -> None:
    """Promise: time in ms, power in W and energy in J, each step once, coloured by its kind."""
    pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")
    steps = [
        PredictedStep("gpt2 x 8", "transformer", "bf16", (0.06, 500.0), (0.05, 510.0)),
        PredictedStep("resnet x 8", "convolutional", "fp32", (0.01, 200.0), (0.02, 210.0)),
    ]
    spec = spec_of(predicted_figures(steps, "H200")["predicted"])
    assert "H200" in spec["title"]["subtitle"]
    wanted = {0: ("ms", 60.0), 1: ("(W)", 500.0), 2: ("(J", 30.0)}
    for place, (unit, first) in wanted.items():
        band, points = spec["hconcat"][place]["layer"]
        assert unit in band["encoding"]["x"]["title"]
        values = points["data"]["values"]
        assert [v["kind"] for v in values] == ["transformer", "convolutional"]
        assert values[0]["measured"] == pytest.approx(first)


def test_without_measurements_there_is_no_figure() -> None:
    """Promise: no steps give no chart, not an empty one."""
    assert predicted_figures([]) == {}
