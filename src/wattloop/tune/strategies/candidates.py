"""Candidates of a strategy, with the results it was told."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from wattloop.accounting.energy_delay import Point
from wattloop.control.lever import Setting
from wattloop.core.errors import StrategyError
from wattloop.core.units import format_duration, format_energy, format_number
from wattloop.tune.objective import NEED_QUALITY, TrainingCost, rescale
from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import CAP_LEVER, Progress, Segment, Status, Until, Value
from wattloop.tune.space import Configuration, configuration_key
from wattloop.tune.strategies.base import Chosen


@dataclass(slots=True, kw_only=True)
class Candidate:
    """One configuration, with cost and quality of its training so far.

    Attributes:
        energy_j: None when some of it could not be read.
        status: of its last segment; None before the first was told.
        cut: whether a limit of the search ended its training early.
    """

    name: str
    parameters: Configuration
    levers: dict[str, Setting]
    time_s: float = 0.0
    energy_j: float | None = 0.0
    quality: float | None = None
    epochs: float = 0.0
    status: Status | None = None
    segments: int = 0
    asked: Segment | None = None
    cut: bool = False
    learning_rate: float | None = None
    tags: dict[str, float] = field(default_factory=dict)


class CandidateTable:
    """All candidates of a search in the order of their start."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.candidates: dict[str, Candidate] = {}
        self.default = problem.space.complete(problem.default) if problem.default else {}
        self._seen: set[str] = set()
        self._looked_at: tuple[Mapping[str, Value], str] | None = None
        self.bounded = True
        """Whether limits apply; not during replay, when they may have been others."""
        self._reference: Point | None = None

    def __len__(self) -> int:
        return len(self.candidates)

    @property
    def full(self) -> bool:
        most = self.problem.limits.candidates
        return self.bounded and most is not None and len(self.candidates) >= most

    def seen(self, configuration: Mapping[str, Value]) -> bool:
        key = configuration_key(configuration)
        self._looked_at = (configuration, key)
        return key in self._seen

    def begin(self, configuration: Mapping[str, Value]) -> Candidate:
        parameters, levers = self.problem.space.split(configuration)
        rate = parameters.get(self.problem.rate) if self.problem.rate else None
        candidate = Candidate(
            name=f"c{len(self.candidates)}",
            parameters=parameters,
            levers=levers,
            learning_rate=float(rate) if isinstance(rate, int | float) else None,
        )
        self.candidates[candidate.name] = candidate
        # A configuration to start was mostly just looked up: a resumed search starts thousands.
        looked, key = self._looked_at or (None, "")
        self._seen.add(key if looked is configuration else configuration_key(configuration))
        return candidate

    def segment(
        self,
        candidate: Candidate,
        energy_j: float | None = None,
        epochs: float | None = None,
        *,
        timed: bool = False,
    ) -> Segment:
        """Return the next segment of its training: to the target, the end, or `energy_j` further
        (seconds where `timed`).

        `epochs` in all are the limit's unless given. The first segment searches for the candidate's
        own power cap, where one may be set.
        """
        first = candidate.segments == 0
        segment = Segment(
            key=f"{candidate.name}.{candidate.segments}",
            candidate=candidate.name,
            parameters=candidate.parameters,
            levers=dict(candidate.levers),
            until=Until(
                epochs=self.problem.limits.epochs if epochs is None else epochs,
                energy_j=None if timed else energy_j,
                time_s=energy_j if timed else None,
                at_target=self.at_target,
            ),
            seed=self.problem.seed,
            cap=self.problem.cap if first else None,
        )
        candidate.segments += 1
        candidate.asked = segment
        return segment

    @cached_property
    def at_target(self) -> bool:
        """Return whether a training ends at the target: not where more quality is worth more."""
        names = self.problem.objective.names
        return self.problem.quality.target is not None and not NEED_QUALITY & set(names)

    def tell(self, segment: Segment, progress: Progress, *, cut: bool = False) -> Candidate:
        """Add a segment to its candidate; `cut` where it was to be longer.

        Raises:
            StrategyError: it was not asked for, or told already.
        """
        candidate = self.candidates.get(segment.candidate)
        if candidate is None or candidate.asked is None or candidate.asked.key != segment.key:
            raise StrategyError(f"segment {segment.key!r} was not asked for, or told before")
        candidate.asked = None
        candidate.status, candidate.cut = progress.status, cut
        candidate.time_s += progress.time_s
        if progress.energy_j is None or candidate.energy_j is None:
            candidate.energy_j = None
        else:
            candidate.energy_j += progress.energy_j
        candidate.epochs = progress.epochs or candidate.epochs
        best = progress.best if progress.best is not None else progress.quality
        if best is not None and math.isfinite(best):
            known = candidate.quality
            if known is None or self.problem.quality.better(best, known):
                candidate.quality = best
        if progress.cap is not None and progress.cap.cap_w is not None:
            candidate.levers[CAP_LEVER] = progress.cap.cap_w
        if self._reference is None and self.comparable(candidate) and candidate.energy_j:
            self._reference = Point(candidate.time_s, candidate.energy_j)
        return candidate

    def comparable(self, candidate: Candidate) -> bool:
        """Return whether its numbers may be compared: it did not fail, and has a quality."""
        if candidate.status is None or not candidate.status.good or candidate.cut:
            return False
        return candidate.quality is not None or not self.problem.quality.metric

    def enough(self, candidate: Candidate) -> bool:
        """Return whether it may be chosen: comparable, and at the target."""
        target = self.problem.quality.target
        return self.comparable(candidate) and (
            target is None or self.problem.quality.reached(candidate.quality)
        )

    def short_by(self, candidate: Candidate) -> float:
        quality = self.problem.quality
        if quality.target is None or candidate.quality is None:
            return 0.0
        missing = quality.target - candidate.quality
        return missing if quality.maximize else -missing

    def scores(self, candidate: Candidate) -> tuple[float, ...]:
        """Return the scores by each objective; the first comparable candidate is the reference."""
        return self.problem.objective.scores(training_cost(candidate), self._reference)

    def best(self, among: Iterable[Candidate] | None = None) -> Chosen | None:
        """Return the best of those that reach the target; ties go to the first."""
        found = self.ranked(among)
        return None if not found else self._chosen(*found[0], of=len(found))

    def front(self) -> list[Chosen]:
        found = self.ranked()
        return [
            self._chosen(candidate, scores, of=len(found))
            for candidate, scores in found
            if not any(_beats(other, scores) for _, other in found)
        ]

    def ranked(
        self, among: Iterable[Candidate] | None = None
    ) -> list[tuple[Candidate, tuple[float, ...]]]:
        """Return those that reach the target with their scores, best first.

        Of several objectives, the nearest to the best of each comes first, on rescaled axes.
        """
        them = [c for c in (among or self.candidates.values()) if self.enough(c)]
        objective = self.problem.objective
        compared = objective.compared([training_cost(c) for c in them], self._reference)
        pairs = zip(them, compared, strict=True)
        finite = [(c, scores) for c, scores in pairs if all(map(math.isfinite, scores))]
        if not objective.several:
            return sorted(finite, key=lambda pair: pair[1])
        axes = [rescale(column) for column in zip(*(s for _, s in finite), strict=True)]
        far = [math.hypot(*place) for place in zip(*axes, strict=True)]
        order = sorted(range(len(finite)), key=far.__getitem__)
        return [finite[index] for index in order]

    def _chosen(self, candidate: Candidate, scores: tuple[float, ...], of: int) -> Chosen:
        quality = self.problem.quality
        names = self.problem.objective.names
        said = [quality.metric if name == "quality" else name for name in names]
        pairs = zip(said, names, scores, strict=True)
        shown = ", ".join(f"{word} {_shown(name, score)}" for word, name, score in pairs)
        good = f" with {quality.metric} {candidate.quality:.4g}" if candidate.quality else ""
        good *= "quality" not in names
        them, note = f"{of} that {'is' if of == 1 else 'are'} good enough", ""
        if quality.target is None:
            them = str(of)
            if quality.metric and not NEED_QUALITY.intersection(names):
                note = f"; no target is stated, so that {quality.metric} did not count"
        return Chosen(
            candidate=candidate.name,
            parameters=dict(candidate.parameters),
            levers=dict(candidate.levers),
            why=f"best by {'+'.join(names)} of {them}: {shown}{good}{note}",
        )


def training_cost(candidate: Candidate) -> TrainingCost:
    return TrainingCost(
        time_s=candidate.time_s,
        energy_j=candidate.energy_j,
        quality=candidate.quality,
        epochs=candidate.epochs or None,
        learning_rate=candidate.learning_rate,
    )


def _shown(name: str, score: float) -> str:
    if name == "energy":
        return format_energy(score)
    return format_duration(score) if name == "time" else format_number(abs(score))


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))
