"""A bench of PyTorch trainings: segments of candidates that do not know of each other.

bench = TorchBench(training, quality, device="cuda")
progress = bench.run(segment)

Every candidate has its own model, optimizer and random numbers, and goes on where it was paused.
An exploration (`keep=False`) is put back bit by bit. The time and energy of a segment hold
everything: steps, evaluations, sweeps, and what was run to make a reading sure.
"""

import gc
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattloop.characterize.cap_pilot import PilotRules
from wattloop.core.errors import ConfigError, LeverError
from wattloop.tune.bench import Past
from wattloop.tune.cap_watch import NoCap, Steps, watch_for
from wattloop.tune.levers import LeverBoard
from wattloop.tune.problem import Quality
from wattloop.tune.progress import Progress, Status
from wattloop.tune.segment import Segment
from wattloop.tune.torch.account import Account
from wattloop.tune.torch.bounds import Bounds
from wattloop.tune.torch.candidate import Candidate
from wattloop.tune.torch.checkpoints import Checkpoints
from wattloop.tune.torch.energy import EnergySource, SessionEnergy
from wattloop.tune.torch.epochs import Stretch, evaluated, trained_epoch
from wattloop.tune.torch.precision import sharpened
from wattloop.tune.torch.rate_sweep import sweep_rates
from wattloop.tune.torch.training import Training

__all__ = ["TorchBench"]


