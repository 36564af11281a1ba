"""`sm2`: Spend More to Save More (Geißler et al.), as reconstructed in ADR 0024.

Rounds of exploratory and of thorough training alternate. An exploratory epoch sweeps learning rates
on a part of the data, in a model that is restored afterwards. It gives the cost of an epoch, the
quality, and the largest stable rate. These three make the objective (`tune.objective.sm2_scores`),
by which the worse half is dropped. The others are trained for five epochs at their rates. The last
one is trained ten epochs at a time, with explorations in between, until it stops improving.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from wattloop.control.lever import Setting
from wattloop.core.errors import ConfigError, StrategyError
from wattloop.tune.objective import ALPHA, BETA, sm2_scores
from wattloop.tune.search_problem import EarlyStopping, Problem
from wattloop.tune.segment import Progress, RateLoss, RateSweep, Segment, Status, Until, Value
from wattloop.tune.space import Configuration, Real, Space, configuration_key
from wattloop.tune.strategies.base import WAIT, Asked, Chosen, Strategy

WIDTH = 5
CALM_SHARE = 0.5
"""The calmer half of the windows counts as having a low curvature."""
SAME = 0.01
"""Curvatures that differ by less, in parts of the range of losses, are the same."""
ROOM = 0.1
"""How much higher than in the best window the loss may be, in parts of the range."""


@dataclass(frozen=True, slots=True)
class RateWindow:
    """Some neighbouring rates.

    Attributes:
        curvature: mean size of the second derivative of the loss.
        sound: whether the loss there is about as low as in the best window.
    """

    low: float
    high: float
    mean_rate: float
    curvature: float
    loss: float
    sound: bool


@dataclass(frozen=True, slots=True)
class RatePick:
    """The rate to train with, and how it was found.

    Attributes:
        rate: the largest of its window.
        windows: all of them, from low rates to high.
        at_edge: whether the window is the last one: a wider range may hold a better rate.
    """

    rate: float
    window: RateWindow
    windows: tuple[RateWindow, ...]
    at_edge: bool


def stable_rate(losses: Sequence[RateLoss], *, width: int = WIDTH) -> RatePick | None:
    """The largest stable rate; None when fewer than three rates have a finite loss.

    The second derivative of the loss over the rates is its curvature (Geißler et al., 4.2 and
    figure 1). A window slides over the rates; windows are sorted by their mean curvature and then,
    among the calm ones, by their mean rate. The largest rate of the first window is picked.

    Args:
        losses: of a sweep. Those that are infinite broke the training: rates from the lowest of
            them on are not looked at.
        width: rates in a window; smaller where there are fewer rates.

    Raises:
        ConfigError: the width is below 2.
    """
    if width < 2:
        raise ConfigError(f"a window of {width} rates has no curvature; use 2 or more")
    tried = sorted(losses, key=lambda point: point.rate)
    whole = [point for point in tried if point.rate > 0]
    broken = next((i for i, p in enumerate(whole) if not math.isfinite(p.loss)), len(whole))
    whole = whole[:broken]
    if len(whole) < 3:
        return None
    windows = _windows(whole, min(width, len(whole)))
    sound = [window for window in windows if window.sound]
    # Sorted by curvature, then by mean rate: the calm ones first, the largest of them foremost.
    ordered = sorted(sound, key=lambda window: window.curvature)
    middle = ordered[max(1, math.ceil(CALM_SHARE * len(ordered))) - 1].curvature
    spread = max(p.loss for p in whole) - min(p.loss for p in whole)
    calm = [window for window in ordered if window.curvature <= middle + SAME * spread]
    best = max(calm, key=lambda window: window.mean_rate)
    return RatePick(best.high, best, tuple(windows), best.high >= tried[-1].rate)


def _windows(points: Sequence[RateLoss], width: int) -> list[RateWindow]:
    rates = np.array([point.rate for point in points])
    values = np.array([point.loss for point in points])
    spread = float(values.max() - values.min()) or 1.0
    # d2L/dx2 over x = log10(rate): the rates lie evenly there.
    places = np.log10(rates)
    curvature = np.abs(np.gradient(np.gradient(values, places), places))
    slices = [slice(first, first + width) for first in range(len(points) - width + 1)]
    most = min(float(values[part].mean()) for part in slices) + ROOM * spread
    return [
        RateWindow(
            low=float(rates[part][0]),
            high=float(rates[part][-1]),
            mean_rate=float(rates[part].mean()),
            curvature=float(curvature[part].mean()),
            loss=float(values[part].mean()),
            sound=bool(values[part].mean() <= most),
        )
        for part in slices
    ]


# History of one configuration in SM2, and the objective that selects the better half.


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


LOW, HIGH = 1e-3, 1.0
"""Rates of Geißler et al.."""
DRAWS = 50


def first_configurations(problem: Problem, most: int) -> list[Configuration]:
    """Return at most so many configurations, spread evenly over the grid, with the default.

    The learning rate is not varied here: sweeps decide it.
    """
    if most < 1:
        raise ConfigError(f"sm2: {most} configurations; give at least 1")
    space = problem.space
    rate = _first_rate(problem)
    others = {name: p for name, p in space.parameters.items() if name != problem.rate}
    if not others:
        return [{} if rate is None else {str(problem.rate): rate}]
    inner = Space(others)
    found = {configuration_key(c): c for c in _spread(inner, most, problem.seed)}
    if problem.default:
        default = {n: v for n, v in space.complete(problem.default).items() if n != problem.rate}
        key = configuration_key(default)
        if key not in found:
            while len(found) >= most:  # it replaces its neighbour, the last one
                found.popitem()
            found[key] = default
    configurations = list(found.values())
    if rate is not None:
        configurations = [{**c, str(problem.rate): rate} for c in configurations]
    return configurations


def rate_range(problem: Problem) -> tuple[float, float]:
    """Return the space's own range of the rate, else that of the document."""
    parameter = problem.space.parameters.get(problem.rate or "")
    if isinstance(parameter, Real):
        return parameter.low, parameter.high
    listed = parameter.listed() if parameter is not None else None
    numbers = [float(v) for v in listed or () if isinstance(v, int | float) and v > 0]
    if len(numbers) > 1:
        return min(numbers), max(numbers)
    return LOW, HIGH


