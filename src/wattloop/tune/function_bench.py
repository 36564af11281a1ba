"""Trainings that are a Python function, each in a thread of its own, one at a time.

A training is paused by letting its thread wait inside `trial.report` or `trial.epochs`: model,
optimizer and data stay where they are, and going on costs nothing.
"""

from collections.abc import Callable
from typing import Any

from wattloop.core.settings import Settings
from wattloop.tune.checkpoint import CandidateFiles
from wattloop.tune.course import Course
from wattloop.tune.function_training import FunctionTraining
from wattloop.tune.problem import Problem
from wattloop.tune.segment import Segment
from wattloop.tune.training_bench import TrainingBench
from wattloop.tune.trial import Trial

__all__ = ["FunctionBench"]


class FunctionBench(TrainingBench):
    """Runs `function(trial)`.

    Args:
        function: the training; what it returns, where that is a mapping of numbers, is reported.
        problem: the metric and the limits.
        settings: how to measure.
        options: as of `TrainingBench`.
    """

    what = "a function"

    def __init__(
        self,
        function: Callable[[Trial], Any],
        problem: Problem,
        settings: Settings,
        **options: Any,
    ) -> None:
        super().__init__(problem, settings, **options)
        self._function = function

    def _begin(
        self, segment: Segment, course: Course, files: CandidateFiles, *, resumed: bool
    ) -> FunctionTraining:
        return FunctionTraining(self._function, segment, course, files, resumed=resumed)
