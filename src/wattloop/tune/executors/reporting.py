"""Base of executors whose trainings report as they run, and the classification of failures."""

import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from wattloop.cap.online import OnlineRules
from wattloop.core.errors import ConfigError, LeverError
from wattloop.core.settings import Settings
from wattloop.tune.executors.base import TrainedSoFar
from wattloop.tune.executors.cap_search import CapSteps, watch_for
from wattloop.tune.executors.checkpoint import CandidateFiles
from wattloop.tune.executors.segment_progress import SegmentEnd, account
from wattloop.tune.executors.training_curve import TrainingCurve
from wattloop.tune.levers import LeverBoard
from wattloop.tune.problem import Problem
from wattloop.tune.progress import Progress, Status
from wattloop.tune.segment import Segment
from wattloop.tune.segment_meter import SegmentMeter

OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|\bMemoryError\b|CUDNN_STATUS_ALLOC_FAILED|"
    r"CUBLAS_STATUS_ALLOC_FAILED|std::bad_alloc|RESOURCE_EXHAUSTED|cannot allocate memory",
    re.IGNORECASE,
)
NOT_A_NUMBER = re.compile(
    r"\b(?:loss|gradients?|input|output)\b[^.\n]{0,60}\b(?:nan|inf|infinite|non-?finite)\b",
    re.IGNORECASE,
)


def classified(error: BaseException) -> tuple[Status, str]:
    kind = type(error).__name__
    text = f"{kind}: {error}" if str(error) else kind
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        text += f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
    if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(f"{kind} {error}"):
        return Status.OUT_OF_MEMORY, text
    if isinstance(error, FloatingPointError) or NOT_A_NUMBER.search(str(error)):
        return Status.DIVERGED, text
    return Status.FAILED, text


def classified_text(output: str) -> Status:
    if OUT_OF_MEMORY.search(output):
        return Status.OUT_OF_MEMORY
    return Status.DIVERGED if NOT_A_NUMBER.search(output) else Status.FAILED


WITHOUT = {"time", "quality"}
"""Objectives that need no energy."""


class ReportingTraining(Protocol):
    """One candidate's training, paused between segments."""

    course: TrainingCurve

    def advance(
        self,
        segment: Segment,
        meter: SegmentMeter,
        past: TrainedSoFar,
        steps: CapSteps,
        most_s: float | None,
    ) -> SegmentEnd:
        """Train until the segment ends, and pass the progress to `steps`."""

    def drop(self) -> None: ...


class ReportingExecutor(ABC):
    """Executor that measures the segments of trainings that report.

    Args:
        folder: where candidates keep their files.
        scope: whose energy counts; unless given the widest that is read, without GPUs that were
            idle during the first training.
        gpus: numbers of the GPUs whose levers may be set; those that CUDA sees unless given.
        cap_rules: how long probes for a power cap last.
        state_directory: where levers are journaled, for tests.
    """

    in_process = True
    command: Sequence[str] | None = None
    what = "a training"

    def __init__(
        self,
        problem: Problem,
        settings: Settings,
        *,
        folder: Path,
        scope: str | None = None,
        tags: Mapping[str, str] | None = None,
        gpus: str | None = None,
        cap_rules: OnlineRules | None = None,
        state_directory: Path | None = None,
    ) -> None:
        self.scope = scope
        self._problem, self._settings = problem, settings
        self._folder, self._tags = folder, dict(tags or {})
        self._cap_rules = cap_rules
        self._board = LeverBoard(
            problem.space,
            settings,
            caps=problem.cap is not None,
            gpus=gpus,
            state_directory=state_directory,
        )
        self._pasts: dict[str, TrainedSoFar] = {}
        self._trainings: dict[str, ReportingTraining] = {}

    def recall(self, pasts: Mapping[str, TrainedSoFar]) -> None:
        self._pasts.update(pasts)

    def run(self, segment: Segment) -> Progress:
        if segment.rates is not None or not segment.keep:
            return Progress(
                status=Status.NOT_SUPPORTED,
                message=f"{self.what} cannot put its model back, so nothing can be explored in it",
            )
        rate = self._problem.rate
        if rate is not None and segment.learning_rate is not None:
            parameters = {**segment.parameters, rate: segment.learning_rate}
            segment = replace(segment, parameters=parameters)
        past = self._pasts.get(segment.candidate, TrainedSoFar())
        try:
            self._board.set(segment.levers)
        except (ConfigError, LeverError) as error:
            return Progress(
                status=Status.NOT_SET,
                epochs=past.epochs,
                quality=past.quality,
                best=past.best,
                message=str(error),
            )
        training = self._training(segment, past)
        went_on = past.died_s > 0 and training.course.epochs > past.epochs
        ended, meter = self._measured(segment, training, past)
        progress = account(meter, training.course, past, replace(ended, went_on=went_on))
        self._pasts[segment.candidate] = past.after(segment, progress)
        if not progress.status.alive:
            self._trainings.pop(segment.candidate, None)
        return progress

    def _measured(
        self, segment: Segment, training: ReportingTraining, past: TrainedSoFar
    ) -> tuple[SegmentEnd, SegmentMeter]:
        meter = SegmentMeter(
            self._settings,
            self.scope,
            name=segment.key,
            tags={**self._tags, "segment": segment.key},
            command=self.command,
            in_process=self.in_process,
        )
        if needs_energy(self._problem) and not meter.reads():
            meter.end(failed=True)
            raise ConfigError(
                f"the energy of the {meter.scope or 'machine'} is not read here, and the search is "
                "for the least of it; 'wattloop devices' says what can be read, 'scope' chooses"
            )
        ended = SegmentEnd(status=Status.KILLED, message="interrupted")
        steps = watch_for(segment.cap, self._board, meter.session, self._settings, self._cap_rules)
        try:
            training.course.begin()
            ended = training.advance(segment, meter, past, steps, self._problem.limits.trial_time_s)
        finally:
            meter.stop()
            cap = steps.found()
            meter.end(failed=not ended.status.good, killed=ended.status is Status.KILLED)
        self.scope = self.scope or meter.scope
        warnings = (*ended.warnings, *filter(None, [meter.scope_note]))
        return replace(ended, cap=cap, warnings=warnings), meter

    def rest(self) -> None:
        """Restore levers until the next segment, so that other processes can set them."""
        self._board.close()

    def let_go(self, candidate: str) -> None:
        training = self._trainings.pop(candidate, None)
        if training is not None:
            training.drop()
        CandidateFiles(self._folder, candidate).remove()

    def close(self) -> None:
        """End all trainings and restore levers; checkpoints stay, for a search that is resumed."""
        trainings, self._trainings = self._trainings, {}
        try:
            for training in trainings.values():
                training.drop()
        finally:
            self._board.close()

    @abstractmethod
    def _begin(
        self, segment: Segment, course: TrainingCurve, files: CandidateFiles, *, resumed: bool
    ) -> ReportingTraining:
        """Return a training that is ready to advance."""

    def _training(self, segment: Segment, past: TrainedSoFar) -> ReportingTraining:
        known = self._trainings.get(segment.candidate)
        if known is not None:
            return known
        files = CandidateFiles(self._folder, segment.candidate)
        saved = files.saved_epochs if past.epochs or past.died_s else None
        if saved is None:
            files.clear()
        course = TrainingCurve(self._problem.quality, epochs=saved or 0.0)
        training = self._begin(segment, course, files, resumed=saved is not None)
        self._trainings[segment.candidate] = training
        return training


def needs_energy(problem: Problem) -> bool:
    return problem.limits.energy_j is not None or not set(problem.objective.names) <= WITHOUT
