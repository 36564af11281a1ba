"""Segment of a job: one uninterrupted allocation, and interference between neighbours."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from wattloop.schedule.preemption import Keeps, Preemption
from wattloop.schedule.view import PreemptionLoss, RunningJob


@dataclass(eq=False)
class JobSegment(RunningJob):
    """True state of a running job.

    Most jobs run without a change of speed. Fields that only others need have class defaults, which
    cost nothing to create.

    Attributes:
        sample_s: seconds per sample without neighbours.
        step_work: samples of one iteration.
        trains_from_s: begin of training, after a restart.
        since_s: time of the values below.
        slowdown: by neighbours on its nodes; 1 for none.
        done: samples of this segment.
        saved: samples of this segment up to the last checkpoint.
        energy_j: energy of this segment; `restart_j` is its part before training.
        version: number of changes of its end; older ends in the heap are void.
        works_from_s: end of its start latency, during which its GPUs idle.
        waiting_w: power of its GPUs before it works, if they have to wake up.
        is_ending: its work is done, and its GPUs idle during the end latency.
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
    waiting_w: float | None = field(default=None, init=False)
    is_ending: bool = field(default=False, init=False)

    @property
    def is_done(self) -> bool:
        return self.is_ending

    def is_at_work(self, now_s: float) -> bool:
        """Return True if its GPUs draw the power of the job, not idle power."""
        return self.works_from_s <= now_s and not self.is_ending

    def end_s(self, rules: Preemption) -> float:
        """Return the end of its work at the current speed."""
        left_s = (self.work_at_start - self.done) * self.sample_s * self.slowdown
        if not rules.pauses:
            return max(self.since_s, self.trains_from_s) + left_s
        trained_s = rules.trained_s(self.since_s - self.trains_from_s)
        return self.trains_from_s + rules.elapsed_s(trained_s + left_s)

    def done_at(self, now_s: float, rules: Preemption) -> float:
        """Return the samples of this segment up to a time."""
        begin_s = self.trains_from_s
        if rules.pauses:
            trained_s = rules.trained_s(now_s - begin_s) - rules.trained_s(self.since_s - begin_s)
        else:
            trained_s = now_s - max(self.since_s, begin_s)
        if trained_s <= 0.0:
            return self.done
        return min(self.done + trained_s / (self.sample_s * self.slowdown), self.work_at_start)

    def kept_at(self, now_s: float, rules: Preemption) -> float:
        """Return the samples of this segment that a stop would not lose."""
        if rules.keeps is Keeps.NOTHING:
            return 0.0
        if rules.keeps is Keeps.CHECKPOINTS:
            return self._saved_at(now_s, rules)
        return self.whole_steps_at(now_s, rules)

    def whole_steps_at(self, now_s: float, rules: Preemption) -> float:
        """Return the samples of this segment without those of the current iteration."""
        done = self.done_at(now_s, rules)
        # tolerance: a rounding error must not lose an iteration
        return min(math.floor(done / self.step_work + 1e-9) * self.step_work, done)

    def loss_at(self, now_s: float, rules: Preemption, kept: float | None = None) -> PreemptionLoss:
        """Return the loss of a stop: lost work with its share of the energy, and restarts."""
        done = self.done_at(now_s, rules)
        energy_j, restart_j = self.energy_at_j(now_s), self.restart_at_j(now_s)
        lost = max(done - (self.kept_at(now_s, rules) if kept is None else kept), 0.0)
        share = lost / done if done > 0.0 else 1.0
        return PreemptionLoss(lost, restart_j + (energy_j - restart_j) * share)

    def energy_at_j(self, now_s: float) -> float:
        return self.energy_j + self.power_w * (now_s - self.since_s)

    def restart_at_j(self, now_s: float) -> float:
        """Return the energy of this segment before training."""
        waited_s = min(now_s, self.trains_from_s) - self.since_s
        return self.restart_j + self.power_w * waited_s if waited_s > 0.0 else self.restart_j

    def update(self, now_s: float, rules: Preemption) -> None:
        """Update all values to now, before speed or power change."""
        if rules.keeps is Keeps.CHECKPOINTS:
            self.saved = self._saved_at(now_s, rules)
        self.done = self.done_at(now_s, rules)
        self.restart_j = self.restart_at_j(now_s)
        self.energy_j = self.energy_at_j(now_s)
        self.since_s = now_s

    def _saved_at(self, now_s: float, rules: Preemption) -> float:
        """Return the samples up to the last complete checkpoint."""
        last_s = self.trains_from_s + rules.last_checkpoint_s(now_s - self.trains_from_s)
        return self.done_at(last_s, rules) if last_s > self.since_s else self.saved


class Neighbours:
    """Jobs by node, and their slowdown.

    Args:
        nodes: number of nodes.
        interference: slowdown of a job for each other job on its busiest node.
    """

    def __init__(self, nodes: int, interference: float) -> None:
        self._jobs: list[set[int]] = [set() for _ in range(nodes)]
        self._interference = interference

    def on(self, node: int) -> list[int]:
        """Return the jobs on a node, by number."""
        return sorted(self._jobs[node])

    def join(
        self, segment: JobSegment, running: Mapping[int, JobSegment]
    ) -> list[tuple[JobSegment, float]]:
        """Add a job and set its slowdown; return other jobs with a changed slowdown."""
        for node, _ in segment.nodes:
            self._jobs[node].add(segment.job)
        if not self._interference:
            return []
        segment.slowdown = self._slowdown(segment)
        return self._changed(segment, running)

    def leave(
        self, segment: JobSegment, running: Mapping[int, JobSegment]
    ) -> list[tuple[JobSegment, float]]:
        """Remove a job; return other jobs with a changed slowdown."""
        for node, _ in segment.nodes:
            self._jobs[node].discard(segment.job)
        return self._changed(segment, running) if self._interference else []

    def _changed(
        self, segment: JobSegment, running: Mapping[int, JobSegment]
    ) -> list[tuple[JobSegment, float]]:
        met = {job for node, _ in segment.nodes for job in self._jobs[node]} - {segment.job}
        found = [(running[job], self._slowdown(running[job])) for job in sorted(met)]
        return [(other, slowdown) for other, slowdown in found if slowdown != other.slowdown]

    def _slowdown(self, segment: JobSegment) -> float:
        others = max(len(self._jobs[node]) for node, _ in segment.nodes) - 1
        return 1.0 + self._interference * others
