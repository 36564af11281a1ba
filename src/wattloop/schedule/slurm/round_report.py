"""What one round found and did, for people, tests and benchmarks."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["RoundReport"]


@dataclass(slots=True)
class RoundReport:
    """One round.

    Attributes:
        at_s: seconds since 1970.
        waiting, running, coming: jobs.
        free_gpus: as the policy saw them.
        power_w, budget_w: of the whole cluster, as far as it is counted.
        measured_nodes: nodes whose power is measured; that of others is estimated.
        starts, standby, preempts, recaps: keys of jobs.
        refusals: what was not carried out.
        fault: what the policy raised.
        read_s, view_s, policy_s, carry_s: how long the parts took.
        calls: of Slurm's programs.
    """

    at_s: float = 0.0
    waiting: int = 0
    running: int = 0
    coming: int = 0
    free_gpus: int = 0
    power_w: float = math.nan
    budget_w: float = math.inf
    measured_nodes: int = 0
    starts: list[str] = field(default_factory=list)
    standby: list[str] = field(default_factory=list)
    preempts: list[str] = field(default_factory=list)
    recaps: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    short_of_power: int = 0
    fault: str = ""
    wake_s: float = math.inf
    read_s: float = 0.0
    view_s: float = 0.0
    policy_s: float = 0.0
    carry_s: float = 0.0
    calls: int = 0

    @property
    def took_s(self) -> float:
        """All parts together."""
        return self.read_s + self.view_s + self.policy_s + self.carry_s

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found = {**asdict(self), "took_s": self.took_s}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in found.items()
        }
