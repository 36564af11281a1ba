"""How a simulated cluster behaves, whatever the policy."""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from wattloop.schedule.cluster.failures import NodeEvent
from wattloop.schedule.steps import Steps

__all__ = ["Keeps", "NodeEvent", "Preemption", "Settings"]


class Keeps(StrEnum):
    """What a job that is stopped has kept when it starts again."""

    ITERATIONS = "iterations"
    """All but the iteration it was in (thesis 5.3.2.4)."""
    NOTHING = "nothing"
    """It begins anew (thesis 5.6.4)."""
    CHECKPOINTS = "checkpoints"
    """All up to its last checkpoint."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """What stopping and starting costs.

    Attributes:
        keeps: what a stopped job has kept.
        checkpoint_period_s: training time between checkpoints, with `Keeps.CHECKPOINTS`.
        checkpoint_cost_s: how long one takes; the job draws power and does not train.
        restart_s: from the start of a job that was stopped before until it trains again.
    """

    keeps: Keeps = Keeps.ITERATIONS
    checkpoint_period_s: float = math.inf
    checkpoint_cost_s: float = 0.0
    restart_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Rules of a simulation.

    Attributes:
        round_s: decisions fall on multiples of this; None decides whenever something happens.
        horizon_s: when the simulation ends; infinite lets all jobs finish.
        preemption: what stopping a job costs.
        interference: by how much a job slows down for each other job on its nodes (0.05 = 5%).
        budget_w: most the whole cluster may draw; what is above is counted, not prevented.
        carbon_g_per_kwh, price_per_kwh: of electricity.
        node_events: failures and repairs, by time.
        checks: look after every event whether the invariants hold.
        strict: an impossible action of the policy is an error, not only refused and counted.
    """

    round_s: float | None = None
    horizon_s: float = math.inf
    preemption: Preemption = field(default_factory=Preemption)
    interference: float = 0.0
    budget_w: Steps = field(default_factory=lambda: Steps.constant(math.inf))
    carbon_g_per_kwh: Steps | None = None
    price_per_kwh: Steps | None = None
    node_events: tuple[NodeEvent, ...] = ()
    checks: bool = False
    strict: bool = False
