"""Executor of PyTorch trainings: segments of independent candidates, on one device or several."""

import functools
import gc
import itertools
import math
import statistics
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattloop.cap.online import OnlineRules
from wattloop.core.errors import ConfigError, LeverError
from wattloop.core.settings import Settings, load_settings
from wattloop.tune.executors.base import TrainedSoFar
from wattloop.tune.executors.cap_search import CapSteps, start_cap_search
from wattloop.tune.executors.parallel import ParallelExecutor
from wattloop.tune.executors.torch.batches import tensors
from wattloop.tune.executors.torch.candidate import Checkpoints, Counts, TorchCandidate
from wattloop.tune.executors.torch.epochs import (
    EnergySource,
    SessionEnergy,
    TrainedEpoch,
    sharpen_energy,
    sum_joules,
    train_epoch,
)
from wattloop.tune.executors.torch.training import Training
from wattloop.tune.executors.training_executor import classify_error
from wattloop.tune.levers import LeverBoard
from wattloop.tune.search_problem import Quality
from wattloop.tune.segment import (
    CapFound,
    EpochPoint,
    Progress,
    RateLoss,
    RateSweep,
    Segment,
    Status,
    Until,
)


@dataclass(slots=True)
class SegmentAccount:
    """Account of the segment that is running.

    Attributes:
        stretches: training intervals; the device is idle at both ends.
        ends: (epochs, quality, time) at the end of each epoch.
    """

    begin_s: float
    candidate: TorchCandidate | None = None
    status: Status = Status.PAUSED
    message: str = ""
    epochs: float = 0.0
    quality: float | None = None
    best: float | None = None
    rates: tuple[RateLoss, ...] = ()
    cap: CapFound | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    stretches: list[TrainedEpoch] = field(default_factory=list)
    evaluations: list[TrainedEpoch] = field(default_factory=list)
    ends: list[tuple[int, float | None, float]] = field(default_factory=list)

    def settled(self, energy: EnergySource, end_s: float, data_samples: int) -> Progress:
        """Return the progress with all energies; the candidate is charged with them."""
        energy.settle(end_s)
        used = energy.between(self.begin_s, end_s)
        curve: tuple[EpochPoint, ...] = ()
        if self.candidate is not None:
            counts = self.candidate.counts
            curve = self._curve(energy, counts)
            counts.time_s += end_s - self.begin_s
            counts.energy_j = _plus(counts.energy_j, used.energy_j)
        return Progress(
            status=self.status,
            time_s=end_s - self.begin_s,
            energy_j=used.energy_j,
            uncertainty_j=used.uncertainty_j,
            epochs=float(self.epochs),
            quality=self.quality,
            best=self.best,
            curve=curve,
            cap=self.cap,
            rates=self.rates,
            metrics=self.metrics | self._parts(energy, data_samples),
            provenance=used.provenance,
            run_id=energy.run_id,
            message=self.message,
        )

    def _curve(self, energy: EnergySource, before: Counts) -> tuple[EpochPoint, ...]:
        return tuple(
            EpochPoint(
                epoch=float(epoch),
                quality=quality,
                time_s=before.time_s + at_s - self.begin_s,
                energy_j=_plus(before.energy_j, energy.between(self.begin_s, at_s).energy_j),
            )
            for epoch, quality, at_s in self.ends
        )

    def _parts(self, energy: EnergySource, data_samples: int) -> dict[str, float]:
        found: dict[str, float] = {}
        if self.evaluations:
            found["eval_time_s"] = sum(s.time_s for s in self.evaluations)
            evals = sum_joules([energy.between(s.begin_s, s.end_s) for s in self.evaluations])
            if evals.energy_j is not None:
                found["eval_energy_j"] = evals.energy_j
        samples = sum(s.samples for s in self.stretches)
        if samples:
            share = data_samples / samples
            found["epoch_time_s"] = share * sum(s.time_s for s in self.stretches)
            trained = sum_joules([energy.between(s.begin_s, s.end_s) for s in self.stretches])
            if trained.energy_j is not None:
                found["epoch_energy_j"] = share * trained.energy_j
                found["epoch_uncertainty_j"] = share * trained.uncertainty_j
        return found


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


CLOSE = 1e-9
LOOK_S = 0.05
"""Period of energy checks within an epoch."""


