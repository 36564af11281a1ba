"""Settings of a simulation that do not depend on the policy."""

import math
from dataclasses import dataclass, field

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import NodeEvent
from wattloop.schedule.preemption import Keeps, Preemption
from wattloop.schedule.step_function import StepFunction

__all__ = ["EngineSettings", "Keeps", "NodeEvent", "Preemption"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of a simulation.

    Attributes:
        round_s: decisions are made at multiples of this time; None for a decision at every event.
        horizon_s: end of the simulation; infinite to finish all jobs.
        start_latency_s: time from the start of a job until it works; its GPUs idle.
        end_latency_s: time from the end of a job's work until the scheduler knows and its GPUs are
            free; they idle, but count as busy in the estimated power.
        interference: slowdown of a job for each other job on its nodes (0.05 = 5%).
        budget_w: power budget of the whole cluster; excess is counted, not prevented.
        node_events: failures and repairs, by time.
        strict: raise on an impossible action of the policy instead of refusing and counting it.
        patience: stop after this many successive events without an arrival or end of a job.
    """

    round_s: float | None = None
    horizon_s: float = math.inf
    preemption: Preemption = field(default_factory=Preemption)
    start_latency_s: float = 0.0
    end_latency_s: float = 0.0
    interference: float = 0.0
    budget_w: StepFunction = field(default_factory=lambda: StepFunction.constant(math.inf))
    carbon_g_per_kwh: StepFunction | None = None
    price_per_kwh: StepFunction | None = None
    node_events: tuple[NodeEvent, ...] = ()
    checks: bool = False
    strict: bool = False
    patience: int = 1_000_000

    def __post_init__(self) -> None:
        if self.round_s is not None and not 0.0 < self.round_s < math.inf:
            raise ConfigError(f"settings: round_s is {self.round_s:g}; give seconds, or None")
        if not self.horizon_s > 0.0:
            raise ConfigError(f"settings: horizon_s is {self.horizon_s:g}; give seconds")
        for name in ("start_latency_s", "end_latency_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"settings: {name} is {getattr(self, name):g}; give seconds")
        if not 0.0 <= self.interference < math.inf:
            raise ConfigError(f"settings: interference is {self.interference:g}; give a share")
