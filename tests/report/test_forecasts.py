"""Promises of the figure of predictions: points that do not fit or are uncalibrated are marked."""

from typing import Any

import pytest

from tests.predict.small import small_workload
from wattloop.predict.comparison import Axis, ComparisonPoint
from wattloop.predict.forecaster import Forecaster
from wattloop.predict.request import Question

pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")

from wattloop.report.figures.chart import spec_of
from wattloop.report.figures.prediction import forecast_figures


def drawn(axes: list[Axis]) -> Any:
    """Return the drawn definition, for every combination of two axes."""
    forecaster, question = Forecaster(), Question(model=small_workload(peak_bytes=60e9))
    points = []
    for first in axes[0].values:
        for second in axes[1].values:
            asked = question.varied(axes[0].name, first).varied(axes[1].name, second)
            setting = {axes[0].name: first, axes[1].name: second}
            points.append(ComparisonPoint(setting, forecaster.answer(asked)))
    return spec_of(forecast_figures(points, axes)["predictions"])


def test_curves_are_drawn_against_the_first_axis() -> None:
    """Caps are on the horizontal axis, a colour is a GPU, and the caption says what is drawn."""
    spec = drawn([Axis("cap", (300.0, 400.0)), Axis("gpu", ("a100", "h200"))])
    assert [panel["layer"][0]["encoding"]["y"]["title"] for panel in spec["hconcat"]] == [
        "Samples per second",
        "Power per GPU (W)",
        "Energy per sample (J)",
    ]
    first = spec["hconcat"][0]["encoding"]
    assert first["x"]["title"] == "Power cap (W)"
    assert first["color"]["sort"] == ["gpu a100", "gpu h200"]
    assert "predicted by kernels, energy of the GPUs" in spec["title"]["subtitle"]


def test_points_that_do_not_fit_are_hollow_and_named() -> None:
    """60 GB fit on an H200 and not on an A100 with 40 GB."""
    spec = drawn([Axis("gpu", ("a100-pcie-40", "h200")), Axis("gpus", (1,))])
    layers = spec["hconcat"][0]["layer"]
    filled = [layer for layer in layers if layer.get("transform") == [{"filter": "datum.fits"}]]
    assert len(filled) == 1
    assert "hollow: does not fit into memory" in spec["title"]["subtitle"]
    data = filled[0].get("data") or spec["hconcat"][0].get("data") or spec["data"]
    assert [row["fits"] for row in data["values"]] == [False, True]


def test_uncalibrated_gpus_are_diamonds_and_named() -> None:
    """An H200 was calibrated, an L4 is predicted from its data sheet."""
    spec = drawn([Axis("gpu", ("l4", "h200")), Axis("gpus", (1,))])
    for panel in spec["hconcat"]:
        marks = [layer for layer in panel["layer"] if layer["mark"]["type"] == "point"]
        assert [mark["encoding"]["shape"]["field"] for mark in marks] == ["shape", "shape"]
        data = marks[0].get("data") or panel.get("data") or spec["data"]
        assert [row["shape"] for row in data["values"]] == ["diamond", "circle"]
    assert "diamonds: spec-only, not calibrated (l4)" in spec["title"]["subtitle"]
    calibrated = drawn([Axis("gpu", ("h200",)), Axis("gpus", (1,))])
    assert "spec-only" not in calibrated["title"]["subtitle"]
