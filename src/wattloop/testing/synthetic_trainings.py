"""Synthetic trainings: learning curves with noise, power, caps, rates, and failures.

A strategy can be tried on them in milliseconds. Nothing here is measured: provenance `simulated`.

    epochs to quality 0.8 = 8 (1 + 0.15 log2(b / 64)^2) (1 + 0.6 log10(r / r*)^2)
    quality after e epochs = 1 - 0.2^(e / epochs to 0.8), of at most 0.95
    power = 90 + 160 b / (b + 64) W,  time per epoch = 3 + 300 / b s

for batch size b and learning rate r. Under a cap c below the power, time grows by
((power - 75) / (c - 75))^0.4 and power is c, so that a cap of 125 W takes least energy.
"""

import math
import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from wattloop.accounting.energy_delay import Point, objective
from wattloop.tune.objective import Objective
from wattloop.tune.search_problem import Limits, Problem, Quality
from wattloop.tune.segment import (
    CAP_LEVER,
    CapFound,
    CapRequest,
    EpochPoint,
    Progress,
    RateLoss,
    Segment,
    Status,
    Value,
)
from wattloop.tune.space import Choice, Parameter, Real, Space

CAPS_W = (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0)


PROBE_SHARE = 0.02


"""Part of an epoch that one probe of a cap takes."""


def synthetic_problem(
    *,
    ranges: bool = False,
    capped: bool = False,
    objectives: tuple[str, ...] = ("energy",),
    limits: Limits | None = None,
    target: float | None = 0.8,
    seed: int = 0,
) -> Problem:
    """Batch size, learning rate, optimizer and its momentum, with a default that is not best.

    Args:
        ranges: learning rate and momentum are ranges, not lists.
        capped: a power cap is searched inside trainings.
        objectives: what is made small.
        limits: what may be spent; 40 epochs a training unless given.
        target: of the quality.
        seed: of the strategy and of the trainings.
    """
    rate: Parameter = Choice(values=(0.001, 0.01, 0.1))
    sgd = {"optimizer": ("sgd",)}
    momentum: Parameter = Choice(values=(0.0, 0.9), when=sgd)
    if ranges:
        rate = Real(low=1e-4, high=1.0, log=True)
        momentum = Real(low=0.0, high=0.99, when=sgd)
    space = Space(
        {
            "batch_size": Choice(values=(16, 32, 64, 256)),
            "lr": rate,
            "optimizer": Choice(values=("sgd", "adam")),
            "momentum": momentum,
        }
    )
    return Problem(
        space=space,
        quality=Quality(metric="accuracy", maximize=True, target=target),
        objective=Objective(names=objectives),
        default={"batch_size": 32, "lr": 0.001, "optimizer": "adam"},
        limits=limits or Limits(candidates=12 if ranges else None, epochs=40),
        cap=CapRequest() if capped else None,
        rate="lr",
        seed=seed,
    )


@dataclass(slots=True)
class _Training:
    epochs: float = 0.0
    time_s: float = 0.0
    energy_j: float = 0.0
    best: float | None = None


