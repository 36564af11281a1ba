"""When a segment ends: at the end of an epoch, or inside one where that was asked for."""

from wattloop.tune.early_stopping import EarlyStopping
from wattloop.tune.problem import Quality
from wattloop.tune.progress import Status
from wattloop.tune.segment import Until
from wattloop.tune.torch.candidate import Counts
from wattloop.tune.torch.energy import EnergySource

__all__ = ["Bounds"]

CLOSE = 1e-9
LOOK_S = 0.05
"""How often energy is asked for in the middle of an epoch."""


class Bounds:
    """The bounds of one segment.

    Args:
        until: what the strategy asked for.
        quality: the target.
        stopping: the training's own rule.
        counts: how far the candidate is; they go on while it is trained.
        steps: of a whole epoch.
        energy: who is asked for joules, and the time.
        begin_s: when the segment began.
    """

    def __init__(
        self,
        until: Until,
        quality: Quality,
        stopping: EarlyStopping | None,
        counts: Counts,
        *,
        steps: int,
        energy: EnergySource,
        begin_s: float,
    ) -> None:
        self._until, self._quality, self._stopping = until, quality, stopping
        self._counts, self._steps = counts, steps
        self._energy, self._begin_s = energy, begin_s
        self._looked_s = begin_s

    def before(self) -> Status | None:
        """How the segment ends without any training; None when there is something to do."""
        counts = self._counts
        if self._stopping is not None and self._stopping.over(counts.epochs, counts.since_gain):
            return Status.ENDED
        return Status.PAUSED if self._enough_epochs(counts.steps) else None

    def after_epoch(self) -> Status | None:
        """How the segment ends here, at the end of an epoch; None when it goes on."""
        if self._until.at_target and self._quality.reached(self._counts.quality):
            return Status.REACHED
        ended = self.before()
        if ended is not None:
            return ended
        over = self._enough_time() or self._enough_energy()
        return Status.PAUSED if over else None

    def inside(self, steps: int) -> bool:
        """Whether to pause after so many steps of an epoch."""
        if not self._until.anywhere or steps >= self._steps:
            return False
        if self._enough_epochs(steps) or self._enough_time():
            return True
        now_s = self._energy.now_s()
        if now_s - self._looked_s < LOOK_S:
            return False
        self._looked_s = now_s
        return self._enough_energy()

    # -- inside ----------------------------------------------------------------------------

    def _enough_epochs(self, steps: int) -> bool:
        epochs = self._counts.epochs + steps / self._steps
        return self._until.epochs is not None and epochs >= self._until.epochs - CLOSE

    def _enough_time(self) -> bool:
        lasted_s = self._energy.now_s() - self._begin_s
        return self._until.time_s is not None and lasted_s >= self._until.time_s

    def _enough_energy(self) -> bool:
        if self._until.energy_j is None:
            return False
        energy_j = self._energy.between(self._begin_s, self._energy.now_s()).energy_j
        return energy_j is not None and energy_j >= self._until.energy_j
