"""Executor of a Python training function, in a thread that is paused between segments."""

import contextvars
import ctypes
import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wattloop.core.settings import Settings
from wattloop.tune.executors.base import (
    TrainedSoFar,
    random_states,
    seed_everything,
    set_random_states,
)
from wattloop.tune.executors.cap_search import CapSteps
from wattloop.tune.executors.training_curve import TrainingCurve
from wattloop.tune.executors.training_executor import (
    CandidateFiles,
    ReportingExecutor,
    SegmentEnd,
    SegmentProgress,
    classify_error,
    epochs_behind,
)
from wattloop.tune.levers import GPUS
from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import Segment, Status, Value
from wattloop.tune.segment_meter import SegmentMeter
from wattloop.tune.trial import Trial, TrialStopped, thread_trial, to_numbers

LOOK_EVERY_S = 0.05


class FunctionTrial(Trial):
    """Trial of a training function; passes its reports to the training."""

    def __init__(
        self, training: "FunctionTraining", first: Segment, checkpoint: Path, *, resumed: bool
    ) -> None:
        self.params = _params(first)
        self.seed = first.seed
        self.resumed = resumed
        self.epochs_done = training.curve.epochs
        self.checkpoint = checkpoint
        self._training = training
        self._look_s = math.inf

    def begins(self, segment: Segment, bounds: SegmentProgress) -> None:
        self.params = _params(segment)
        self._look_s = 0.0 if bounds.watched else math.inf

    def step(self, units: float = 1.0) -> None:
        self._training.step(units)
        if self._look_s < math.inf:
            now_s = time.monotonic()
            if now_s >= self._look_s:
                self._look_s = now_s + LOOK_EVERY_S
                self._training.between_steps()

    def expect_steps(self, count: float) -> None:
        self._training.curve.steps_each = count

    def _report(self, metrics: Mapping[str, float], epoch: float | None) -> None:
        self._training.report(metrics, epoch)

    def _count_epochs(self) -> None:
        self._training.curve.counted = True

    def _end_epoch(self) -> None:
        self._training.end_epoch()


def _params(segment: Segment) -> dict[str, Value]:
    count = segment.levers.get(GPUS)
    return {**segment.parameters, **({} if count is None else {GPUS: count})}


PATIENCE_S = 10.0
"""Longest time that a function may take to end after it was stopped."""