class TorchBench:
    """Runs segments of trainings on one device.

    Args:
        training: what candidates are made of.
        quality: the metric that counts, and its target.
        energy: who is asked for joules; the meters of this machine unless given, of its GPUs when
            training is on one, else of everything that is read.
        error: explorations go on, in steps that count for nothing, until the relative error of
            the energy of an epoch is at most this.
        longest_s: but not for longer than this.
        checkpoints: folder for candidates, so that a killed search can go on; None for none.
        board: sets levers and power caps; without one a segment with levers is refused, and no
            cap is looked for. The bench closes it.
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
        cap_rules: PilotRules | None = None,
    ) -> None:
        self._training = training
        self._quality = quality
        self._device = training.data.device
        scope = "gpu" if self._device.type == "cuda" else None
        gpus = self._device.type != "cpu"
        self._energy = SessionEnergy(scope, gpus=gpus) if energy is None else energy
        self._error, self._longest_s = error, longest_s
        self._files = None if checkpoints is None else Checkpoints(Path(checkpoints))
        self._candidates: dict[str, Candidate] = {}
        self._board, self._cap_rules = board, cap_rules
        self._recalled: dict[str, Past] = {}

    def run(self, segment: Segment) -> Progress:
        """Train, from where this candidate was paused, until the segment ends.

        Raises:
            ConfigError: the segment, the training or the checkpoints are not as they must be.
        """
        refused = self._set_levers(segment)
        if refused is not None:
            return refused
        account = Account(begin_s=self._energy.now_s())
        steps = self._watch(segment)
        try:
            candidate = self._candidate(segment)
            account.candidate = candidate
            with candidate.in_charge():
                self._train(candidate, segment, account, steps)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a training that fails is a result
            account.status = _fault(error)
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

    def let_go(self, candidate: str) -> None:
        """Forget it; one that is not known is no error."""
        self._drop(candidate)
        if self._files is not None:
            self._files.forget(candidate)

    def recall(self, pasts: Mapping[str, Past]) -> None:
        """Candidates of a search that was killed, by name, go on from their checkpoints."""
        self._recalled.update(pasts)

    def close(self) -> None:
        """Let all candidates go and put levers back; checkpoints stay."""
        self._candidates.clear()
        try:
            if self._board is not None:
                self._board.close()
        finally:
            self._energy.close()

    def model(self, candidate: str) -> Any:
        """The model of a candidate that is alive."""
        return self._candidates[candidate].model

    # -- inside ----------------------------------------------------------------------------

    def _candidate(self, segment: Segment) -> Candidate:
        found = self._candidates.get(segment.candidate)
        if found is not None:
            return found
        found = Candidate.begin(self._training, segment, self._device)
        past = self._recalled.pop(segment.candidate, Past())
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
        """Levers of the segment; what to answer when they cannot be set."""
        if self._board is None:
            if not segment.levers:
                return None
            said = f"levers ({', '.join(segment.levers)}) need a LeverBoard: give the bench one"
            return Progress(status=Status.NOT_SUPPORTED, message=said)
        try:
            self._board.set(segment.levers)
        except (ConfigError, LeverError) as error:
            return Progress(status=Status.NOT_SET, message=str(error))
        return None

    def _watch(self, segment: Segment) -> Steps:
        """Who looks for a cap beside the training; the training goes on without where none can."""
        session = self._energy.session
        if segment.cap is None:
            return NoCap()
        if self._board is None or session is None:
            return NoCap("this bench was given no LeverBoard, so no cap can be set")
        return watch_for(segment.cap, self._board, session, session.settings, self._cap_rules)

    def _train(
        self, candidate: Candidate, segment: Segment, account: Account, steps: Steps
    ) -> None:
        batch_size = self._training.batch_of(segment)
        before = candidate.snapshot()
        if segment.learning_rate is not None:
            candidate.set_rate(segment.learning_rate)
        if segment.rates is None:
            self._epochs(candidate, segment, batch_size, account, steps)
        else:
            self._explore(candidate, segment, batch_size, account)
        if segment.keep and account.status.good:
            account.epochs, account.best = self._so_far(candidate, batch_size)
            return
        # A training that diverged is put back, too: it may go on at another rate.
        candidate.put_back(before)
        if account.status.good and any(stretch.samples for stretch in account.stretches):
            account.stretches += sharpened(
                self._training, candidate, batch_size, self._energy, account.stretches,
                error=self._error, longest_s=self._longest_s,
            )  # fmt: skip
            candidate.put_back(before)
        account.epochs, account.best = self._so_far(candidate, batch_size)

    def _so_far(self, candidate: Candidate, batch_size: int) -> tuple[float, float | None]:
        """Epochs trained, with the part of one that was left in the middle, and the best."""
        counts = candidate.counts
        return counts.epochs + counts.steps / self._training.data.steps(batch_size), counts.best

    def _epochs(
        self,
        candidate: Candidate,
        segment: Segment,
        batch_size: int,
        account: Account,
        steps: Steps,
    ) -> None:
        counts, steps_all = candidate.counts, self._training.data.steps(batch_size)
        bounds = Bounds(
            segment.until,
            self._quality,
            self._training.stopping,
            counts,
            steps=steps_all,
            energy=self._energy,
            begin_s=account.begin_s,
        )
        account.quality = counts.quality
        status = bounds.before()
        while status is None:
            stretch = trained_epoch(
                self._training,
                candidate,
                batch_size,
                self._energy,
                stop=bounds.inside,
                told=steps.step,
            )
            steps.epoch()
            account.stretches.append(stretch)
            account.metrics["loss"] = stretch.loss
            if not stretch.finite:
                account.status = Status.DIVERGED
                account.message = f"the loss is {stretch.loss} in epoch {counts.epochs + 1}"
                return
            if counts.steps < steps_all:
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
        self, candidate: Candidate, segment: Segment, batch_size: int, account: Account
    ) -> None:
        """Sweep rates, and see how good the model is after that."""
        assert segment.rates is not None
        begin_s = self._energy.now_s()
        swept = sweep_rates(self._training, candidate, segment.rates, batch_size, segment.key)
        _wait_for(self._device)
        account.stretches.append(
            Stretch(begin_s, self._energy.now_s(), swept.samples, finite=True, loss=math.nan)
        )
        account.rates = swept.losses
        account.quality = self._evaluate(candidate, account)

    def _evaluate(self, candidate: Candidate, account: Account) -> float | None:
        """The metric that counts; None when it is no finite number."""
        metrics = evaluated(self._training, candidate, self._energy, account.evaluations)
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

    def _take(self, candidate: Candidate, quality: float) -> None:
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


def _fault(error: Exception) -> Status:
    import torch

    if isinstance(error, torch.cuda.OutOfMemoryError | MemoryError):
        return Status.OUT_OF_MEMORY
    if isinstance(error, RuntimeError) and "not enough memory" in str(error):
        return Status.OUT_OF_MEMORY  # what the allocator of the CPU says
    return Status.FAILED


def _wait_for(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