class SegmentBounds:
    """The bounds of one segment of a candidate."""

    def __init__(
        self,
        until: Until,
        quality: Quality,
        candidate: TorchCandidate,
        energy: EnergySource,
        begin_s: float,
    ) -> None:
        self._until, self._quality = until, quality
        self._candidate, self._energy = candidate, energy
        self._begin_s = self._looked_s = begin_s

    def before(self) -> Status | None:
        """Return how the segment ends without any training; None when there is something to do."""
        counts, stopping = self._candidate.counts, self._candidate.training.stopping
        if stopping is not None and stopping.over(counts.epochs, counts.since_gain):
            return Status.ENDED
        return Status.PAUSED if self._enough_epochs(counts.steps) else None

    def after_epoch(self) -> Status | None:
        if self._until.at_target and self._quality.reached(self._candidate.counts.quality):
            return Status.REACHED
        ended = self.before()
        if ended is not None:
            return ended
        over = self._enough_time() or self._enough_energy()
        return Status.PAUSED if over else None

    def inside(self, steps: int) -> bool:
        """Return whether to pause after so many steps of an epoch."""
        if not self._until.anywhere or steps >= self._candidate.epoch_steps:
            return False
        if self._enough_epochs(steps) or self._enough_time():
            return True
        now_s = self._energy.now_s()
        if now_s - self._looked_s < LOOK_S:
            return False
        self._looked_s = now_s
        return self._enough_energy()

    def _enough_epochs(self, steps: int) -> bool:
        epochs = self._candidate.counts.epochs + steps / self._candidate.epoch_steps
        return self._until.epochs is not None and epochs >= self._until.epochs - CLOSE

    def _enough_time(self) -> bool:
        lasted_s = self._energy.now_s() - self._begin_s
        return self._until.time_s is not None and lasted_s >= self._until.time_s

    def _enough_energy(self) -> bool:
        if self._until.energy_j is None:
            return False
        energy_j = self._energy.between(self._begin_s, self._energy.now_s()).energy_j
        return energy_j is not None and energy_j >= self._until.energy_j


# executor = TorchExecutor(training, quality, device="cuda")
# progress = executor.run(segment)
# Every candidate has its own model, optimizer and random states. An exploration (`keep=False`) is
# restored bit by bit. Time and energy of a segment include steps, evaluations, sweeps, and the
# steps that were repeated for a precise reading.


