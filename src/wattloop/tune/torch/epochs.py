"""One epoch of a candidate, and its evaluation, each with its beginning and end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattloop.tune.torch.candidate import Candidate
from wattloop.tune.torch.energy import EnergySource
from wattloop.tune.torch.stepping import FiniteWatch, Stepper
from wattloop.tune.torch.tensor_tree import leaves
from wattloop.tune.torch.training import Training

__all__ = ["Stretch", "evaluated", "joined", "trained_epoch"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time in which the device worked.

    Attributes:
        begin_s, end_s: with nothing left to do on the device at both.
        samples: trained on.
        finite: whether every loss was a finite number.
        loss: their mean.
    """

    begin_s: float
    end_s: float
    samples: int
    finite: bool
    loss: float

    @property
    def time_s(self) -> float:
        """How long it lasted."""
        return self.end_s - self.begin_s


def trained_epoch(
    training: Training,
    candidate: Candidate,
    batch_size: int,
    energy: EnergySource,
    *,
    number: int | None = None,
    stop: Callable[[int], bool] | None = None,
    told: Callable[[float], None] | None = None,
) -> Stretch:
    """Train to the end of an epoch, or until losses are no numbers any more.

    Begins where the epoch was left, and counts the steps in `candidate.counts`; not so where the
    order of another epoch is taken (`number`), which is trained on for nothing.

    Args:
        training: what it is made of.
        candidate: what to train.
        batch_size: samples in a batch.
        energy: whose clock is read.
        number: of the epoch's order; the candidate's own next one unless given.
        stop: asked after each step, with the steps of this epoch so far, whether to end here.
        told: called after each step with its share of the work, 1.
    """
    candidate.model.train()
    stepper, watch = Stepper(training, candidate), FiniteWatch(candidate.device)
    begin_s, samples, counts = energy.now_s(), 0, candidate.counts
    order = counts.epochs if number is None else number
    steps = counts.steps if number is None else 0
    for batch in training.data.epoch(batch_size, seed=candidate.seed, number=order, first=steps):
        samples += int(next(leaves(batch)).shape[0])
        steps += 1
        if told is not None:
            told(1.0)
        if not watch.add(stepper.step(batch)) or (stop is not None and stop(steps)):
            break
    if number is None:
        counts.steps = steps
    finite, loss = watch.finite(), watch.mean  # waits for the device
    return Stretch(begin_s, energy.now_s(), samples, finite, float("nan") if loss is None else loss)


def joined(parts: Sequence[Stretch]) -> Stretch:
    """One stretch from the beginning of the first to the end of the last."""
    return Stretch(
        parts[0].begin_s,
        parts[-1].end_s,
        sum(part.samples for part in parts),
        all(part.finite for part in parts),
        parts[-1].loss,
    )


def evaluated(
    training: Training, candidate: Candidate, energy: EnergySource, stretches: list[Stretch]
) -> dict[str, float]:
    """Metrics of the model as it is; the stretch is added to `stretches`."""
    import torch

    candidate.model.eval()
    begin_s = energy.now_s()
    with torch.no_grad():
        if training.bf16:
            with torch.autocast(candidate.device.type, dtype=torch.bfloat16):
                metrics = training.evaluate(candidate.model)
        else:
            metrics = training.evaluate(candidate.model)
    found = {name: float(value) for name, value in metrics.items()}  # waits for the device
    stretches.append(Stretch(begin_s, energy.now_s(), 0, finite=True, loss=float("nan")))
    return found
