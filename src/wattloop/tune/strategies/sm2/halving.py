"""History of one configuration in SM2, and the objective that selects the better half."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattloop.control.lever import Setting
from wattloop.tune.objective import sm2_scores
from wattloop.tune.progress import Progress, RateLoss, Status
from wattloop.tune.segment import Value
from wattloop.tune.strategies.sm2.learning_rates import RatePick


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm2Epoch:
    """One epoch of one configuration, as figure 2 shows it.

    Attributes:
        place: how many epochs of any kind came before it.
        exploring: whether it was an exploratory one.
        rate: it was trained with; after an exploratory one the rate that was found.
        score: of the objective, after an exploratory one with others to compare with.
    """

    candidate: str
    place: int
    exploring: bool
    quality: float | None
    energy_j: float | None
    rate: float | None
    score: float | None = None


@dataclass(slots=True)
class CandidateHistory:
    """Progress of a configuration.

    Attributes:
        rate: the learning rate it continues with; None for what the configuration says.
        most_rate: it diverged at twice this one.
        explored_quality, explored_energy_j, explored_time_s: of its last exploratory epoch.
        place: epochs of any kind so far.
        fault: why it is out; empty while it is in.
    """

    name: str
    parameters: Mapping[str, Value]
    levers: Mapping[str, Setting]
    rate: float | None = None
    most_rate: float = math.inf
    epochs: float = 0.0
    segments: int = 0
    quality: float | None = None
    best: float | None = None
    explored_quality: float | None = None
    explored_energy_j: float | None = None
    explored_time_s: float = 0.0
    qualities: list[float | None] = field(default_factory=list)
    place: int = 0
    spent_j: float | None = 0.0
    fault: str = ""
    ended: bool = False
    reached: bool = False
    retries: int = 0
    swept: tuple[RateLoss, ...] = ()
    pick: RatePick | None = None
    epoch_records: list[Sm2Epoch] = field(default_factory=list)

    def spend(self, progress: Progress) -> None:
        known = self.spent_j is not None and progress.energy_j is not None
        self.spent_j = (self.spent_j or 0.0) + (progress.energy_j or 0.0) if known else None

    def explored(self, progress: Progress, share: float) -> None:
        """Record an exploratory epoch; energy is that of a whole epoch."""
        per_epoch = progress.metrics.get("epoch_energy_j")
        trained = progress.curve[-1].epoch - self.epochs if progress.curve else share
        if per_epoch is None and progress.energy_j is not None:
            per_epoch = progress.energy_j / max(trained, 1e-9)
        time_s = progress.metrics.get("epoch_time_s", progress.time_s / max(trained, 1e-9))
        self.explored_quality = self.quality if progress.quality is None else progress.quality
        self.explored_energy_j, self.explored_time_s = per_epoch, time_s
        self._add(exploring=True, quality=progress.quality, energy_j=per_epoch)

    def trained(self, progress: Progress) -> None:
        before_j = self.spent_j
        for point in progress.curve:
            known = point.energy_j is not None and before_j is not None
            energy_j = (point.energy_j or 0.0) - (before_j or 0.0) if known else None
            before_j = point.energy_j
            self.qualities.append(point.quality)
            self._add(exploring=False, quality=point.quality, energy_j=energy_j)
        self.epochs = max(self.epochs, progress.epochs)
        self.quality = progress.quality if progress.quality is not None else self.quality
        self.best = progress.best if progress.best is not None else self.best
        self.reached = self.reached or progress.status is Status.REACHED
        self.ended = self.ended or progress.status is Status.ENDED

    def _add(self, *, exploring: bool, quality: float | None, energy_j: float | None) -> None:
        self.epoch_records.append(
            Sm2Epoch(
                candidate=self.name,
                place=self.place,
                exploring=exploring,
                quality=quality,
                energy_j=energy_j,
                rate=self.rate,
            )
        )
        self.place += 1


def halving_scores(
    histories: Sequence[CandidateHistory], *, alpha: float, beta: float, maximize: bool
) -> dict[str, float]:
    """Return equation 2 for each, by name; larger is better."""
    energy_j = [history.explored_energy_j for history in histories]
    if any(energy is None for energy in energy_j):
        # Without a meter, time stands in for energy.
        energy_j = [history.explored_time_s for history in histories]
    quality = [history.explored_quality for history in histories]
    if all(value is None for value in quality):
        quality = [0.0 for _ in histories]  # this executor reports no rates of sweeps
    rates = [history.rate for history in histories]
    scores = sm2_scores(quality, energy_j, rates, alpha=alpha, beta=beta, maximize=maximize)
    return {history.name: score for history, score in zip(histories, scores, strict=True)}


def epoch_cost(history: CandidateHistory) -> float:
    known = history.explored_energy_j
    return history.explored_time_s if known is None else known


def better_half(scores: Mapping[str, float], costs: Mapping[str, float]) -> list[str]:
    """Return the better half, rounded up; ties to the cheaper, then to the earlier."""
    order = {name: number for number, name in enumerate(scores)}
    ranked = sorted(scores, key=lambda n: (-scores[n], costs[n], order[n]))
    kept = set(ranked[: (len(ranked) + 1) // 2])
    return [name for name in scores if name in kept]