class TorchExecutor:
    """Executor of segments of trainings on one device.

    Args:
        quality: the metric that counts, and its target.
        energy: source of energies; unless given, the GPUs' meters when training is on a GPU, else
            all meters of this machine.
        error: explorations are extended, in steps that do not count, until the relative error of
            the energy of an epoch is at most this.
        longest_s: but not for longer than this.
        checkpoints: folder for candidates, so that a killed search can resume; None for none.
        board: sets levers and power caps; without one a segment with levers is refused, and no cap
            is searched. The executor closes it.
        cap_rules: how long probes for a power cap last.
    """

    def __init__(
        self,
        training: Training,
        quality: Quality,
        *,
        energy: EnergySource | None = None,
        error: float = 0.02,
        longest_s: float = 5.0,
        checkpoints: str | Path | None = None,
        board: LeverBoard | None = None,
        cap_rules: OnlineRules | None = None,
    ) -> None:
        self._training = training
        self._quality = quality
        self._device = training.data.device
        scope = "gpu" if self._device.type == "cuda" else None
        gpus = self._device.type != "cpu"
        self._energy = SessionEnergy(scope, gpus=gpus) if energy is None else energy
        self._error, self._longest_s = error, longest_s
        self._files = None if checkpoints is None else Checkpoints(Path(checkpoints))
        self._candidates: dict[str, TorchCandidate] = {}
        self._board, self._cap_rules = board, cap_rules
        self._recalled: dict[str, TrainedSoFar] = {}

    @classmethod
    def on_gpus(
        cls,
        training: Callable[[], Training],
        quality: Quality,
        gpus: int | str,
        settings: Settings | None = None,
        **options: Any,
    ) -> ParallelExecutor:
        """Return an executor of several candidates at once, each in a process on its own GPUs.

        A candidate has the energy of its own GPUs; that of GPUs that wait is charged as idle.

        Args:
            training: makes the training in a worker, whose GPUs are the only visible ones; a
                function at the top of a module, because it is pickled.
            quality: the metric that counts, and its target.
            gpus: how many, or groups such as `0;1` or `0,1;2,3`.
            settings: of meters and store; unless given those of this machine.
            options: further arguments of each worker's executor, but for `energy`.
        """
        from wattloop.tune.search_setup import parse_device_groups

        make = functools.partial(_executor_of_worker, training, quality, options)
        settings = load_settings() if settings is None else settings
        return ParallelExecutor(make, settings, parse_device_groups(gpus))

    def run(self, segment: Segment) -> Progress:
        """Train, from where this candidate was paused, until the segment ends."""
        refused = self._set_levers(segment)
        if refused is not None:
            return refused
        account = SegmentAccount(begin_s=self._energy.now_s())
        steps = self._watch(segment)
        try:
            candidate = self._candidate(segment)
            account.candidate = candidate
            with candidate.own_randomness():
                self._train(candidate, segment, account, steps)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a training that fails is a result
            memory = classify_error(error)[0] is Status.OUT_OF_MEMORY
            account.status = Status.OUT_OF_MEMORY if memory else Status.FAILED
            account.message = f"{type(error).__name__}: {error}"
        finally:
            account.cap = steps.found()
        if account.status in (Status.OUT_OF_MEMORY, Status.FAILED):
            account.candidate = None
            self._drop(segment.candidate)
        else:
            _wait_for(self._device)
        samples = self._training.data.samples
        progress = account.settled(self._energy, self._energy.now_s(), samples)
        self._save(segment, progress)
        return progress

    def release(self, candidate: str) -> None:
        self._drop(candidate)
        if self._files is not None:
            self._files.forget(candidate)

    def recall(self, pasts: Mapping[str, TrainedSoFar]) -> None:
        self._recalled.update(pasts)

    def close(self) -> None:
        self._candidates.clear()
        try:
            if self._board is not None:
                self._board.close()
        finally:
            self._energy.close()

    def model(self, candidate: str) -> Any:
        return self._candidates[candidate].model

    def _candidate(self, segment: Segment) -> TorchCandidate:
        found = self._candidates.get(segment.candidate)
        if found is not None:
            found.batch_size = self._training.batch_of(segment)
            return found
        found = TorchCandidate.begin(self._training, segment, self._device)
        past = self._recalled.pop(segment.candidate, TrainedSoFar())
        if past.epochs:
            if self._files is None:
                raise ConfigError(
                    f"{segment.candidate!r} was trained for {past.epochs:g} epochs before; give "
                    "the folder with its checkpoints"
                )
            found.load_dict(self._files.load(found.name, past.epochs))
        found.counts.time_s, found.counts.energy_j = past.time_s, past.energy_j
        self._candidates[segment.candidate] = found
        return found

    def _set_levers(self, segment: Segment) -> Progress | None:
        """Set the levers of the segment; return the progress to report when they cannot be set."""
        if self._board is None:
            if not segment.levers:
                return None
            said = f"levers ({', '.join(segment.levers)}) need a LeverBoard: give the executor one"
            return Progress(status=Status.NOT_SUPPORTED, message=said)
        try:
            self._board.set(segment.levers)
        except (ConfigError, LeverError) as error:
            return Progress(status=Status.NOT_SET, message=str(error))
        return None

    def _watch(self, segment: Segment) -> CapSteps:
        session = self._energy.session
        if segment.cap is None:
            return CapSteps()
        if self._board is None or session is None:
            return CapSteps("this executor was given no LeverBoard, so no cap can be set")
        return start_cap_search(
            segment.cap, self._board, session, session.settings, self._cap_rules
        )

    def _train(
        self, candidate: TorchCandidate, segment: Segment, account: SegmentAccount, steps: CapSteps
    ) -> None:
        before = candidate.snapshot()
        if segment.learning_rate is not None:
            candidate.set_rate(segment.learning_rate)
        if segment.rates is None:
            self._epochs(candidate, segment, account, steps)
        else:
            self._explore(candidate, segment, account)
        if not (segment.keep and account.status.good):
            # A diverged training is restored, too: it may resume at another rate.
            candidate.restore(before)
            if account.status.good and any(stretch.samples for stretch in account.stretches):
                windows, error, longest_s = account.stretches, self._error, self._longest_s
                windows += sharpen_energy(
                    candidate, self._energy, windows, error=error, longest_s=longest_s
                )
                candidate.restore(before)
        account.epochs, account.best = candidate.epochs, candidate.counts.best

    def _epochs(
        self, candidate: TorchCandidate, segment: Segment, account: SegmentAccount, steps: CapSteps
    ) -> None:
        counts = candidate.counts
        bounds = SegmentBounds(
            segment.until, self._quality, candidate, self._energy, begin_s=account.begin_s
        )
        account.quality = counts.quality
        status = bounds.before()
        while status is None:
            stretch = train_epoch(candidate, self._energy, stop=bounds.inside, on_step=steps.step)
            steps.epoch()
            account.stretches.append(stretch)
            account.metrics["loss"] = stretch.loss
            if not stretch.finite:
                account.status = Status.DIVERGED
                account.message = f"the loss is {stretch.loss} in epoch {counts.epochs + 1}"
                return
            if counts.steps < candidate.epoch_steps:
                return
            quality = self._evaluate(candidate, account)
            if quality is None:
                account.status = Status.DIVERGED
                return
            counts.epochs, counts.steps = counts.epochs + 1, 0
            self._take(candidate, quality)
            account.quality = quality
            account.ends.append((counts.epochs, quality, self._energy.now_s()))
            status = bounds.after_epoch()
        account.status = status

    def _explore(
        self, candidate: TorchCandidate, segment: Segment, account: SegmentAccount
    ) -> None:
        assert segment.rates is not None
        begin_s = self._energy.now_s()
        swept = sweep_rates(candidate, segment.rates, segment.key)
        _wait_for(self._device)
        account.stretches.append(
            TrainedEpoch(begin_s, self._energy.now_s(), swept.samples, finite=True, loss=math.nan)
        )
        account.rates = swept.losses
        account.quality = self._evaluate(candidate, account)

    def _evaluate(self, candidate: TorchCandidate, account: SegmentAccount) -> float | None:
        """Return the quality metric; None when it is not finite."""
        begin_s = self._energy.now_s()
        metrics = candidate.evaluate()
        account.evaluations.append(
            TrainedEpoch(begin_s, self._energy.now_s(), 0, finite=True, loss=math.nan)
        )
        account.metrics |= metrics
        name = self._quality.metric
        if name not in metrics:
            raise ConfigError(
                f"evaluate() gave {', '.join(metrics) or 'nothing'}, not {name}, the quality that "
                "is searched for"
            )
        if math.isfinite(metrics[name]):
            return metrics[name]
        account.message = f"{name} is {metrics[name]}"
        return None

    def _take(self, candidate: TorchCandidate, quality: float) -> None:
        counts, stopping = candidate.counts, self._training.stopping
        counts.quality = quality
        if counts.best is None or self._quality.better(quality, counts.best):
            counts.best = quality
        counts.since_gain += 1
        if stopping is not None and stopping.gained(counts.gained, quality):
            counts.gained, counts.since_gain = quality, 0

    def _save(self, segment: Segment, progress: Progress) -> None:
        candidate = self._candidates.get(segment.candidate)
        if self._files is None or candidate is None:
            return
        if segment.keep and progress.status.good:
            self._files.save(candidate.name, progress.epochs, candidate.to_dict())

    def _drop(self, name: str) -> None:
        if self._candidates.pop(name, None) is None:
            return
        gc.collect()
        if self._device.type == "cuda":
            import torch

            torch.cuda.empty_cache()


def _executor_of_worker(
    training: Callable[[], Training],
    quality: Quality,
    options: Mapping[str, Any],
    settings: Settings,
) -> TorchExecutor:
    energy = SessionEnergy(ParallelExecutor.scope, settings)
    return TorchExecutor(training(), quality, energy=energy, **options)


def _wait_for(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


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


# The loss of a rate is that of the batch after a step at that rate. When the loss is not finite, or
# far above that at the lowest rates, the model is restored to its last sound state. That rate and
# those above it are then left out: otherwise the rest of the sweep would measure a broken model.


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
