"""One training in a thread that waits whenever it is not its turn."""

import contextvars
import ctypes
import threading
from collections.abc import Callable, Mapping
from typing import Any

from wattloop.tune.account import Ended
from wattloop.tune.bench import Past
from wattloop.tune.cap_watch import NoCap, Steps
from wattloop.tune.checkpoint import CandidateFiles
from wattloop.tune.course import Course
from wattloop.tune.failures import classified
from wattloop.tune.function_trial import FunctionTrial
from wattloop.tune.metering import SegmentMeter
from wattloop.tune.pace import Pace, behind
from wattloop.tune.progress import Status
from wattloop.tune.running_trial import trial_here
from wattloop.tune.seeding import RandomState, seed_everything
from wattloop.tune.segment import Segment
from wattloop.tune.trial import Trial, TrialStopped, numbers_of

__all__ = ["FunctionTraining"]

PATIENCE_S = 10.0
"""How long a function may take to end after it was stopped."""


class FunctionTraining:
    """A function being trained, paused between segments.

    Args:
        function: takes the trial.
        first: the segment that begins it.
        course: what it reports.
        files: its folder.
        resumed: whether that holds a checkpoint to go on from.
    """

    def __init__(
        self,
        function: Callable[[Trial], Any],
        first: Segment,
        course: Course,
        files: CandidateFiles,
        *,
        resumed: bool,
    ) -> None:
        self.course = course
        self._function, self._files = function, files
        self._seed = first.seed
        self._trial = FunctionTrial(self, first, files.checkpoint, resumed=resumed)
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._meter: SegmentMeter | None = None
        self._pace: Pace | None = None
        self._steps: Steps = NoCap()
        self._ended: Ended | None = None
        self._dropped = False
        self._random: RandomState | None = None
        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._work,),
            name=f"wattloop-{first.candidate}"[:60],
            daemon=True,
        )

    # -- for the bench ---------------------------------------------------------------------

    def advance(
        self,
        segment: Segment,
        meter: SegmentMeter,
        past: Past,
        steps: Steps,
        most_s: float | None,
    ) -> Ended:
        """Train until the segment ends."""
        begun = self._thread.is_alive()
        self._meter, self._ended, self._steps = meter, None, steps
        self._pace = Pace(segment, meter, self.course, None if begun else behind(self.course, past))
        self._trial.begins(segment, self._pace)
        if not begun:
            self._thread.start()
        self._turn.release()
        if not self._back.acquire(timeout=most_s):
            return self._overdue(most_s or 0.0)
        return self._how()

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

    def _how(self) -> Ended:
        assert self._ended is not None
        return self._ended

    # -- for the trial, in the thread ------------------------------------------------------

    def report(self, metrics: Mapping[str, float], epoch: float | None) -> None:
        """Numbers from the function; returns when it is to go on."""
        self._leave_if_dropped()
        assert self._meter is not None
        if self.course.report(metrics, epoch, self._meter.now_s()):
            self._at_end_of_epoch()

    def end_epoch(self) -> None:
        """The function's own end of an epoch; returns when it is to go on."""
        self._leave_if_dropped()
        assert self._meter is not None
        self.course.end_epoch(self._meter.now_s())
        self._at_end_of_epoch()

    def step(self, units: float) -> None:
        """A step of the function has ended."""
        self.course.steps += units
        self._steps.step(units)

    def between_steps(self) -> None:
        """Pause where the segment ends within an epoch; returns when it is to go on."""
        self._leave_if_dropped()
        if self._pace is not None and self._pace.between_steps():
            self._pause(Status.PAUSED)

    # -- inside ----------------------------------------------------------------------------

    def _at_end_of_epoch(self) -> None:
        assert self._pace is not None
        self._files.note(self.course.epochs)
        self._steps.epoch()
        status = self._pace.at_end_of_epoch()
        if status is Status.DIVERGED:
            self._end(status, self.course.diverged)
            raise TrialStopped
        if status is not None:
            self._pause(status)

    def _pause(self, status: Status) -> None:
        self._random = RandomState()
        self._end(status, "")
        self._turn.acquire()
        self._leave_if_dropped()
        self._random.restore()

    def _was_dropped(self) -> bool:
        return self._dropped

    def _leave_if_dropped(self) -> None:
        if self._dropped:
            raise TrialStopped

    def _work(self) -> None:
        self._turn.acquire()
        if self._was_dropped():
            return
        trial_here.set(self._trial)
        seed_everything(self._seed)
        status, message = Status.ENDED, ""
        try:
            returned = self._function(self._trial)
            if isinstance(returned, Mapping) and returned:
                self._last_report(returned)
        except TrialStopped:
            if self._was_dropped():
                return
            status, message = Status.DIVERGED, self.course.diverged
        except SystemExit as end:
            if end.code not in (None, 0):
                status, message = Status.FAILED, f"it ended itself: {end.code}"
        except BaseException as error:  # noqa: BLE001 - a training that fails is a result
            status, message = classified(error)
        if self._ended is None:
            if status is Status.ENDED:
                status, message = self._own_end()
            self._end(status, message)

    def _last_report(self, returned: Mapping[str, Any]) -> None:
        assert self._meter is not None
        self.course.conclude(numbers_of(returned), self._meter.now_s())

    def _own_end(self) -> tuple[Status, str]:
        if self._meter is not None:
            self.course.finish(self._meter.now_s())
        if self.course.diverged:
            return Status.DIVERGED, self.course.diverged
        if self.course.wanted.metric and not self.course.seen:
            wanted = self.course.wanted.metric
            others = ", ".join(self.course.metrics)
            said = f"it reported {others}" if others else "it reported nothing"
            return Status.NO_METRIC, (
                f"it ended without reporting '{wanted}' ({said}); call trial.report({wanted}=...)"
            )
        return Status.ENDED, ""

    def _end(self, status: Status, message: str) -> None:
        warnings = (self.course.missed,) if self.course.missed else ()
        from_s = None if self._pace is None else self._pace.over()
        self._ended = Ended(status=status, message=message, from_s=from_s, warnings=warnings)
        if self._meter is not None:
            self._meter.stop()
        self._back.release()

    def _overdue(self, most_s: float) -> Ended:
        self._dropped = True
        self._interrupt()
        self._thread.join(PATIENCE_S)
        still = "; it does not end, and disturbs what follows" if self._thread.is_alive() else ""
        return Ended(
            status=Status.TIMEOUT,
            message=f"the segment did not end within {most_s:g} s{still}",
            from_s=None if self._pace is None else self._pace.over(),
        )

    def _interrupt(self) -> None:
        """Raise `TrialStopped` at the next line of Python that the thread comes to."""
        number = self._thread.ident
        if number is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(number), ctypes.py_object(TrialStopped)
            )
