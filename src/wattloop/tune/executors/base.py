"""The executor protocol, resumable progress of a candidate, and random states."""

import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from wattloop.core.settings import Settings
from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import Progress, Segment


class TrialExecutor(Protocol):
    """Executor of segments. It keeps resumable candidates until they are released.

    An executor that can run several segments at once has an attribute `slots` with their number.
    `run` is then called from as many threads, never for two segments of one candidate.
    """

    def run(self, segment: Segment) -> Progress:
        """Train the candidate from where it was paused until the segment ends."""

    def release(self, candidate: str) -> None:
        """Release a candidate that the search will not continue; an unknown name is ignored."""

    def close(self) -> None:
        """End all paused trainings and restore levers."""


ExecutorFactory = Callable[[Settings], TrialExecutor]
"""Builds the executor of a worker from its settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedSoFar:
    """Progress of a candidate's training.

    Attributes:
        time_s, energy_j: they took, in the scope of the search; energy None when not known.
        quality, best: the metric at the end, and the best of all epochs.
        killed_s, killed_j: cost of a segment whose process was killed.
    """

    epochs: float = 0.0
    time_s: float = 0.0
    energy_j: float | None = 0.0
    quality: float | None = None
    best: float | None = None
    killed_s: float = 0.0
    killed_j: float = 0.0

    def after(self, segment: Segment, progress: Progress) -> "TrainedSoFar":
        """Return the progress after `segment`; an exploration only adds its cost."""
        known = self.energy_j is not None and progress.energy_j is not None
        reached = progress if segment.keep and segment.rates is None else self
        # Not dataclasses.replace, which dominates the run time: a resumed search calls this once
        # for each of its thousands of segments.
        return TrainedSoFar(
            epochs=reached.epochs,
            time_s=self.time_s + progress.time_s,
            energy_j=(self.energy_j or 0.0) + (progress.energy_j or 0.0) if known else None,
            quality=reached.quality,
            best=reached.best,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorParts:
    """Inputs for a custom executor (`search(bench=lambda parts: ...)`).

    Attributes:
        tags: of measured runs; they name the search.
        scope: whose energy counts; None when the executor may choose.
        search_id: name of the search in its store.
        variables: environment of the programs that the executor starts. By it the next run of the
            search finds and ends those that a killed one left.
    """

    problem: Problem
    settings: Settings
    folder: Path
    tags: Mapping[str, str]
    scope: str | None
    search_id: str
    variables: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Resumable(Protocol):
    """Executor that can resume candidates that a killed process has trained."""

    def recall(self, pasts: Mapping[str, TrainedSoFar]) -> None:
        """Register candidates that can be resumed, and the progress of each."""


def seed_everything(seed: int) -> None:
    """Seed Python's generator, and those of numpy and torch where the program has loaded them."""
    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    if torch is not None:
        torch.manual_seed(seed)  # of all devices


def random_states(device: Any = None) -> dict[str, Any]:
    """Copy the states of all generators; of the GPUs only `device`, where one is given."""
    states: dict[str, Any] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if device is None and torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda_all"] = torch.cuda.get_rng_state_all()
        elif device is not None and device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Any], device: Any = None) -> None:
    random.setstate(states["python"])
    if "numpy" in states:
        import numpy as np

        np.random.set_state(states["numpy"])
    if "torch" in states:
        import torch

        torch.set_rng_state(states["torch"])
        if "cuda_all" in states:
            torch.cuda.set_rng_state_all(states["cuda_all"])
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], device)
