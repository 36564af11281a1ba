"""One uninterrupted segment of a job on its machines, and interference between neighbours."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from wattloop.schedule.preemption import Keeps, Preemption
from wattloop.schedule.view import PreemptionLoss, RunningJob


@dataclass(eq=False)
class JobSegment(RunningJob):
    """A running job as it truly goes.

    Most jobs run in one go at one speed: what only others need is a default of the class, not set
    for each.

    Attributes:
        sample_s: seconds per sample, undisturbed.
        step_work: samples of one iteration.
        trains_from_s: when it begins to train, after a restart.
        since_s: up to when the figures below hold.
        slowdown: by others on its nodes; 1 for none.
        done: samples trained on in this stretch.
        saved: those up to the last checkpoint.
        energy_j: drawn in this stretch.
        restart_j: the part of it before training began.
        version: how often its end was moved; older ends in the heap are void.
        works_from_s: when its GPUs stop idling, after what a cluster needs to start a job.
        rests: its work is done, and its GPUs idle until the cluster has cleaned up after it.
    """

    sample_s: float
    step_work: float
    trains_from_s: float
    since_s: float
    slowdown: float = field(default=1.0, init=False)
    done: float = field(default=0.0, init=False)
    saved: float = field(default=0.0, init=False)
    energy_j: float = field(default=0.0, init=False)
    restart_j: float = field(default=0.0, init=False)
    version: int = field(default=0, init=False)
    works_from_s: float = field(default=-math.inf, init=False)
    rests: bool = field(default=False, init=False)

    @property
    def is_done(self) -> bool:
        """Its work is done, and its GPUs are about to be free."""
        return self.rests

    def is_at_work(self, now_s: float) -> bool:
        """Whether its GPUs draw what the job makes them draw."""
        return self.works_from_s <= now_s and not self.rests

    def end_s(self, rules: Preemption) -> float:
        """When it will have done its work, if all stays as it is."""
        left_s = (self.work_at_start - self.done) * self.sample_s * self.slowdown
        if not rules.pauses:
            return max(self.since_s, self.trains_from_s) + left_s
        trained_s = rules.trained_s(self.since_s - self.trains_from_s)
        return self.trains_from_s + rules.elapsed_s(trained_s + left_s)

    def done_at(self, now_s: float, rules: Preemption) -> float:
        """Samples trained on in this stretch by then."""
        begin_s = self.trains_from_s
        if rules.pauses:
            trained_s = rules.trained_s(now_s - begin_s) - rules.trained_s(self.since_s - begin_s)
        else:
            trained_s = now_s - max(self.since_s, begin_s)
        if trained_s <= 0.0:
            return self.done
        return min(self.done + trained_s / (self.sample_s * self.slowdown), self.work_at_start)

    def kept_at(self, now_s: float, rules: Preemption) -> float:
        """Samples of this stretch that would not have to be trained on again."""
        if rules.keeps is Keeps.NOTHING:
            return 0.0
        if rules.keeps is Keeps.CHECKPOINTS:
            return self._saved_at(now_s, rules)
        done = self.done_at(now_s, rules)
        # A share of an iteration that is only rounding still makes it whole.
        return min(math.floor(done / self.step_work + 1e-9) * self.step_work, done)

    def loss_at(self, now_s: float, rules: Preemption) -> PreemptionLoss:
        """What stopping now throws away: lost work with its share of the energy, and restarts."""
        done = self.done_at(now_s, rules)
        energy_j, restart_j = self.energy_at_j(now_s), self.restart_at_j(now_s)
        lost = max(done - self.kept_at(now_s, rules), 0.0)
        share = lost / done if done > 0.0 else 1.0
        return PreemptionLoss(lost, restart_j + (energy_j - restart_j) * share)

    def energy_at_j(self, now_s: float) -> float:
        """Drawn in this stretch by then."""
        return self.energy_j + self.power_w * (now_s - self.since_s)

    def restart_at_j(self, now_s: float) -> float:
        """Drawn in this stretch before it trained."""
        waited_s = min(now_s, self.trains_from_s) - self.since_s
        return self.restart_j + self.power_w * waited_s if waited_s > 0.0 else self.restart_j

    def settle(self, now_s: float, rules: Preemption) -> None:
        """Bring everything up to now, before the speed or the power changes."""
        if rules.keeps is Keeps.CHECKPOINTS:
            self.saved = self._saved_at(now_s, rules)
        self.done = self.done_at(now_s, rules)
        self.restart_j = self.restart_at_j(now_s)
        self.energy_j = self.energy_at_j(now_s)
        self.since_s = now_s

    def _saved_at(self, now_s: float, rules: Preemption) -> float:
        """Samples up to the last checkpoint that was complete."""
        last_s = self.trains_from_s + rules.last_checkpoint_s(now_s - self.trains_from_s)
        return self.done_at(last_s, rules) if last_s > self.since_s else self.saved


class Neighbours:
    """Jobs by node.

    Args:
        nodes: how many there are.
        interference: by how much a job slows down for each other job on its busiest node.
    """

    def __init__(self, nodes: int, interference: float) -> None:
        self._jobs: list[set[int]] = [set() for _ in range(nodes)]
        self._interference = interference

    def on(self, node: int) -> list[int]:
        """Jobs on a node, by number."""
        return sorted(self._jobs[node])

    def join(
        self, stretch: JobSegment, running: Mapping[int, JobSegment]
    ) -> list[tuple[JobSegment, float]]:
        """A job comes and takes its speed; the others whose speed changes, and their slowdowns."""
        for node, _ in stretch.nodes:
            self._jobs[node].add(stretch.job)
        if not self._interference:
            return []
        stretch.slowdown = self._slowdown(stretch)
        return self._changed(stretch, running)

    def leave(
        self, stretch: JobSegment, running: Mapping[int, JobSegment]
    ) -> list[tuple[JobSegment, float]]:
        """A job goes; the others whose speed changes, and their slowdowns."""
        for node, _ in stretch.nodes:
            self._jobs[node].discard(stretch.job)
        return self._changed(stretch, running) if self._interference else []

    def _changed(
        self, stretch: JobSegment, running: Mapping[int, JobSegment]
    ) -> list[tuple[JobSegment, float]]:
        met = {job for node, _ in stretch.nodes for job in self._jobs[node]} - {stretch.job}
        found = [(running[job], self._slowdown(running[job])) for job in sorted(met)]
        return [(other, slowdown) for other, slowdown in found if slowdown != other.slowdown]

    def _slowdown(self, stretch: JobSegment) -> float:
        others = max(len(self._jobs[node]) for node, _ in stretch.nodes) - 1
        return 1.0 + self._interference * others
