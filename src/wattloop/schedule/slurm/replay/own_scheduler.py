"""Slurm's own scheduler, and the policy of ours that does the same in the simulator."""

from collections.abc import Callable
from dataclasses import dataclass

from wattloop.core.errors import ConfigError

__all__ = ["BACKFILL", "BUILTIN", "OwnScheduler", "own_scheduler"]

BUILTIN, BACKFILL = "sched/builtin", "sched/backfill"
USUAL_LOOK_S = 30.0
"""Slurm's `bf_interval` where nobody sets it."""


@dataclass(frozen=True, slots=True)
class OwnScheduler:
    """As it is configured.

    Attributes:
        kind: `SchedulerType` of slurm.conf.
        look_s: time between two looks for gaps, where it fills gaps; the first jobs of its queue
            it starts whenever something happens.
    """

    kind: str
    look_s: float = 0.0

    @property
    def policy(self) -> str:
        """Name and parameters of ours."""
        return "fifo" if self.kind == BUILTIN else f"backfill{{look_s: {self.look_s:g}}}"


def own_scheduler(slurm: Callable[..., str]) -> OwnScheduler:
    """What a Slurm says of itself.

    Args:
        slurm: runs one of its commands.

    Raises:
        ConfigError: it has a scheduler that the simulator does not know.
    """
    said = {}
    for line in slurm("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        said[name.strip()] = value.strip()
    kind = said.get("SchedulerType", "")
    if kind not in (BUILTIN, BACKFILL):
        raise ConfigError(
            f"Slurm: SchedulerType is none that the simulator knows; use {BACKFILL} or {BUILTIN}"
        )
    return OwnScheduler(kind, _look_s(said) if kind == BACKFILL else 0.0)


def _look_s(said: dict[str, str]) -> float:
    for word in said.get("SchedulerParameters", "").split(","):
        name, _, value = word.partition("=")
        if name.strip() == "bf_interval" and value.strip().isdigit():
            return float(value)
    return USUAL_LOOK_S
