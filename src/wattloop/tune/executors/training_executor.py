"""Base of executors whose trainings report as they run: files, end of a segment, accounting."""

import hashlib
import json
import re
import shutil
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from wattloop.cap.online import OnlineRules
from wattloop.core.errors import ConfigError, LeverError
from wattloop.core.files import atomic_write_json
from wattloop.core.settings import Settings
from wattloop.tune.executors.base import TrainedSoFar
from wattloop.tune.executors.cap_search import CapSteps, start_cap_search
from wattloop.tune.executors.training_curve import TrainingCurve
from wattloop.tune.levers import LeverBoard
from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import CapFound, EpochPoint, Progress, Segment, Status
from wattloop.tune.segment_meter import SegmentMeter


class CandidateFiles:
    """Folder of a candidate: `checkpoint/` belongs to the training, the rest to the executor."""

    def __init__(self, base: Path, candidate: str) -> None:
        readable = re.sub(r"[^\w.=-]+", "_", candidate)[:60].strip("_.")
        mark = hashlib.sha256(candidate.encode()).hexdigest()[:8]
        self.folder = base / f"{readable}-{mark}"
        self.checkpoint = self.folder / "checkpoint"
        self._state = self.folder / "saved.json"
        self._known = self._signature()

    def make(self) -> None:
        self.checkpoint.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self._state.unlink(missing_ok=True)
        self.make()
        self._known = self._signature()

    def remove(self) -> None:
        """Remove the checkpoint; the output of the training stays."""
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self._state.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    @property
    def saved_epochs(self) -> float | None:
        if not self._signature():
            return None
        try:
            return float(json.loads(self._state.read_text())["epochs"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def note(self, epochs: float) -> None:
        """Record the end of an epoch; files that changed since the last one belong to it."""
        signature = self._signature()
        if not signature or signature == self._known:
            return
        self._known = signature
        with suppress(OSError):  # On a full disk a resumed search only loses this checkpoint.
            atomic_write_json(self._state, {"epochs": epochs})

    def _signature(self) -> frozenset[tuple[str, int, int]]:
        found = set()
        with suppress(OSError):
            for path in self.checkpoint.rglob("*"):
                facts = path.stat()
                found.add((str(path), facts.st_size, facts.st_mtime_ns))
        return frozenset(found)


LOOK_EVERY_S = 0.25
"""Period at which the remaining energy of the search is checked."""


class SegmentProgress:
    """Decision at each step and epoch whether the segment ends.

    Args:
        behind: earlier progress of the candidate, where this training has to repeat it.
    """

    def __init__(
        self, segment: Segment, meter: SegmentMeter, curve: TrainingCurve, behind: float | None
    ) -> None:
        self._until, self._meter, self._curve = segment.until, meter, curve
        self._repeat_to = behind or 0.0
        self.from_s = None if behind else meter.begin_s
        """Start of the segment itself; None while an earlier training is repeated."""
        self._look_s = meter.begin_s + LOOK_EVERY_S

    def at_end_of_epoch(self) -> Status | None:
        """Return how the segment ends here; None when it continues."""
        now_s = self._meter.now_s()
        if self.from_s is None:
            if self._curve.epochs < self._repeat_to and not self._curve.diverged:
                return None
            self.from_s = now_s
            if not self._curve.diverged:
                return None
        energy_j = None
        if self._until.energy_j is not None:
            energy_j = self._meter.energy_j(self.from_s, now_s)
        return self._curve.verdict(self._until, now_s - self.from_s, energy_j)

    @property
    def watched(self) -> bool:
        """Return whether `between_steps` may ever be true."""
        return self.anywhere or (self._until.most_j, self._until.most_s) != (None, None)

    @property
    def anywhere(self) -> bool:
        """Return whether the segment's own bounds may end it between two steps."""
        bounds = (self._until.time_s, self._until.energy_j)
        return self._until.anywhere and self.from_s is not None and bounds != (None, None)

    def between_steps(self) -> bool:
        if self._nothing_left():
            return True
        if not self.anywhere or self.from_s is None:
            return False
        now_s = self._meter.now_s()
        if self._until.time_s is not None and now_s - self.from_s >= self._until.time_s:
            return True
        energy_j = None
        if self._until.energy_j is not None:
            energy_j = self._meter.energy_j(self.from_s, now_s)
        return energy_j is not None and energy_j >= (self._until.energy_j or 0.0)

    def _nothing_left(self) -> bool:
        now_s, until = self._meter.now_s(), self._until
        if until.most_s is not None and now_s - self._meter.begin_s >= until.most_s:
            return True
        if until.most_j is None or now_s < self._look_s:
            return False
        self._look_s = now_s + LOOK_EVERY_S
        energy_j = self._meter.energy_j()
        return energy_j is not None and energy_j >= until.most_j

    def long_over(self, grace_s: float) -> bool:
        most_s = self._until.most_s
        return most_s is not None and self._meter.now_s() - self._meter.begin_s > most_s + grace_s

    def over(self) -> float:
        """End the segment and return when it began; the end itself where all was repetition."""
        return self._meter.now_s() if self.from_s is None else self.from_s


def epochs_behind(curve: TrainingCurve, past: TrainedSoFar) -> float | None:
    """Return the progress that a new training must repeat to reach its candidate's."""
    return past.epochs if curve.epochs < past.epochs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEnd:
    """End of a segment.

    Attributes:
        from_s: when the segment itself began; what ran before repeated an earlier training.
        continued: whether it resumed from a checkpoint of a killed attempt at the same segment.
    """

    status: Status
    message: str = ""
    from_s: float | None = None
    continued: bool = False
    cap: CapFound | None = None
    warnings: tuple[str, ...] = field(default=())


def segment_result(
    meter: SegmentMeter, curve: TrainingCurve, past: TrainedSoFar, ended: SegmentEnd
) -> Progress:
    """Return the progress of the segment; call it after the meter was stopped."""
    begin_s = meter.begin_s if ended.from_s is None else ended.from_s
    end_s = meter.stop()
    joules = meter.joules(begin_s, end_s)
    repeated_j = meter.energy_j(meter.begin_s, begin_s) if begin_s > meter.begin_s else 0.0
    repeated_s = begin_s - meter.begin_s
    before_s, before_j = 0.0, 0.0
    if ended.continued:  # the checkpoint of the killed attempt is part of this segment
        before_s, before_j = past.killed_s, past.killed_j
    else:
        repeated_s += past.killed_s
        repeated_j = None if repeated_j is None else repeated_j + past.killed_j
    points = []
    for mark in curve.marks:
        if mark.at_s < begin_s:
            continue
        energy_j = meter.energy_j(begin_s, mark.at_s)
        so_far_j = None
        if energy_j is not None and past.energy_j is not None:
            so_far_j = past.energy_j + before_j + energy_j
        points.append(
            EpochPoint(
                epoch=mark.epoch,
                quality=mark.quality,
                time_s=past.time_s + before_s + mark.at_s - begin_s,
                energy_j=so_far_j,
                metrics={n: v for n, v in mark.metrics.items() if n != curve.wanted.metric},
            )
        )
    return Progress(
        status=ended.status,
        time_s=before_s + end_s - begin_s,
        energy_j=None if joules.energy_j is None else before_j + joules.energy_j,
        uncertainty_j=joules.uncertainty_j,
        epochs=curve.epochs_now,
        quality=curve.quality,
        best=curve.best,
        curve=tuple(points),
        cap=ended.cap,
        metrics={n: v for n, v in curve.metrics.items() if n != curve.wanted.metric},
        provenance=joules.provenance,
        run_id=meter.session.run_id,
        message="; ".join(filter(None, (ended.message, *ended.warnings))),
        repeated_s=repeated_s,
        repeated_j=repeated_j,
        error=None if joules.error is None else joules.error.to_dict(),
    )


OUT_OF_MEMORY = re.compile(
    r"out of memory|not enough memory|OutOfMemoryError|\bMemoryError\b|CUDNN_STATUS_ALLOC_FAILED|"
    r"CUBLAS_STATUS_ALLOC_FAILED|std::bad_alloc|RESOURCE_EXHAUSTED|cannot allocate memory",
    re.IGNORECASE,
)
NOT_A_NUMBER = re.compile(
    r"\b(?:loss|gradients?|input|output)\b[^.\n]{0,60}\b(?:nan|inf|infinite|non-?finite)\b",
    re.IGNORECASE,
)


def classify_error(error: BaseException) -> tuple[Status, str]:
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


def classify_output(output: str) -> Status:
    if OUT_OF_MEMORY.search(output):
        return Status.OUT_OF_MEMORY
    return Status.DIVERGED if NOT_A_NUMBER.search(output) else Status.FAILED


WITHOUT = {"time", "quality"}
"""Objectives that need no energy."""


class ReportingTraining(Protocol):
    """One candidate's training, paused between segments."""

    curve: TrainingCurve

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
        continued = past.killed_s > 0 and training.curve.epochs > past.epochs
        ended, meter = self._measured(segment, training, past)
        progress = segment_result(meter, training.curve, past, replace(ended, continued=continued))
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
        steps = start_cap_search(
            segment.cap, self._board, meter.session, self._settings, self._cap_rules
        )
        try:
            training.curve.begin()
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

    def release(self, candidate: str) -> None:
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
        self, segment: Segment, curve: TrainingCurve, files: CandidateFiles, *, resumed: bool
    ) -> ReportingTraining:
        """Return a training that is ready to advance."""

    def _training(self, segment: Segment, past: TrainedSoFar) -> ReportingTraining:
        known = self._trainings.get(segment.candidate)
        if known is not None:
            return known
        files = CandidateFiles(self._folder, segment.candidate)
        saved = files.saved_epochs if past.epochs or past.killed_s else None
        if saved is None:
            files.clear()
        curve = TrainingCurve(self._problem.quality, epochs=saved or 0.0)
        training = self._begin(segment, curve, files, resumed=saved is not None)
        self._trainings[segment.candidate] = training
        return training


def needs_energy(problem: Problem) -> bool:
    return problem.limits.energy_j is not None or not set(problem.objective.names) <= WITHOUT
