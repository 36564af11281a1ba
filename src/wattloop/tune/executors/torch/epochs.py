"""One epoch of a candidate, and the energy of its windows with sufficient precision."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from wattloop.core.settings import Settings, load_settings
from wattloop.measure.api import active_session
from wattloop.measure.session import Session
from wattloop.tune.executors.torch.batches import tensors
from wattloop.tune.executors.torch.candidate import TorchCandidate
from wattloop.tune.segment_meter import Joules, scope_energy, widest_scope

LONGEST_SETTLE_S = 0.5
LOOK_S = 0.005


class EnergySource(Protocol):
    """Source of energies for the executor."""

    @property
    def run_id(self) -> str | None:
        """Return the id of the measured run, if it is stored."""

    @property
    def session(self) -> Session | None:
        """Return the session whose meters are read; None when there are none."""

    def now_s(self) -> float:
        """Return the time on the clock of the readings."""

    def between(self, begin_s: float, end_s: float) -> Joules:
        """Return the energy between two times, as far as it is known."""

    def settle(self, end_s: float) -> None:
        """Wait until later readings can hardly improve the energy up to `end_s`."""

    def close(self) -> None: ...


class SessionEnergy:
    """Energy from the meters of this machine, over one session.

    Args:
        scope: `gpu`, `cpu`, `dram` or `node`; unless given the widest that is read.
        gpus: whether the training uses GPUs, if any; idle ones are left out of the scope.
    """

    def __init__(
        self,
        scope: str | None = None,
        settings: Settings | None = None,
        *,
        gpus: bool = True,
        name: str = "search",
        keep: bool = True,
    ) -> None:
        self.settings = load_settings() if settings is None else settings
        given = active_session()  # left open
        self._ours = given is None
        self.session = given or Session.open(self.settings, name=name, keep=keep)
        self.scope = scope or widest_scope(self.session, gpus=gpus)

    @property
    def run_id(self) -> str | None:
        return self.session.run_id

    def now_s(self) -> float:
        return self.session.clock.now_s()

    def between(self, begin_s: float, end_s: float) -> Joules:
        return scope_energy(self.session.between(begin_s, end_s), self.scope, self.settings)

    def settle(self, end_s: float) -> None:
        give_up_s = self.now_s() + LONGEST_SETTLE_S
        while not self.session.settled(end_s) and self.now_s() < give_up_s:
            time.sleep(LOOK_S)

    def close(self) -> None:
        if self._ours:
            self.session.close()


def relative_error(joules: Joules) -> float | None:
    return joules.uncertainty_j / joules.energy_j if joules.energy_j else None


LOOK_EVERY = 50


class FiniteWatch:
    """Detector of a loss that is not finite, some steps late, without waiting for the device.

    The sum of all losses is on the device. Every `LOOK_EVERY` steps a copy starts to the host and
    is read after it has arrived.
    """

    def __init__(self, device: Any) -> None:
        self._cuda = device.type == "cuda"
        self._sum: Any = None
        self._count = 0
        self._sent: Any = None
        self._event: Any = None

    def add(self, loss: Any) -> bool:
        """Add a loss; return whether all losses known by now were finite."""
        self._sum = loss.float() if self._sum is None else self._sum + loss
        self._count += 1
        if self._count % LOOK_EVERY:
            return True
        if not self._cuda:
            return self.finite()
        return self._look()

    def finite(self) -> bool:
        """Return whether all losses were finite; waits for the device."""
        import torch

        return self._sum is None or bool(torch.isfinite(self._sum).item())

    @property
    def mean(self) -> float | None:
        """Return the mean loss; waits for the device."""
        return None if self._sum is None else float(self._sum.item()) / self._count

    def _look(self) -> bool:
        import torch

        arrived = self._event is not None and self._event.query()
        good = not arrived or bool(torch.isfinite(self._sent).item())
        if arrived or self._event is None:
            self._sent = torch.empty((), dtype=torch.float32, pin_memory=True)
            self._sent.copy_(self._sum, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        return good


@dataclass(frozen=True, slots=True)
class TrainedEpoch:
    """Time interval in which the device trained or evaluated.

    Attributes:
        begin_s, end_s: the device is idle at both.
        samples: trained on.
    """

    begin_s: float
    end_s: float
    samples: int
    finite: bool
    loss: float

    @property
    def time_s(self) -> float:
        return self.end_s - self.begin_s


def train_epoch(
    candidate: TorchCandidate,
    energy: EnergySource,
    *,
    number: int | None = None,
    stop: Callable[[int], bool] | None = None,
    on_step: Callable[[float], None] | None = None,
) -> TrainedEpoch:
    """Train to the end of an epoch, or until a loss is not finite.

    Resumes an unfinished epoch and counts the steps in `candidate.counts`. With the order of
    another epoch (`number`) the steps do not count.

    `number`: of the epoch's order; the candidate's own next one unless given.
    `stop`: asked after each step, with the steps of this epoch so far, whether to end here.
    `on_step`: called with 1 after each step.
    """
    candidate.model.train()
    watch = FiniteWatch(candidate.device)
    begin_s, samples, counts = energy.now_s(), 0, candidate.counts
    order = counts.epochs if number is None else number
    steps = counts.steps if number is None else 0
    for batch in candidate.training.data.epoch(
        candidate.batch_size, seed=candidate.seed, number=order, first=steps
    ):
        samples += int(next(tensors(batch)).shape[0])
        steps += 1
        if on_step is not None:
            on_step(1.0)
        if not watch.add(candidate.step(batch)) or (stop is not None and stop(steps)):
            break
    if number is None:
        counts.steps = steps
    finite, loss = watch.finite(), watch.mean  # waits for the device
    return TrainedEpoch(
        begin_s, energy.now_s(), samples, finite, float("nan") if loss is None else loss
    )


def join_epochs(parts: Sequence[TrainedEpoch]) -> TrainedEpoch:
    return TrainedEpoch(
        parts[0].begin_s,
        parts[-1].end_s,
        sum(part.samples for part in parts),
        all(part.finite for part in parts),
        parts[-1].loss,
    )


# Energy windows that are extended until their error is small enough. A sensor with ten updates per
# second is imprecise over half a second. The device then repeats steps, which do not count, until
# the energy has the requested error.

LEAST_GAIN = 0.9
"""If doubling a window reduces its error by less than this, longer windows do not help."""
FIRST_S = 0.25
FIRST_ORDER = 500_000_000
"""Data orders that neither epochs nor explorations use."""


def sharpen_energy(
    candidate: TorchCandidate,
    energy: EnergySource,
    stretches: Sequence[TrainedEpoch],
    *,
    error: float,
    longest_s: float,
) -> list[TrainedEpoch]:
    """Extend the windows until their energy is precise; this changes the candidate.

    `error`: required relative half-width.
    `longest_s`: give up after this long.
    """
    added: list[TrainedEpoch] = []
    begin_s = energy.now_s()
    last = _error(energy, stretches)
    while last is not None and last > error and energy.now_s() - begin_s < longest_s:
        known_s = sum(s.time_s for s in (*stretches, *added))
        left_s = longest_s - (energy.now_s() - begin_s)
        until_s = energy.now_s() + min(left_s, max(FIRST_S, known_s))
        parts: list[TrainedEpoch] = []
        while energy.now_s() < until_s and (not parts or parts[-1].finite):
            number = FIRST_ORDER + 1_000 * len(added) + len(parts)
            parts.append(
                train_epoch(
                    candidate,
                    energy,
                    number=number,
                    stop=lambda _, until_s=until_s: energy.now_s() >= until_s,  # type: ignore[misc]  # a default that binds the loop variable
                )
            )
        # One window over all of them: each edge has its own error.
        added.append(join_epochs(parts))
        if not parts[-1].finite:
            break
        now = _error(energy, (*stretches, *added))
        if now is None or now > LEAST_GAIN * last:
            break
        last = now
    return added


def sum_joules(parts: Sequence[Joules]) -> Joules:
    """Return the energy of intervals that do not overlap; None when one was not read.

    Errors are added linearly: part of each is the sensor's own and the same in all.
    """
    if not parts or any(part.energy_j is None for part in parts):
        return Joules(None)
    return Joules(
        sum(part.energy_j or 0.0 for part in parts),
        sum(part.uncertainty_j for part in parts),
        parts[0].provenance,
    )


def _error(energy: EnergySource, stretches: Sequence[TrainedEpoch]) -> float | None:
    energy.settle(stretches[-1].end_s)
    return relative_error(sum_joules([energy.between(s.begin_s, s.end_s) for s in stretches]))
