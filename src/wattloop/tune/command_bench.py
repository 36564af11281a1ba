"""Trainings that are a command: any program that prints or writes its metrics."""

from collections.abc import Sequence
from typing import Any

from wattloop.core.settings import Settings
from wattloop.measure.command import find_program
from wattloop.tune.checkpoint import CandidateFiles
from wattloop.tune.command_training import CommandTraining, Pausing
from wattloop.tune.command_words import command_words, parameter_variables
from wattloop.tune.course import Course
from wattloop.tune.levers import GPUS, gpu_variables
from wattloop.tune.problem import Problem
from wattloop.tune.segment import Segment, Value
from wattloop.tune.training_bench import TrainingBench

__all__ = ["CommandBench"]


class CommandBench(TrainingBench):
    """Runs a command for each candidate.

    Args:
        command: program and arguments, with placeholders (`command_words`).
        problem: the metric and the limits.
        settings: how to measure.
        search_id: marks its programs, so that those of a killed search are found.
        checkpoint: whether the program saves its state when it is asked to end (SIGTERM) and goes
            on from `WATTLOOP_CHECKPOINT`; unless so it is stopped where it is and keeps its memory.
        metrics_file: that the program writes, beside what it prints; may contain `{trial_dir}` and
            parameters.
        grace_s: how long it may take to save its state.
        options: as of `TrainingBench`.

    Raises:
        CommandError: there is no such program.
    """

    in_process = False
    what = "a command"

    def __init__(
        self,
        command: Sequence[str],
        problem: Problem,
        settings: Settings,
        *,
        search_id: str = "search",
        checkpoint: bool = False,
        metrics_file: str | None = None,
        grace_s: float = 30.0,
        **options: Any,
    ) -> None:
        super().__init__(problem, settings, **options)
        if "{" not in command[0]:
            find_program(command[0])
        self.command = list(command)
        self._search_id = search_id
        self._pausing = Pausing(checkpoint=checkpoint, grace_s=grace_s)
        self._metrics_file = metrics_file

    def _begin(
        self, segment: Segment, course: Course, files: CandidateFiles, *, resumed: bool
    ) -> CommandTraining:
        files.make()
        levers = {f"wattloop.{name}": value for name, value in segment.levers.items()}
        named: dict[str, Value] = {
            **segment.parameters,
            **levers,
            "wattloop.trial_dir": str(files.folder),
            "wattloop.checkpoint": str(files.checkpoint),
            "wattloop.seed": segment.seed,
        }
        given = {*segment.parameters, *segment.levers}
        inactive = [n for n in self._problem.space.parameters if n not in given]
        words = command_words(self.command or [], named, inactive=inactive, folder=files.folder)
        metrics = None
        if self._metrics_file is not None:
            metrics = command_words([self._metrics_file], named, folder=files.folder)[0]
        variables = {
            **parameter_variables(segment.parameters),
            "WATTLOOP_TRIAL": f"{self._search_id}/{segment.candidate}",
            "WATTLOOP_SEED": str(segment.seed),
            "PYTHONUNBUFFERED": "1",
        }
        count = segment.levers.get(GPUS)
        if isinstance(count, int | float):
            variables |= gpu_variables(int(count))
        return CommandTraining(
            words,
            variables,
            course,
            files,
            pausing=self._pausing,
            metrics_file=metrics,
            resumed=resumed,
        )
