"""Trainings that are a Python function, each in a thread of its own, one at a time.

A training is paused by letting its thread wait inside `trial.report` or `trial.epochs`: model,
optimizer and data stay where they are, and going on costs nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattloop.core.settings import Settings
from wattloop.tune.account import Ended, account
from wattloop.tune.bench import Past
from wattloop.tune.checkpoint import CandidateFiles
from wattloop.tune.course import Course
from wattloop.tune.function_training import Training
from wattloop.tune.metering import SegmentMeter
from wattloop.tune.problem import Problem
from wattloop.tune.progress import Progress, Status
from wattloop.tune.segment import Segment
from wattloop.tune.trial import Trial

__all__ = ["FunctionBench"]


class FunctionBench:
    """Runs `function(trial)`.

    Args:
        function: the training; what it returns, where that is a mapping of numbers, is reported.
        problem: the metric and the limits.
        settings: how to measure.
        folder: where candidates keep their checkpoints.
        scope: whose energy counts; unless given the widest that somebody reads.
        tags: of the measured runs.
    """

    def __init__(
        self,
        function: Callable[[Trial], Any],
        problem: Problem,
        settings: Settings,
        *,
        folder: Path,
        scope: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self.scope = scope
        self._function, self._problem, self._settings = function, problem, settings
        self._folder, self._tags = folder, dict(tags or {})
        self._pasts: dict[str, Past] = {}
        self._trainings: dict[str, Training] = {}

    def recall(self, pasts: Mapping[str, Past]) -> None:
        """Go on from checkpoints, or train again what is asked for."""
        self._pasts.update(pasts)

    def run(self, segment: Segment) -> Progress:
        """Let the function go on until the segment ends."""
        if segment.rates is not None or not segment.keep:
            return Progress(
                status=Status.NOT_SUPPORTED,
                message="a function cannot put its model back, so nothing can be explored in it",
            )
        past = self._pasts.get(segment.candidate, Past())
        training = self._training(segment, past)
        meter = SegmentMeter(
            self._settings,
            self.scope,
            name=segment.key,
            tags={**self._tags, "segment": segment.key},
        )
        self.scope = self.scope or meter.scope
        ended = Ended(status=Status.KILLED, message="interrupted")
        try:
            ended = training.advance(segment, meter, past, self._problem.limits.trial_time_s)
        finally:
            meter.stop()
            meter.end(failed=not ended.status.good, killed=ended.status is Status.KILLED)
        ended = replace(ended, went_on=training.went_on)
        progress = account(meter, training.course, past, ended)
        self._pasts[segment.candidate] = past.after(segment, progress)
        if not progress.status.alive:
            self._trainings.pop(segment.candidate, None)
        return progress

    def let_go(self, candidate: str) -> None:
        """End its thread and remove its files."""
        training = self._trainings.pop(candidate, None)
        if training is not None:
            training.drop()
        CandidateFiles(self._folder, candidate).remove()

    def close(self) -> None:
        """End all threads; checkpoints stay, for a search that is resumed."""
        trainings, self._trainings = self._trainings, {}
        for training in trainings.values():
            training.drop()

    def _training(self, segment: Segment, past: Past) -> Training:
        known = self._trainings.get(segment.candidate)
        if known is not None:
            return known
        files = CandidateFiles(self._folder, segment.candidate)
        saved = files.saved_epochs if past.epochs else None
        if saved is None:
            files.clear()
        course = Course(self._problem.quality, epochs=saved or 0.0)
        training = Training(self._function, segment, course, files, resumed=saved is not None)
        self._trainings[segment.candidate] = training
        return training
