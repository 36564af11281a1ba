"""How a simulated cluster behaves, whatever the policy."""

import math
from dataclasses import dataclass, field

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import NodeEvent
from wattloop.schedule.preemption import Keeps, Preemption
from wattloop.schedule.step_function import StepFunction

__all__ = ["EngineSettings", "Keeps", "NodeEvent", "Preemption"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Rules of a simulation.

    Attributes:
        round_s: decisions fall on multiples of this; None decides whenever something happens.
        horizon_s: when the simulation ends; infinite lets all jobs finish.
        preemption: what stopping a job costs.
        start_latency_s: from the decision to start a job until it works; it has its GPUs, which
            idle.
        end_latency_s: from the end of a job's work until the scheduler knows and its GPUs can be
            given to another; they idle, and their power is still believed to be drawn.
        interference: by how much a job slows down for each other job on its nodes (0.05 = 5%).
        budget_w: most the whole cluster may draw; what is above is counted, not prevented.
        carbon_g_per_kwh, price_per_kwh: of electricity.
        node_events: failures and repairs, by time.
        checks: look after every event whether the invariants hold.
        strict: an impossible action of the policy is an error, not only refused and counted.
        patience: give up after so many events in a row with no job that came or ended.
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
