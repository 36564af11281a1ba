"""Promises of leaving one model out: the fitted constants never saw it."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from tests.predict.test_intervals import HERE, STEP

from predict_fits import leave_one_out
from wattloop.core.errors import ConfigError
from wattloop.predict.models.model import MeasuredStep, Model
from wattloop.predict.prediction import Placement, Prediction
from wattloop.predict.workload.workload import Workload


class Mean(Model):
    """A model that predicts the mean of its training points."""

    name = "mean"

    def __init__(self, step_s: float = 0.0) -> None:
        self.step_s = step_s

    def fit(self, points: Sequence[MeasuredStep]) -> "Mean":
        return Mean(sum(p.step_s for p in points) / len(points))

    def predict(self, workload: Workload, placement: Placement) -> Prediction:
        return Prediction(self.step_s, 100.0)

    def constants(self) -> Mapping[str, object]:
        return {"step_s": self.step_s}


def points() -> list[MeasuredStep]:
    times = (("a", 1.0), ("b", 3.0), ("a", 1.0), ("c", 5.0))
    return [MeasuredStep(STEP, HERE, step_s, 100.0, group) for group, step_s in times]


def test_no_point_is_predicted_by_constants_that_saw_its_model() -> None:
    """Promise: each group is predicted from the others alone, in the order of the points."""
    seen: list[str] = []
    judged = leave_one_out(Mean(), points(), seen.append)
    assert [j.prediction.step_s for j in judged] == [4.0, 7 / 3, 4.0, 5 / 3]
    assert [j.point.group for j in judged] == ["a", "b", "a", "c"]
    assert seen == ["a", "b", "c"]
    assert judged[3].residual.time == pytest.approx(1.0986, abs=1e-4)


def test_other_steps_join_every_fit_unless_they_are_of_the_model_left_out() -> None:
    """Promise: `also` adds to the training points, and never lets a model see itself."""
    also = [MeasuredStep(STEP, HERE, 10.0, None, "d"), MeasuredStep(STEP, HERE, 100.0, None, "c")]
    judged = leave_one_out(Mean(), points(), also=lambda _: also)
    assert len(judged) == 4
    assert judged[0].prediction.step_s == (3 + 5 + 10 + 100) / 4
    assert judged[3].prediction.step_s == (1 + 3 + 1 + 10) / 4


def test_one_model_alone_cannot_be_left_out() -> None:
    """Promise: a single group is a clear error, not an empty fit."""
    with pytest.raises(ConfigError, match="at least two"):
        leave_one_out(Mean(), points()[:1])
