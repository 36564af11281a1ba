"""One stretch of a job on its machines: what it has done, drawn, and would lose."""

import math
from dataclasses import dataclass

from wattloop.schedule.engine.settings import Keeps, Preemption
from wattloop.schedule.running import Running
from wattloop.schedule.view import Loss

__all__ = ["Stretch"]


@dataclass(slots=True, eq=False)
class Stretch(Running):
    """A running job as it truly goes.

    Attributes:
        user: its owner's number.
        sample_s: seconds per sample, undisturbed.
        step_work: samples of one iteration.
        trains_from_s: when it begins to train, after a restart.
        slowdown: by others on its nodes and by checkpoints; 1 for none.
        since_s: up to when `done`, `saved` and `energy_j` hold.
        done: samples trained on in this stretch.
        saved: those up to the last checkpoint.
        energy_j: drawn in this stretch.
        version: how often its end was moved; older ends in the heap are void.
    """

    user: int
    sample_s: float
    step_work: float
    trains_from_s: float
    slowdown: float
    since_s: float
    done: float = 0.0
    saved: float = 0.0
    energy_j: float = 0.0
    version: int = 0

    def end_s(self) -> float:
        """When it will have done its work, if all stays as it is."""
        begin_s = max(self.since_s, self.trains_from_s)
        return begin_s + (self.work_at_start - self.done) * self.sample_s * self.slowdown

    def done_at(self, now_s: float) -> float:
        """Samples trained on in this stretch by then."""
        trained_s = now_s - max(self.since_s, self.trains_from_s)
        if trained_s <= 0.0:
            return self.done
        return min(self.done + trained_s / (self.sample_s * self.slowdown), self.work_at_start)

    def kept_at(self, now_s: float, preemption: Preemption) -> float:
        """Samples of this stretch that would not have to be trained on again."""
        if preemption.keeps is Keeps.NOTHING:
            return 0.0
        if preemption.keeps is Keeps.ITERATIONS:
            return math.floor(self.done_at(now_s) / self.step_work) * self.step_work
        return self._checkpointed_at(now_s, preemption)

    def loss_at(self, now_s: float, preemption: Preemption) -> Loss:
        """What stopping now throws away: energy in proportion to the work."""
        done = self.done_at(now_s)
        energy_j = self.energy_j + self.power_w * (now_s - self.since_s)
        lost = done - self.kept_at(now_s, preemption)
        return Loss(lost, energy_j * (lost / done) if done > 0.0 else energy_j)

    def settle(self, now_s: float, preemption: Preemption) -> None:
        """Bring everything up to now, before the speed or the power changes."""
        if preemption.keeps is Keeps.CHECKPOINTS:
            self.saved = self._checkpointed_at(now_s, preemption)
        self.done = self.done_at(now_s)
        self.energy_j += self.power_w * (now_s - self.since_s)
        self.since_s = now_s

    def _checkpointed_at(self, now_s: float, preemption: Preemption) -> float:
        cycle_s = preemption.checkpoint_period_s + preemption.checkpoint_cost_s
        trained_s = now_s - self.trains_from_s
        if trained_s < cycle_s:
            return 0.0
        last_s = self.trains_from_s + math.floor(trained_s / cycle_s) * cycle_s
        return self.done_at(last_s) if last_s > self.since_s else self.saved
