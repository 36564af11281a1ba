"""Learning-rate sweep in a training that is restored afterwards.

The loss of a rate is that of the batch *after* a step at that rate. When the loss is not finite, or
far above that at the lowest rates, the model is restored to its last sound state. That rate and
those above it are then left out: otherwise the rest of the sweep would measure a broken model.
"""

import itertools
import math
import statistics
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from wattloop.tune.executors.torch.batches import tensors
from wattloop.tune.executors.torch.candidate import TorchCandidate
from wattloop.tune.progress import RateLoss
from wattloop.tune.segment import RateSweep

BROKEN, SPREADS = 1.5, 3.0
"""A model counts as broken when its loss is this many times that at the lowest rates, and this many
standard deviations above it.
"""
FIRST_ORDER = 1_000_000
"""Data orders of explorations, which no epoch of the training uses."""


@dataclass(frozen=True, slots=True)
class Swept:
    """Losses of the rates that were tried, from low to high, and the samples trained on."""

    losses: tuple[RateLoss, ...]
    samples: int


def swept_rates(sweep: RateSweep) -> list[float]:
    """Return the rates from low to high, evenly on a logarithmic scale."""
    if sweep.count == 1:
        return [sweep.low]
    ratio = math.log(sweep.high / sweep.low) / (sweep.count - 1)
    return [sweep.low * math.exp(i * ratio) for i in range(sweep.count)]


def sweep_rates(candidate: TorchCandidate, sweep: RateSweep, key: str) -> Swept:
    """Run a sweep; it changes the candidate, so take a snapshot first."""
    candidate.model.train()
    sweeper = _Sweeper(candidate, sweep, key)
    return sweeper.cyclic() if sweep.cyclic else sweeper.blockwise()


class _Sweeper:
    def __init__(self, candidate: TorchCandidate, sweep: RateSweep, key: str) -> None:
        self._candidate, self._sweep = candidate, sweep
        self._number = FIRST_ORDER + zlib.crc32(key.encode())
        share = 1.0 if sweep.data_share is None else sweep.data_share
        self._steps = max(1, int(share * candidate.epoch_steps))
        self._samples = 0
        self._limit = math.inf

    def cyclic(self) -> Swept:
        """Train one batch per rate, round and round; each rate at least once."""
        import torch

        rates = swept_rates(self._sweep)
        seen: dict[float, list[float]] = {rate: [] for rate in rates}
        batches = self._batches(self._steps)
        left = max(self._steps, len(rates))
        sound = self._candidate.snapshot()
        while left > 0 and rates:
            losses = []
            for rate in rates[:left]:
                losses.append(self._step(rate, next(batches)))
            tried = rates[: len(losses)]
            left -= len(losses)
            # The loss after the last step of a round comes from a batch that is not trained on.
            losses.append(self._candidate.loss_without_step(next(batches)))
            values = torch.stack([loss.float() for loss in losses]).tolist()
            broken = self._note(seen, tried, values)
            if broken is None:
                sound = self._candidate.snapshot()
            else:
                rates = [rate for rate in rates if rate < broken]
                self._candidate.restore(sound)
        return self._swept(seen)

    def blockwise(self) -> Swept:
        """Train `steps_each` steps at one rate after the other; the second half of them counts.

        Where the data share does not suffice for all rates, fewer rates are tried, not fewer steps:
        a loss after too few steps says nothing about a rate. Below three rates none is tried.
        """
        import torch

        each = max(1, self._sweep.steps_each)
        rates = swept_rates(self._sweep)
        if self._sweep.data_share is not None:
            affordable = self._steps // each
            rates = _thinned(rates, affordable) if affordable >= 3 else []
        batches = self._batches(self._candidate.epoch_steps)
        seen: dict[float, list[float]] = {rate: [] for rate in swept_rates(self._sweep)}
        for position, rate in enumerate(rates):
            losses = [self._step(rate, next(batches)) for _ in range(each)]
            losses.append(self._candidate.loss_without_step(next(batches)))
            values = torch.stack([loss.float() for loss in losses]).tolist()
            if not position:
                self._set_limit(values)
            counted = values[1 + each // 2 :]
            # Not by single losses: a block has many of them.
            if not sum(counted) / len(counted) <= self._limit:
                for above in rates[position:]:
                    seen[above].append(math.inf)
                break
            seen[rate].append(sum(counted) / len(counted))
        return self._swept(seen)

    def _batches(self, per_pass: int) -> Iterator[Any]:
        for again in itertools.count():
            yield from self._candidate.training.data.epoch(
                self._candidate.batch_size,
                seed=self._candidate.seed,
                number=self._number + 2**32 * again,
                most=per_pass,
            )

    def _step(self, rate: float, batch: Any) -> Any:
        self._candidate.set_rate(rate)
        self._samples += int(next(tensors(batch)).shape[0])
        return self._candidate.step(batch)

    def _note(
        self, seen: dict[float, list[float]], tried: list[float], values: list[float]
    ) -> float | None:
        self._set_limit(values[: max(3, len(tried) // 3)])
        for rate, after in zip(tried, values[1:], strict=True):
            if not after <= self._limit:
                seen[rate].append(math.inf)
                return rate
            seen[rate].append(after)
        return None

    def _set_limit(self, calm: list[float]) -> None:
        """Set the limit from losses at the lowest rates, at which hardly anything is learned."""
        known = [loss for loss in calm if math.isfinite(loss)]
        if len(known) >= 3:
            self._limit = BROKEN * statistics.mean(known) + SPREADS * statistics.stdev(known)

    def _swept(self, seen: dict[float, list[float]]) -> Swept:
        """Return the result; rates that broke the model, and those above, have an infinite loss."""
        losses, broken = [], False
        for rate, values in seen.items():
            if values:
                broken = broken or not all(math.isfinite(v) for v in values)
                mean = math.inf if broken else sum(values) / len(values)
                losses.append(RateLoss(rate=rate, loss=mean))
            elif self._sweep.cyclic:
                losses.append(RateLoss(rate=rate, loss=math.inf))
        return Swept(tuple(losses), self._samples)


def _thinned(rates: list[float], count: int) -> list[float]:
    if count >= len(rates):
        return rates
    places = {round(i * (len(rates) - 1) / (count - 1)) for i in range(count)}
    return [rates[i] for i in sorted(places)]
