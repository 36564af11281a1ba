"""Candidate in the race: its progress, its cost per epoch, its learning rate."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from wattloop.control.lever import Setting
from wattloop.tune.search_problem import Quality
from wattloop.tune.segment import CAP_LEVER, CapFound, Progress, RateSweep, Segment, Value

# The first segment of a training includes its start: imports, data, model. It is paid once, not
# with every epoch, and becomes visible when the training resumes.

LEAST_SHARE = 1e-6
"""Least share of an epoch that counts."""
DEARER = 0.1
"""A first segment that costs this much more than later ones includes a start."""
START_ERROR = 0.2
"""Relative difference between the starts of two candidates."""
LEAST_LEFT = 0.05
"""Least share of a first segment for training, however high other starts were."""


@dataclass(frozen=True, slots=True)
class EpochCost:
    """Cost of one epoch, and the relative standard error of the energy."""

    energy_j: float
    time_s: float
    error: float


@dataclass(frozen=True, slots=True)
class StartCost:
    """Cost to start a training."""

    energy_j: float = 0.0
    time_s: float = 0.0


@dataclass(slots=True)
class TrainedSpan:
    """Training under one cap."""

    epochs: float = 0.0
    energy_j: float = 0.0
    time_s: float = 0.0
    error_j: float = 0.0

    def add(self, other: "TrainedSpan") -> None:
        self.epochs += other.epochs
        self.energy_j += other.energy_j
        self.time_s += other.time_s
        self.error_j = math.hypot(self.error_j, other.error_j)

    @property
    def epoch(self) -> EpochCost | None:
        """Return the average epoch; None when it was too short."""
        if self.epochs < LEAST_SHARE or self.energy_j <= 0:
            return None
        return EpochCost(
            self.energy_j / self.epochs, self.time_s / self.epochs, self.error_j / self.energy_j
        )

    def after(self, start: StartCost) -> "TrainedSpan":
        """Return the training alone, if it included this start."""
        return TrainedSpan(
            self.epochs,
            max(self.energy_j - start.energy_j, LEAST_LEFT * self.energy_j),
            max(self.time_s - start.time_s, LEAST_LEFT * self.time_s),
            math.hypot(self.error_j, START_ERROR * start.energy_j),
        )


def trained_span(progress: Progress, epochs: float) -> TrainedSpan:
    return TrainedSpan(epochs, spent_j(progress), progress.time_s, progress.uncertainty_j)


def spent_j(progress: Progress) -> float:
    """Return the energy; without a meter the time, so that shorter is better."""
    return progress.time_s if progress.energy_j is None else progress.energy_j


def split_opening(
    progress: Progress, epochs: float, before: TrainedSpan
) -> tuple[TrainedSpan, TrainedSpan]:
    """Split the first segment of a training: to the end of the first epoch, and the rest; all is in
    the former where the curve does not tell.
    """
    whole = trained_span(progress, epochs)
    if not progress.curve or progress.curve[0].epoch >= epochs:
        return whole, TrainedSpan()
    first = progress.curve[0]
    time_s = first.time_s - before.time_s
    told_j = first.time_s if progress.energy_j is None else first.energy_j
    own_j = None if told_j is None else told_j - before.energy_j
    if own_j is None or not 0 < own_j < whole.energy_j:
        return whole, TrainedSpan()
    share = own_j / whole.energy_j
    one = TrainedSpan(first.epoch, own_j, time_s, whole.error_j * math.sqrt(share))
    rest = TrainedSpan(
        epochs - one.epochs,
        whole.energy_j - own_j,
        max(whole.time_s - time_s, 0.0),
        whole.error_j * math.sqrt(1 - share),
    )
    return one, rest


def start_cost(opening: TrainedSpan, usual: EpochCost) -> StartCost:
    """Return the start that a first segment includes, given the usual cost of an epoch."""
    more_j = opening.energy_j - opening.epochs * usual.energy_j
    noise = DEARER + 3 * math.hypot(usual.error, opening.error_j / max(opening.energy_j, 1e-12))
    if more_j <= noise * opening.epochs * usual.energy_j:
        return StartCost()
    return StartCost(more_j, max(opening.time_s - opening.epochs * usual.time_s, 0.0))


@dataclass(slots=True)
class Runner:
    """Candidate and all its observations.

    Attributes:
        points: (epochs, best quality so far) at the ends of epochs, quality None before the first.
        uncapped, capped, searching: what was trained before, after and while its own cap was found,
            without the opening.
        opening, opening_in: its first stretch, at most one epoch, and which of those it belongs to.
        start: assumed while the opening is all there is; None before any was seen.
        cap: what was found; None before.
        cap_short_s: the longest segment that was too short to find one.
        learning_rate: found by a sweep; `sweep` is the one that is due, `sweeps` were told.
        swept: where its loss fell fastest, to compare with that of others; None where not known.
        metered: whether energy could be read; without, seconds stand in for joules.
        fault: why it is out of the race; empty while it is in.
        slow: whether that was for its cost alone.
        reached: epochs after which it was good enough.
        trainings, spread2: how many trainings are merged, and the sum of squared differences of the
            logarithms of their epochs.
    """

    name: str
    parameters: Mapping[str, Value]
    levers: dict[str, Setting] = field(default_factory=dict)
    epochs: float = 0.0
    points: list[tuple[float, float | None]] = field(default_factory=list)
    uncapped: TrainedSpan = field(default_factory=TrainedSpan)
    capped: TrainedSpan = field(default_factory=TrainedSpan)
    searching: TrainedSpan = field(default_factory=TrainedSpan)
    opening: TrainedSpan = field(default_factory=TrainedSpan)
    opening_in: str = ""
    start: StartCost | None = None
    cap: CapFound | None = None
    cap_tries: int = 0
    cap_short_s: float = 0.0
    learning_rate: float | None = None
    sweep: RateSweep | None = None
    sweeps: int = 0
    swept: float | None = None
    segments: int = 0
    spent_j: float = 0.0
    metered: bool = True
    fault: str = ""
    slow: bool = False
    reached: float | None = None
    trainings: int = 1
    spread2: float = 0.0

    @property
    def best(self) -> float | None:
        return self.points[-1][1] if self.points else None

    @property
    def first(self) -> tuple[float, float]:
        return next((epochs, best) for epochs, best in self.points if best is not None)

    @property
    def epoch(self) -> EpochCost | None:
        """Return the cost of an epoch from now on; None before anything was measured."""
        if self.cap is None:
            return self._trained("uncapped")
        if (known := self._trained("capped")) is not None:
            return known
        if (before := self._trained("uncapped")) is not None:
            return EpochCost(
                before.energy_j * self.cap.energy_ratio,
                before.time_s * self.cap.time_ratio,
                math.hypot(before.error, self.cap.uncertainty),
            )
        return self._trained("searching")

    @property
    def started(self) -> StartCost | None:
        if not self.opening_in:
            return None
        usual: EpochCost | None = getattr(self, self.opening_in).epoch
        if usual is None and self.cap is not None and (capped := self.capped.epoch) is not None:
            usual = capped
            if self.opening_in == "uncapped":
                usual = EpochCost(
                    capped.energy_j / self.cap.energy_ratio,
                    capped.time_s / self.cap.time_ratio,
                    math.hypot(capped.error, self.cap.uncertainty),
                )
        return None if usual is None else start_cost(self.opening, usual)

    def _trained(self, name: str) -> EpochCost | None:
        """Return an epoch under one cap, without the start of the training."""
        rest: TrainedSpan = getattr(self, name)
        if self.opening_in != name:
            return rest.epoch
        if rest.epoch is None:
            return self.opening.after(self.start or StartCost()).epoch
        if start_cost(self.opening, rest.epoch).energy_j > 0:
            return rest.epoch
        whole = TrainedSpan()
        whole.add(self.opening)
        whole.add(rest)
        return whole.epoch

    def take(self, segment: Segment, progress: Progress, quality: Quality) -> None:
        self.spent_j += spent_j(progress)
        self.metered = self.metered and progress.energy_j is not None
        if not segment.keep:
            return
        before, self.epochs = self.epochs, max(self.epochs, progress.epochs)
        for point in progress.curve:
            self._add(point.epoch, point.quality, quality)
        if not progress.curve and progress.quality is not None and self.epochs > before:
            self._add(self.epochs, progress.quality, quality)
        under = "uncapped" if self.cap is None else "capped"
        if segment.cap is not None:
            under = "searching"
            if progress.cap is not None and progress.cap.too_short:
                self.cap_short_s = max(self.cap_short_s, progress.time_s)
            else:
                self.cap_tries += 1
                self.cap = progress.cap or self.cap
            if self.cap is not None and self.cap.cap_w is not None:
                self.levers[CAP_LEVER] = self.cap.cap_w
        if self.opening.epoch is None:
            first, rest = split_opening(progress, self.epochs - before, self.opening)
            self.opening.add(first)
            self.opening_in = under
        else:
            rest = trained_span(progress, self.epochs - before)
        getattr(self, under).add(rest)

    def epochs_to(self, level: float, quality: Quality) -> float | None:
        """Return the epochs until the level was reached, interpolated between ends of epochs."""
        before: tuple[float, float] | None = None
        for epochs, best in self.points:
            if best is None:
                continue
            if not quality.better(level, best):
                if before is None or best == before[1]:
                    return epochs
                share = (level - before[1]) / (best - before[1])
                return before[0] + share * (epochs - before[0])
            before = (epochs, best)
        return None

    def epochs_beyond(self, level: float, quality: Quality) -> float | None:
        return next(
            (
                epochs
                for epochs, best in self.points
                if best is not None and quality.better(best, level)
            ),
            None,
        )

    def _add(self, epochs: float, value: float | None, quality: Quality) -> None:
        best = self.best
        if value is not None and math.isfinite(value):
            best = value if best is None or quality.better(value, best) else best
            if self.reached is None and quality.reached(value):
                self.reached = epochs
        if not self.points or epochs > self.points[-1][0]:
            self.points.append((epochs, best))