class FunctionTraining:
    """Training of a function, paused between segments."""

    def __init__(
        self,
        function: Callable[[Trial], Any],
        first: Segment,
        curve: TrainingCurve,
        files: CandidateFiles,
        *,
        resumed: bool,
    ) -> None:
        self.curve = curve
        self._function, self._files = function, files
        self._seed = first.seed
        self._trial = FunctionTrial(self, first, files.checkpoint, resumed=resumed)
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._meter: SegmentMeter | None = None
        self._bounds: SegmentProgress | None = None
        self._steps = CapSteps()
        self._ended: SegmentEnd | None = None
        self._dropped = False
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._work,),
            name=f"wattloop-{first.candidate}"[:60],
            daemon=True,
        )

    # Called by the executor.

    def advance(
        self,
        segment: Segment,
        meter: SegmentMeter,
        past: TrainedSoFar,
        steps: CapSteps,
        most_s: float | None,
    ) -> SegmentEnd:
        begun = self._thread.is_alive()
        self._meter, self._ended, self._steps = meter, None, steps
        self._bounds = SegmentProgress(
            segment, meter, self.curve, None if begun else epochs_behind(self.curve, past)
        )
        self._trial.begins(segment, self._bounds)
        if not begun:
            self._thread.start()
        self._turn.release()
        if not self._back.acquire(timeout=most_s):
            return self._overdue(most_s or 0.0)
        return self._ended or SegmentEnd(status=Status.FAILED)

    def drop(self) -> None:
        """End the thread; `finally` blocks of the function run."""
        if not self._thread.is_alive():
            return
        self._dropped = True
        self._turn.release()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self._interrupt()
            self._thread.join(PATIENCE_S)

    # Called by the trial, in the thread of the function.

    def report(self, metrics: Mapping[str, float], epoch: float | None) -> None:
        self._leave_if_dropped()
        assert self._meter is not None
        if self.curve.report(metrics, epoch, self._meter.now_s()):
            self._at_end_of_epoch()

    def end_epoch(self) -> None:
        self._leave_if_dropped()
        assert self._meter is not None
        self.curve.end_epoch(self._meter.now_s())
        self._at_end_of_epoch()

    def step(self, units: float) -> None:
        self.curve.steps += units
        self._steps.step(units)

    def between_steps(self) -> None:
        self._leave_if_dropped()
        if self._bounds is not None and self._bounds.between_steps():
            self._pause(Status.PAUSED)

    def _at_end_of_epoch(self) -> None:
        assert self._bounds is not None
        self._files.note(self.curve.epochs)
        self._steps.epoch()
        status = self._bounds.at_end_of_epoch()
        if status is Status.DIVERGED:
            self._end(status, self.curve.diverged)
            raise TrialStopped
        if status is not None:
            self._pause(status)

    def _pause(self, status: Status) -> None:
        states = random_states()
        self._end(status, "")
        self._turn.acquire()
        self._leave_if_dropped()
        set_random_states(states)

    def _was_dropped(self) -> bool:
        return self._dropped

    def _leave_if_dropped(self) -> None:
        if self._dropped:
            raise TrialStopped

    def _work(self) -> None:
        self._turn.acquire()
        if self._was_dropped():
            return
        thread_trial.set(self._trial)
        seed_everything(self._seed)
        status, message = Status.ENDED, ""
        try:
            returned = self._function(self._trial)
            if isinstance(returned, Mapping) and returned:
                assert self._meter is not None
                self.curve.conclude(to_numbers(returned), self._meter.now_s())
        except TrialStopped:
            if self._was_dropped():
                return
            status, message = Status.DIVERGED, self.curve.diverged
        except SystemExit as end:
            if end.code not in (None, 0):
                status, message = Status.FAILED, f"it ended itself: {end.code}"
        except BaseException as error:  # noqa: BLE001 - a training that fails is a result
            status, message = classify_error(error)
        if self._ended is None:
            if status is Status.ENDED:
                status, message = self._own_end()
            self._end(status, message)

    def _own_end(self) -> tuple[Status, str]:
        if self._meter is not None:
            self.curve.finish(self._meter.now_s())
        if self.curve.diverged:
            return Status.DIVERGED, self.curve.diverged
        if self.curve.wanted.metric and not self.curve.seen:
            wanted = self.curve.wanted.metric
            others = ", ".join(self.curve.metrics)
            said = f"it reported {others}" if others else "it reported nothing"
            return Status.NO_METRIC, (
                f"it ended without reporting '{wanted}' ({said}); call trial.report({wanted}=...)"
            )
        return Status.ENDED, ""

    def _end(self, status: Status, message: str) -> None:
        warnings = (self.curve.missed,) if self.curve.missed else ()
        from_s = None if self._bounds is None else self._bounds.over()
        self._ended = SegmentEnd(status=status, message=message, from_s=from_s, warnings=warnings)
        if self._meter is not None:
            self._meter.stop()
        self._back.release()

    def _overdue(self, most_s: float) -> SegmentEnd:
        self._dropped = True
        self._interrupt()
        self._thread.join(PATIENCE_S)
        still = "; it does not end, and disturbs what follows" if self._thread.is_alive() else ""
        return SegmentEnd(
            status=Status.TIMEOUT,
            message=f"the segment did not end within {most_s:g} s{still}",
            from_s=None if self._bounds is None else self._bounds.over(),
        )

    def _interrupt(self) -> None:
        """Raise `TrialStopped` at the next line of Python that the thread executes."""
        number = self._thread.ident
        if number is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(number), ctypes.py_object(TrialStopped)
            )


# A training is paused by blocking its thread inside `trial.report` or `trial.epochs`: model,
# optimizer and data stay in memory, and resuming costs nothing.


class FunctionExecutor(ReportingExecutor):
    """Executor that calls `function(trial)`.

    Args:
        function: the training; what it returns, where that is a mapping of numbers, is reported.
    """

    what = "a function"

    def __init__(
        self, function: Callable[[Trial], Any], problem: Problem, settings: Settings, **options: Any
    ) -> None:
        super().__init__(problem, settings, **options)
        self._function = function

    def _begin(
        self, segment: Segment, curve: TrainingCurve, files: CandidateFiles, *, resumed: bool
    ) -> FunctionTraining:
        return FunctionTraining(self._function, segment, curve, files, resumed=resumed)
