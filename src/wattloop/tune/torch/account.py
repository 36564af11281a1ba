"""What is known of a segment while it runs, and the progress that becomes of it."""

from dataclasses import dataclass, field

from wattloop.tune.progress import CapFound, EpochPoint, Progress, RateLoss, Status
from wattloop.tune.torch.candidate import Candidate, Counts
from wattloop.tune.torch.energy import EnergySource
from wattloop.tune.torch.epochs import Stretch
from wattloop.tune.torch.precision import summed

__all__ = ["Account"]


@dataclass(slots=True)
class Account:
    """One segment under way.

    Attributes:
        begin_s: when it began.
        candidate: whose; None until it is made.
        stretches: training, with nothing left to do on the device at both ends.
        evaluations: the same of evaluations.
        ends: (epochs, quality, time) at the end of each epoch.
    """

    begin_s: float
    candidate: Candidate | None = None
    status: Status = Status.PAUSED
    message: str = ""
    epochs: float = 0.0
    quality: float | None = None
    best: float | None = None
    rates: tuple[RateLoss, ...] = ()
    cap: CapFound | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    stretches: list[Stretch] = field(default_factory=list)
    evaluations: list[Stretch] = field(default_factory=list)
    ends: list[tuple[int, float | None, float]] = field(default_factory=list)

    def settled(self, energy: EnergySource, end_s: float, data_samples: int) -> Progress:
        """Everything in joules; the candidate is charged with it."""
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
        """Of what the segment was made: evaluations, and an epoch of training alone."""
        found: dict[str, float] = {}
        if self.evaluations:
            found["eval_time_s"] = sum(s.time_s for s in self.evaluations)
            evals = summed([energy.between(s.begin_s, s.end_s) for s in self.evaluations])
            if evals.energy_j is not None:
                found["eval_energy_j"] = evals.energy_j
        samples = sum(s.samples for s in self.stretches)
        if samples:
            share = data_samples / samples
            found["epoch_time_s"] = share * sum(s.time_s for s in self.stretches)
            trained = summed([energy.between(s.begin_s, s.end_s) for s in self.stretches])
            if trained.energy_j is not None:
                found["epoch_energy_j"] = share * trained.energy_j
                found["epoch_uncertainty_j"] = share * trained.uncertainty_j
        return found


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
