"""Promises of the figures of sm2: those of Geißler et al., labelled, with their source."""

import json

import pytest

from wattloop.report.figures.chart import spec_of
from wattloop.report.figures.render import save
from wattloop.report.figures.search import SweptRates, course_figure, rate_figure, sm2_figures
from wattloop.testing.strategy_contract import played
from wattloop.testing.synthetic_trainings import SyntheticExecutor, synthetic_problem
from wattloop.tune.strategies.sm2.sm2 import Sm2

pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")
pytest.importorskip("vl_convert", reason="the extra 'figures' is not installed")


def test_both_figures_of_a_search(tmp_path) -> None:
    """Figure 1 for each configuration and figure 2 for all of them, and they can be drawn."""
    bench = SyntheticExecutor(synthetic_problem(ranges=True, target=None))
    strategy = Sm2(bench.problem, patience=2, least_gain=0.02, configurations=4)
    played(strategy, bench)
    figures = sm2_figures(strategy, said="energy of gpu, simulated")
    assert set(figures) == {"rates-c0", "rates-c1", "rates-c2", "rates-c3", "course"}
    text = json.dumps(spec_of(figures["course"]))
    for word in ("Accuracy", "Energy per epoch (J)", "Learning rate", "simulated"):
        assert word in text
    files = save(figures, tmp_path, title="sm2")
    assert len([f for f in files if f.suffix == ".svg"]) == 5


def test_the_chosen_window_is_marked() -> None:
    """Figure 1 has two dotted lines at the edges of the window, and a ring at the rate."""
    losses = [(0.001, 2.0), (0.01, 1.5), (0.1, 1.0), (1.0, float("inf"))]
    swept = SweptRates(label="batch 64", losses=losses, window=(0.01, 0.1), rate=0.1)
    spec = spec_of(rate_figure(swept))
    _, window, ring = spec["layer"]
    edges = [row["edge"] for row in window["data"]["values"]]
    assert edges == [0.01, 0.1]
    assert ring["data"]["values"] == [{"rate": 0.1, "loss": 1.0}]
    assert "1 rates broke the model" in json.dumps(spec)


def test_without_data_there_is_no_figure() -> None:
    """Without data there is not even an empty frame."""
    assert rate_figure(SweptRates(label="", losses=[(0.1, float("nan"))])) is None
    assert course_figure([], "accuracy") is None
