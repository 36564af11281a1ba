"""One training that is a program, followed through what it prints and writes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from wattloop.core.user_path import user_path
from wattloop.measure.command import child_environment
from wattloop.tune.account import Ended
from wattloop.tune.bench import Past
from wattloop.tune.cap_watch import NoCap, Steps
from wattloop.tune.checkpoint import CandidateFiles
from wattloop.tune.course import Course
from wattloop.tune.doorbell import Doorbell
from wattloop.tune.failures import classified_text
from wattloop.tune.metering import SegmentMeter
from wattloop.tune.metric_lines import Said
from wattloop.tune.pace import Pace, behind
from wattloop.tune.program import Program
from wattloop.tune.program_news import ProgramNews
from wattloop.tune.progress import Status
from wattloop.tune.segment import Segment

__all__ = ["CommandTraining", "Pausing"]

LOOK_EVERY_S = 0.02
DROP_GRACE_S = 5.0
SIGNALS = 128


class Pausing(NamedTuple):
    """How the program is paused: stopped where it is, or ended and begun again from its files."""

    checkpoint: bool = False
    grace_s: float = 30.0


class CommandTraining:
    """A program, paused between segments.

    Args:
        command: program and arguments.
        environment: variables added to ours.
        course: what it reports.
        files: its folder.
        pausing: how.
        metrics_file: that it writes, beside what it prints.
        resumed: whether its folder holds a checkpoint to go on from.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        course: Course,
        files: CandidateFiles,
        *,
        pausing: Pausing,
        metrics_file: str | None,
        resumed: bool,
    ) -> None:
        self.course = course
        self._command, self._environment, self._files = list(command), environment, files
        self._pausing, self._resumed = pausing, resumed
        self._program: Program | None = None
        self._output = files.folder / "output.log"
        self._reports = files.folder / "reports.jsonl"
        self._metrics_file = None if metrics_file is None else Path(user_path(metrics_file))
        wanted = course.wanted.metric
        self._news = ProgramNews(wanted, self._reports, self._output, self._metrics_file)
        self._steps: Steps = NoCap()
        files.make()
        self._bell = Doorbell(self._reports)
        self._waiting = False
        """Whether the paused program waits for a word; one that does not is stopped."""
        self._anew = False
        """Whether it saved nothing when it was ended, and begins again."""

    def advance(
        self,
        segment: Segment,
        meter: SegmentMeter,
        past: Past,
        steps: Steps,
        most_s: float | None,
    ) -> Ended:
        """Let the program run until the segment ends."""
        if self._anew:
            self.course, self._anew = Course(self.course.wanted, best=self.course.best), False
        begun = self._program is not None
        pace = Pace(segment, meter, self.course, None if begun else behind(self.course, past))
        self._steps = steps
        program = self._go_on(meter)
        over_s = None if most_s is None else meter.now_s() + most_s
        while True:
            ended = program.has_ended()
            for said in self._news.said(last=ended):
                status = self._heard(said, meter, pace)
                if status is not None:
                    self._waiting = said.waits
                    return self._paused(program, status, pace.over())
                if said.waits:
                    self._bell.go_on()
            if ended:
                self.course.finish(meter.now_s())
                silent = self.course.silent(meter.begin_s, meter.now_s())
                return self._own_end(program, pace.over(), self.course.missed or silent)
            if pace.between_steps() and self._may_be_stopped(pace):
                return self._paused(program, Status.PAUSED, pace.over())
            if over_s is not None and meter.now_s() > over_s:
                program.end(DROP_GRACE_S)
                message = f"the segment did not end within {most_s:g} s"
                return Ended(status=Status.TIMEOUT, message=message, from_s=pace.over())
            self._bell.wait(LOOK_EVERY_S)

    def drop(self) -> None:
        """End the program with everything it started."""
        program = self._program
        if program is not None:
            if self._waiting:  # it can clean up behind itself
                self._bell.stop()
                program.ends_within(DROP_GRACE_S)
            program.end(DROP_GRACE_S)
        self._bell.close()

    # -- inside ----------------------------------------------------------------------------

    def _go_on(self, meter: SegmentMeter) -> Program:
        waiting, self._waiting = self._waiting, False
        if self._program is not None:
            if waiting:
                self._bell.go_on()
            else:
                self._program.go_on()
            return self._program
        wanted = self.course.wanted.metric
        self._reports.unlink(missing_ok=True)
        self._bell.close()
        self._bell = Doorbell(self._reports)
        self._news = ProgramNews(wanted, self._reports, self._output, self._metrics_file)
        variables = {
            **child_environment(meter.session),
            **self._environment,
            "WATTLOOP_TRIAL_DIR": str(self._files.folder),
            "WATTLOOP_CHECKPOINT": str(self._files.checkpoint),
            "WATTLOOP_RESUMED": str(int(self._resumed)),
            "WATTLOOP_EPOCHS_DONE": f"{self.course.epochs:g}",
            "WATTLOOP_REPORTS": str(self._reports),
        }
        self._program = Program(self._command, variables, self._output)
        return self._program

    def _heard(self, said: Said, meter: SegmentMeter, pace: Pace) -> Status | None:
        """Take note of what it said; how the segment ends with it, if it does."""
        if said.event == "paused":
            return Status.PAUSED if pace.between_steps() else None
        if not self._took(said, meter.now_s()):
            return None
        self._files.note(self.course.epochs)
        self._steps.epoch()
        return pace.at_end_of_epoch()

    def _may_be_stopped(self, pace: Pace) -> bool:
        """Whether it can be stopped where it is; one that tells of its steps is asked to wait."""
        if not self._news.cooperates or pace.long_over(DROP_GRACE_S):
            return True
        self._bell.ask_to_pause()
        return False

    def _took(self, said: Said, at_s: float) -> bool:
        """Take note; whether an epoch has ended."""
        if said.event in ("begins", "counts"):
            self.course.counted = self.course.counted or said.event == "counts"
            return False
        if said.event == "epoch":
            self.course.end_epoch(at_s)
            return True
        if said.event == "steps":
            units = said.metrics.get("steps", 0.0)
            self.course.steps += units
            self.course.steps_each = said.metrics.get("each", self.course.steps_each)
            if units:
                self._steps.step(units)
            return False
        return self.course.report(said.metrics, said.epoch, at_s)

    def _paused(self, program: Program, status: Status, from_s: float) -> Ended:
        if status is Status.DIVERGED:
            program.end(DROP_GRACE_S)
            return Ended(status=status, message=self.course.diverged, from_s=from_s)
        warnings = [self.course.missed] if self.course.missed else []
        if self._pausing.checkpoint:
            warnings += self._saved(program)
        elif not self._waiting:
            program.pause()
            if status is Status.PAUSED and program.has_ended():
                status = Status.ENDED
        return Ended(status=status, from_s=from_s, warnings=tuple(warnings))

    def _saved(self, program: Program) -> list[str]:
        """End the program, to begin it again from what it saved."""
        in_time = program.end(self._pausing.grace_s)
        self._files.note(self.course.epochs)
        self._program, self._waiting = None, False
        self._resumed = self._files.saved_epochs is not None
        if self._resumed:
            return [] if in_time else [f"it did not end within {self._pausing.grace_s:g} s"]
        self._anew = True
        return [
            f"it saved nothing in {self._files.checkpoint}, so that it has to begin anew; save "
            "there when SIGTERM comes, or leave out 'checkpoint: true'"
        ]

    def _own_end(self, program: Program, from_s: float, warning: str) -> Ended:
        code = program.exit_code or 0
        said = program.last_lines()
        tail = f"; it said: {said}" if said else ""
        if self.course.diverged:
            return Ended(status=Status.DIVERGED, message=self.course.diverged, from_s=from_s)
        if code > SIGNALS:
            status = classified_text(said)
            if status is Status.FAILED:
                status = Status.KILLED
            message = f"ended by signal {code - SIGNALS}{tail}"
            return Ended(status=status, message=message, from_s=from_s)
        if code:
            message = f"exit code {code}{tail}"
            return Ended(status=classified_text(said), message=message, from_s=from_s)
        if self.course.wanted.metric and not self.course.seen:
            return Ended(status=Status.NO_METRIC, message=self._never(said), from_s=from_s)
        return Ended(status=Status.ENDED, from_s=from_s, warnings=(warning,) if warning else ())

    def _never(self, said: str) -> str:
        wanted = self.course.wanted.metric
        others = ", ".join(self.course.metrics)
        return (
            f"the command ended without reporting '{wanted}'"
            + (f", only {others}" if others else "")
            + f"; print a line such as '{wanted}=0.93' after each epoch, or write it to a file and "
            f"name that as metrics_file" + (f". It said: {said}" if said else "")
        )