def _spread(space: Space, most: int, seed: int) -> list[Configuration]:
    size = space.size
    if size is None:
        draw = np.random.default_rng([seed, 0x532])
        found: dict[str, Configuration] = {}
        for _ in range(DRAWS * most):
            if len(found) >= most:
                break
            drawn = space.sample(draw)
            found.setdefault(configuration_key(drawn), drawn)
        return list(found.values())
    if size <= most:
        return list(space.grid())
    places = {round(i * (size - 1) / max(most - 1, 1)) for i in range(most)}
    return [c for i, c in enumerate(space.grid()) if i in places]


def _first_rate(problem: Problem) -> Value:
    """Return the rate in the configuration until a sweep has decided."""
    if problem.rate is None:
        return None
    given = problem.default.get(problem.rate) if problem.default else None
    if given is not None:
        return given
    low, high = rate_range(problem)
    return math.sqrt(low * high)


RETRIES = 3
"""Times that the last configuration may diverge and restart at half the rate."""


class Sm2(Strategy):
    """Strategy: successive halving over batch sizes with learning-rate sweeps.

    The document's other setting, 16 configurations and 40 rates, is `configurations=16, rates=40`.

    Args:
        problem: the space without its learning rate is what is halved; `rate` is swept. Without
            one, or on an executor that cannot sweep, only the configurations are compared.
        configurations: to begin with.
        rates: tried in an exploratory epoch; 0 for none.
        low: the smallest rate; that of the space, else of the document, unless given.
        data_share: part of the data for an exploratory epoch.
        epochs: of thorough training while several are left.
        last_epochs: at a time, of the last one.
        alpha: weight of quality against energy and rate.
        beta: weight of energy against rate.
        window: rates in the sliding window.
        patience: the search ends when the last one has not become better for so many epochs.
        least_gain: what counts as better.
        most_epochs: of one configuration; that of the problem unless given.
    """

    def __init__(  # noqa: PLR0913 - the document's constants, each of which may be changed
        self,
        problem: Problem,
        *,
        configurations: int = 8,
        rates: int = 20,
        low: float | None = None,
        high: float | None = None,
        data_share: float = 0.25,
        epochs: int = 5,
        last_epochs: int = 10,
        alpha: float | None = None,
        beta: float | None = None,
        window: int = WIDTH,
        patience: int = 10,
        least_gain: float = 0.0,
        most_epochs: int | None = None,
    ) -> None:
        super().__init__(problem)
        options, limits = problem.objective.options, problem.limits
        range_low, range_high = rate_range(problem)
        most = limits.epochs if most_epochs is None else most_epochs
        self._most_epochs = math.inf if most is None else most
        self._epochs, self._last_epochs, self._window = epochs, last_epochs, window
        self._high = range_high if high is None else high
        self._alpha = float(options.get("alpha", ALPHA)) if alpha is None else alpha
        self._beta = float(options.get("beta", BETA)) if beta is None else beta
        self._stopping = EarlyStopping(
            patience=patience, least_gain=least_gain, maximize=problem.quality.maximize
        )
        self._sweep = RateSweep(
            low=range_low if low is None else low,
            high=self._high,
            count=rates if problem.rate is not None else 0,
            data_share=data_share,
            cyclic=True,
        )
        self._check(data_share)
        self._sweeps = self._sweep.count > 0
        self._restores = True
        self.histories: dict[str, CandidateHistory] = {}
        most_begun = min(configurations, limits.candidates or configurations)
        begun = first_configurations(problem, most_begun)
        for number, configuration in enumerate(begun):
            own, levers = problem.space.split(configuration)
            name = f"c{number}"
            self.histories[name] = CandidateHistory(name, own, levers)
        self.halvings = 0
        self._exploring = True
        self._left = deque(self.histories)
        self._busy: dict[str, Segment] = {}
        self._over = False

    def ask(self) -> Asked:
        if self._over:
            return None
        if not self._left:
            return WAIT
        history = self.histories[self._left.popleft()]
        segment = self._explore(history) if self._exploring else self._train(history)
        history.segments += 1
        self._busy[history.name] = segment
        return segment

    def tell(self, segment: Segment, progress: Progress) -> None:
        asked = self._busy.pop(segment.candidate, None)
        if asked is None or asked.key != segment.key:
            raise StrategyError(f"segment {segment.key!r} was not asked for, or told before")
        history = self.histories[segment.candidate]
        if progress.status is Status.NOT_SUPPORTED and self._adapt(segment):
            self._left.append(history.name)
            return
        if self._exploring:
            self._take_explored(history, segment, progress)
        else:
            self._take_trained(history, progress)
        if not self._left and not self._busy and not self._over:
            self._next_round()

    def best(self) -> Chosen | None:
        """Return the last configuration, or the best one; None before one reached the target."""
        trained = [c for c in self.histories.values() if c.best is not None]
        if self.problem.quality.target is not None:
            trained = [c for c in trained if c.reached]
        if not trained:
            return None
        left = {history.name for history in self._alive()}
        chosen = min(
            trained, key=lambda c: (c.name not in left, self.problem.quality.loss(c.best), c.name)
        )
        return Chosen(
            candidate=chosen.name,
            parameters=chosen.parameters,
            levers=dict(chosen.levers),
            learning_rate=chosen.rate,
            why=f"{self.problem.quality.metric} {chosen.best:.4g} after {chosen.epochs:g} epochs, "
            f"of {len(self.histories)} configurations halved {self.halvings} times",
        )

    def alive(self) -> frozenset[str]:
        return frozenset(history.name for history in self._alive())

    @property
    def epoch_records(self) -> list[Sm2Epoch]:
        """Return every epoch of every configuration, for figure 2."""
        return [record for history in self.histories.values() for record in history.epoch_records]

    def _check(self, data_share: float) -> None:
        for name, weight in (("alpha", self._alpha), ("beta", self._beta)):
            if not 0 <= weight <= 1:
                raise ConfigError(f"sm2: {name} is {weight:g}; use 0 to 1")
        if not 0 < data_share <= 1:
            raise ConfigError(
                f"sm2: data_share is {data_share:g}; use some of the data, at most all (1)"
            )
        if min(self._epochs, self._last_epochs) < 1:
            raise ConfigError("sm2: epochs and last_epochs must be at least one")
        sweep = self._sweep
        if not 0 < sweep.low < sweep.high:
            raise ConfigError(f"sm2: rates from {sweep.low:g} to {sweep.high:g} are no range")
        if 0 < sweep.count < 3:
            raise ConfigError(
                f"sm2: {sweep.count} rates have no curvature; use 3 or more, or 0 for none"
            )

    def _explore(self, history: CandidateHistory) -> Segment:
        """Return a sweep of rates; else a whole epoch, at whose end the quality is known."""
        epochs = min(math.floor(history.epochs) + 1.0, self._most_epochs)
        until = Until(epochs=epochs, at_target=False)
        sweep = self._sweep if self._sweeps else None
        return self._segment(history, until, keep=not self._restores, rates=sweep)

    def _train(self, history: CandidateHistory) -> Segment:
        more = self._last_epochs if len(self._alive()) == 1 else self._epochs
        epochs = min(history.epochs + more, self._most_epochs)
        at_target = self.problem.quality.target is not None
        return self._segment(history, Until(epochs=epochs, at_target=at_target))

    def _segment(
        self,
        history: CandidateHistory,
        until: Until,
        *,
        keep: bool = True,
        rates: RateSweep | None = None,
    ) -> Segment:
        return Segment(
            key=f"{history.name}/{history.segments}",
            candidate=history.name,
            parameters=history.parameters,
            levers=dict(history.levers),
            until=until,
            seed=self.problem.seed,
            keep=keep,
            rates=rates,
            learning_rate=history.rate,
        )

    def _adapt(self, segment: Segment) -> bool:
        """Adapt to an executor that cannot sweep, or cannot restore."""
        if segment.rates is not None:
            self._sweeps = False
            return True
        if not segment.keep:
            self._restores = False
            return True
        return False

    def _take_explored(
        self, history: CandidateHistory, segment: Segment, progress: Progress
    ) -> None:
        if not progress.status.good:
            history.fault = progress.message or progress.status.value
            history.spend(progress)
            return
        if segment.rates is not None:
            history.swept = progress.rates
            history.pick = stable_rate(progress.rates, width=self._window)
            if history.pick is not None:
                history.rate = min(history.pick.rate, history.most_rate)
        if segment.keep:
            history.trained(progress)
        history.explored(progress, 1.0 if segment.rates is None else self._sweep.data_share or 1.0)
        history.spend(progress)

    def _take_trained(self, history: CandidateHistory, progress: Progress) -> None:
        if progress.status.good:
            history.trained(progress)
            history.spend(progress)
            self._over = self._over or history.reached
            return
        history.spend(progress)
        history.fault = progress.message or progress.status.value
        if progress.status is Status.DIVERGED and not self._alive():
            self._restart(history)

    def _restart(self, history: CandidateHistory) -> None:
        most = self.problem.limits.candidates
        if history.retries >= RETRIES or (most is not None and len(self.histories) >= most):
            return
        rate = history.rate if history.rate is not None else self._high
        name = f"c{len(self.histories)}"
        again = CandidateHistory(
            name, history.parameters, history.levers, rate=rate / 2, most_rate=rate / 2
        )
        again.retries = history.retries + 1
        self.histories[name] = again
        self._left.append(name)

    def _next_round(self) -> None:
        alive = self._alive()
        if not alive:
            self._over = True
            return
        if self._exploring:
            if len(alive) > 1:
                self._halve(alive)
            self._exploring = False
        else:
            self._exploring = True
        going = [history for history in self._alive() if not history.ended]
        if not going or (self._exploring and self._done(going)):
            self._over = True
            return
        self._left = deque(history.name for history in going)

    def _done(self, going: list[CandidateHistory]) -> bool:
        """Return whether the last one has stopped improving, or no more epochs are allowed."""
        if all(history.epochs >= self._most_epochs for history in going):
            return True
        return len(going) == 1 and self._stopping.ended(going[0].qualities)

    def _halve(self, alive: list[CandidateHistory]) -> None:
        scores = halving_scores(
            alive, alpha=self._alpha, beta=self._beta, maximize=self.problem.quality.maximize
        )
        kept = better_half(scores, {history.name: epoch_cost(history) for history in alive})
        self.halvings += 1
        for history in alive:
            score = scores[history.name]
            history.epoch_records[-1] = replace(history.epoch_records[-1], score=score)
            if history.name not in kept:
                history.fault = f"dropped at halving {self.halvings}, objective {score:.3f}"

    def _alive(self) -> list[CandidateHistory]:
        return [history for history in self.histories.values() if not history.fault]
