"""What runs segments: a function, a command, a table that is replayed, a cluster."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from wattloop.core.settings import Settings
from wattloop.tune.problem import Problem
from wattloop.tune.progress import Progress
from wattloop.tune.segment import Segment


class TrialExecutor(Protocol):
    """Runs segments. Candidates whose training can go on are kept until they are let go.

    A bench that can run several segments at once says how many in an attribute `slots`; then `run`
    is called from as many threads, never for two segments of one candidate.
    """

    def run(self, segment: Segment) -> Progress:
        """Train, from where this candidate was paused, until the segment ends."""

    def let_go(self, candidate: str) -> None:
        """This candidate will not be asked for again; one that is not known is no error."""

    def close(self) -> None:
        """End everything that is paused, and put levers back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedSoFar:
    """How far the training of a candidate is.

    Attributes:
        epochs: trained and kept.
        time_s, energy_j: they took, in the scope of the search; energy None when not known.
        quality, best: the metric at the end, and the best of all epochs.
        died_s, died_j: a segment that was under way when its process was killed took so much.
    """

    epochs: float = 0.0
    time_s: float = 0.0
    energy_j: float | None = 0.0
    quality: float | None = None
    best: float | None = None
    died_s: float = 0.0
    died_j: float = 0.0

    def after(self, segment: Segment, progress: Progress) -> "TrainedSoFar":
        """As it is when `segment` has ended; an exploration leaves only its cost."""
        known = self.energy_j is not None and progress.energy_j is not None
        reached = progress if segment.keep and segment.rates is None else self
        # not by dataclasses.replace, which takes longer than all else here: a search that is
        # resumed comes here once for each of its thousands of segments
        return TrainedSoFar(
            epochs=reached.epochs,
            time_s=self.time_s + progress.time_s,
            energy_j=(self.energy_j or 0.0) + (progress.energy_j or 0.0) if known else None,
            quality=reached.quality,
            best=reached.best,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorParts:
    """What a search has for a bench of one's own (`search(bench=lambda parts: ...)`).

    Attributes:
        problem: with the metric and the limits.
        settings: how to measure.
        folder: for checkpoints and output.
        tags: for measured runs, which tell to what they belong.
        scope: whose energy counts; None when the bench may choose.
        search_id: marks programs that are started.
    """

    problem: Problem
    settings: Settings
    folder: Path
    tags: Mapping[str, str]
    scope: str | None
    search_id: str


@runtime_checkable
class Resumable(Protocol):
    """A bench that can go on with candidates that a killed process has trained."""

    def recall(self, pasts: Mapping[str, TrainedSoFar]) -> None:
        """Candidates that can still be asked for, and how far each was."""
