"""Execution of a virtual training job on cards, in scaled time.

A job scaled by X is the same job with 1/X of its work in each step, on cards whose power and
temperature follow X times faster. Seen from outside it lasts 1/X of the seconds and uses 1/X of the
joules, at the same watts: every ratio between two settings (gain, loss, EDP, EDS) is that of the
whole job. Its result gives simulated seconds and joules, multiplied by X again.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from wattloop.core.clock import Clock
from wattloop.core.errors import ConfigError
from wattloop.virtual.gpu import IDLE, Activity, VirtualGpu
from wattloop.virtual.job import JobPhase, TrainingJob
from wattloop.virtual.meter import node_energy_j
from wattloop.virtual.node import NodeModel
from wattloop.virtual.timeline import NO_OWNER, WorkOwner

SLICE_S = 0.05
"""Limits are looked at this often, so that a cap set meanwhile takes effect."""
ENERGY_STEPS = 60
"""Cards are integrated exactly; host, fans and supplies move slowly."""


class TrainingResult(NamedTuple):
    """Simulated seconds and joules; `wall_s` is what really passed.

    `node_energy_j` is None where no node is modelled; `gpu_energy_j` covers the cards of the job.
    """

    job: str
    gpus: int
    steps: int
    time_s: float
    gpu_energy_j: float
    node_energy_j: float | None
    wall_s: float
    time_scale: float
    provenance: str = "simulated"

    def to_dict(self) -> dict[str, Any]:
        return self._asdict()


class TrainingRun:
    """One run of a job.

    Args:
        cards: those of the machine, of which the first `gpus` work.
        time_scale: how many simulated seconds pass in a second of the clock.
        owner: the process with which the work ends.
    """

    def __init__(
        self,
        cards: Sequence[VirtualGpu],
        gpus: int,
        clock: Clock,
        *,
        node: NodeModel | None = None,
        time_scale: float = 1.0,
        owner: WorkOwner = NO_OWNER,
    ) -> None:
        if not 1 <= gpus <= len(cards):
            raise ConfigError(
                f"the job asks for {gpus} GPUs and there are {len(cards)} virtual ones; set "
                f"WATTLOOP_VIRTUAL_GPUS={gpus}"
            )
        self._cards = cards
        self._used = cards[:gpus]
        self._clock = clock
        self._node = node
        self._scale = time_scale
        self._owner = owner
        self._at_s = clock.now_s()

    def run(
        self,
        jobs: Sequence[TrainingJob],
        on_step: Callable[[int], None] = lambda step: None,
        began_s: float | None = None,
        during: AbstractContextManager[object] | None = None,
    ) -> TrainingResult:
        """Train, one entry of `jobs` per step; `during` is entered for the steps alone."""
        steps, gpus = len(jobs), len(self._used)
        for card in self._cards:
            card.reap()  # of a job that was killed
        try:
            with during or nullcontext():
                begin_s = self._at_s = self._clock.now_s() if began_s is None else began_s
                for number, job in enumerate(jobs, start=1):
                    for phase in job.shortened(steps * self._scale).phases(gpus):
                        self._do(phase)
                    on_step(number)
                end_s = self._at_s
        finally:
            for card in self._used:
                card.occupy(IDLE, min(self._at_s, self._clock.now_s()), self._scale)
        used_j = sum(card.true_energy_j(begin_s, end_s) for card in self._used)
        node_j = None
        if self._node is not None:
            step_s = (end_s - begin_s) / ENERGY_STEPS
            node_j = node_energy_j(self._node, self._cards, begin_s, end_s, step_s)
        return TrainingResult(
            job=" then ".join(dict.fromkeys(job.name for job in jobs)),
            gpus=gpus,
            steps=steps,
            time_s=self._scale * (end_s - begin_s),
            gpu_energy_j=self._scale * used_j,
            node_energy_j=None if node_j is None else self._scale * node_j,
            wall_s=end_s - begin_s,
            time_scale=self._scale,
        )

    def _do(self, phase: JobPhase) -> None:
        """One phase on all cards at once: the slowest one decides when it ends."""
        # Times are planned, not read: what the operating system sleeps too long is not work.
        for card in self._used:
            card.occupy(phase.activity, self._at_s, self._scale, self._owner)
        left = 1.0
        while left > 1e-9:
            whole_s = phase.duration_s * self._slowdown(phase.activity)
            slice_s = min(left * whole_s, max(SLICE_S, whole_s / 20))
            self._at_s += slice_s
            self._clock.sleep(max(0.0, self._at_s - self._clock.now_s()))
            left -= slice_s / whole_s

    def _slowdown(self, activity: Activity) -> float:
        different = {card.limits: card for card in self._used}
        return max(card.settled(activity).slowdown for card in different.values())