class SyntheticExecutor:
    """Runs segments by formula. Several trainings may be paused at once.

    Args:
        problem: what is searched.
        noise: relative standard deviation of energies; qualities have a tenth of it.
        seed: of the noise.
        failing: says for a segment how it must fail; None for not at all.
        metered: whether energies can be read.
    """

    def __init__(
        self,
        problem: Problem | None = None,
        *,
        noise: float = 0.01,
        seed: int = 0,
        failing: Callable[[Segment], Status | None] | None = None,
        metered: bool = True,
    ) -> None:
        self.problem = problem or synthetic_problem()
        self.noise, self.seed, self.metered = noise, seed, metered
        self.failing = failing or (lambda segment: None)
        self.energy_j = 0.0
        self.epochs_trained = 0.0
        self._trainings: dict[str, _Training] = {}
        self._gone: set[str] = set()

    def run(self, segment: Segment) -> Progress:
        """Train for one segment."""
        assert segment.candidate not in self._gone, f"{segment.candidate} was let go"
        failure = self.failing(segment)
        if failure is not None:
            if failure is not Status.NOT_SUPPORTED:  # then nothing was run, and less may be asked
                self._gone.add(segment.candidate)
            # a quality that was reported before it failed must not make it the best
            return Progress(
                status=failure,
                time_s=1.0,
                energy_j=self._read(100.0),
                quality=0.99,
                best=0.99,
                message="as asked",
            )
        training = self._trainings.setdefault(segment.candidate, _Training())
        if segment.rates is not None:
            return self._swept(segment, training)
        return self._trained(segment, training)

    def release(self, candidate: str) -> None:
        """The strategy will not ask for it again."""
        self._trainings.pop(candidate, None)
        self._gone.add(candidate)

    def close(self) -> None:
        """Nothing to close."""

    def point(self, parameters: Mapping[str, Value], cap_w: float = CAPS_W[-1]) -> Point:
        """Time and energy of an epoch without noise."""
        batch = float(parameters["batch_size"] or 0)
        power_w = 90 + 160 * batch / (batch + 64)
        time_s = 3 + 300 / batch
        if cap_w < power_w:
            time_s *= ((power_w - 75) / (cap_w - 75)) ** 0.4
            power_w = cap_w
        return Point(time_s, power_w * time_s)

    def epochs_needed(self, parameters: Mapping[str, Value]) -> float:
        """Epochs to a quality of 0.8; infinite when it diverges."""
        rate = float(parameters.get("lr") or 0.0)
        adam = parameters.get("optimizer") == "adam"
        best_rate = 0.003 if adam else 0.03 * (2 if not parameters.get("momentum") else 1)
        if rate > 50 * best_rate:
            return math.inf
        batch = float(parameters["batch_size"] or 0)
        far = math.log10(rate / best_rate)
        return 8 * (1 + 0.15 * math.log2(batch / 64) ** 2) * (1 + 0.6 * far**2)

    # -- inside ----------------------------------------------------------------------------

    def _trained(self, segment: Segment, training: _Training) -> Progress:
        parameters = dict(segment.parameters)
        if segment.learning_rate is not None:
            parameters["lr"] = segment.learning_rate
        before = _Training(training.epochs, training.time_s, training.energy_j, training.best)
        needed = self.epochs_needed(parameters)
        if math.isinf(needed):
            self._gone.add(segment.candidate)
            return Progress(status=Status.DIVERGED, time_s=2.0, energy_j=self._read(300.0))
        cap_w = _watts(segment.levers.get(CAP_LEVER))
        found = None
        if segment.cap is not None:
            found, cap_w = self._capped(segment.cap, parameters, training)
        curve: list[EpochPoint] = []
        status, quality = None, None
        while status is None:
            quality = self._epoch(segment, parameters, training, needed, cap_w)
            energy_j = training.energy_j if self.metered else None
            curve.append(
                EpochPoint(
                    epoch=training.epochs,
                    quality=quality,
                    time_s=training.time_s,
                    energy_j=energy_j,
                )
            )
            status = self._ended(segment, training, before, quality)
        used_j = training.energy_j - before.energy_j
        progress = Progress(
            status=status,
            time_s=training.time_s - before.time_s,
            energy_j=self._read(used_j),
            uncertainty_j=self.noise * used_j,
            epochs=training.epochs,
            quality=quality,
            best=training.best,
            curve=tuple(curve),
            cap=found,
            provenance="simulated",
        )
        if not segment.keep:
            self._trainings[segment.candidate] = before
        return progress

    def _epoch(
        self,
        segment: Segment,
        parameters: Mapping[str, Value],
        training: _Training,
        needed: float,
        cap_w: float,
    ) -> float:
        point = self.point(parameters, cap_w)
        rng = self._rng(segment, training.epochs)
        training.epochs += 1
        training.time_s += point.time_s
        training.energy_j += point.energy_j * (1 + self.noise * rng.gauss(0, 1))
        clean = 1 - 0.2 ** (training.epochs / needed)
        quality = float(min(clean, 0.95) + 0.1 * self.noise * rng.gauss(0, 1))
        better = training.best is None or self.problem.quality.better(quality, training.best)
        training.best = quality if better else training.best
        self.epochs_trained += 1
        return quality

    def _ended(
        self, segment: Segment, training: _Training, before: _Training, quality: float
    ) -> Status | None:
        until = segment.until
        if until.at_target and self.problem.quality.reached(quality):
            return Status.REACHED
        bounds = (
            (until.epochs, training.epochs),
            (until.energy_j if self.metered else None, training.energy_j - before.energy_j),
            (until.time_s, training.time_s - before.time_s),
        )
        if any(bound is not None and value >= bound for bound, value in bounds):
            return Status.PAUSED
        return Status.ENDED if training.epochs >= 100 else None

    def _capped(
        self, search: CapRequest, parameters: Mapping[str, Value], training: _Training
    ) -> tuple[CapFound, float]:
        caps = search.caps_w or CAPS_W
        reference = self.point(parameters, max(caps))
        score = objective(search.metric, reference, search.k)
        points = {cap: self.point(parameters, cap) for cap in caps}
        best = min(caps, key=lambda cap: score(points[cap]))
        for point in points.values():
            training.time_s += PROBE_SHARE * point.time_s
            training.energy_j += PROBE_SHARE * point.energy_j
        found = CapFound(
            cap_w=best,
            energy_ratio=points[best].energy_j / reference.energy_j,
            time_ratio=points[best].time_s / reference.time_s,
            probes=tuple((cap, p.time_s, p.energy_j) for cap, p in points.items()),
            uncertainty=self.noise,
        )
        return found, best

    def _swept(self, segment: Segment, training: _Training) -> Progress:
        assert segment.rates is not None
        sweep = segment.rates
        rates = np.geomspace(sweep.low, sweep.high, sweep.count)
        losses = []
        for rate in rates:
            needed = self.epochs_needed({**segment.parameters, "lr": float(rate)})
            loss = math.inf if math.isinf(needed) else 2 - 1 / needed
            losses.append(RateLoss(rate=float(rate), loss=loss))
        share = sweep.data_share or 0.25
        point = self.point(segment.parameters, _watts(segment.levers.get(CAP_LEVER)))
        return Progress(
            status=Status.PAUSED,
            time_s=share * point.time_s,
            energy_j=self._read(share * point.energy_j),
            epochs=training.epochs,
            best=training.best,
            rates=tuple(losses),
            provenance="simulated",
        )

    def _read(self, energy_j: float) -> float | None:
        self.energy_j += energy_j
        return energy_j if self.metered else None

    def _rng(self, segment: Segment, epochs: float) -> random.Random:
        """The same for the same training and epoch, whatever was trained in between."""
        words = f"{self.seed} {sorted(segment.parameters.items())} {segment.seed} {epochs}"
        return random.Random(zlib.crc32(words.encode()))


def _watts(setting: object) -> float:
    return float(setting) if isinstance(setting, int | float) else CAPS_W[-1]
