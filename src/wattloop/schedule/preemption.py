"""Cost of preemption: lost progress, checkpoints and restarts."""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from wattloop.core.errors import ConfigError


class Keeps(StrEnum):
    """Progress of a stopped job when it starts again."""

    ITERATIONS = "iterations"
    """All but the iteration it was in (thesis 5.3.2.4)."""
    NOTHING = "nothing"
    """No progress: it starts from the beginning (thesis 5.6.4)."""
    CHECKPOINTS = "checkpoints"
    """All up to its last checkpoint."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """Settings of preemption.

    Attributes:
        checkpoint_period_s: training time between checkpoints, with `Keeps.CHECKPOINTS`.
        checkpoint_cost_s: duration of a checkpoint; the job draws power and does not train. No
            checkpoint follows the end of the work.
        restart_s: time from the restart of a stopped job until it trains again.
        resize_s: time without training when a running job moves to other GPUs or another batch: it
            writes a checkpoint and starts again, and keeps all whole iterations. None: jobs cannot.
    """

    keeps: Keeps = Keeps.ITERATIONS
    checkpoint_period_s: float = math.inf
    checkpoint_cost_s: float = 0.0
    restart_s: float = 0.0
    resize_s: float | None = None
    pauses: bool = field(init=False, repr=False, default=False)
    """True if training pauses for checkpoints."""

    def __post_init__(self) -> None:
        if not self.checkpoint_period_s > 0.0:
            raise ConfigError(
                f"preemption: checkpoint_period_s is {self.checkpoint_period_s:g}; "
                "give the seconds of training between two checkpoints"
            )
        for name in ("checkpoint_cost_s", "restart_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"preemption: {name} is {getattr(self, name):g}; give seconds")
        if self.resize_s is not None and not 0.0 <= self.resize_s < math.inf:
            raise ConfigError(f"preemption: resize_s is {self.resize_s:g}; give seconds")
        saves = self.keeps is Keeps.CHECKPOINTS and self.checkpoint_period_s < math.inf
        object.__setattr__(self, "pauses", saves and self.checkpoint_cost_s > 0.0)

    def trained_s(self, elapsed_s: float) -> float:
        """Return the training time within the first `elapsed_s`; the rest is checkpoints."""
        if elapsed_s <= 0.0:
            return 0.0
        whole, rest_s = divmod(elapsed_s, self.checkpoint_period_s + self.checkpoint_cost_s)
        return whole * self.checkpoint_period_s + min(rest_s, self.checkpoint_period_s)

    def elapsed_s(self, trained_s: float) -> float:
        """Return the time for this much training, with the checkpoints before its end."""
        checkpoints = math.ceil(trained_s / self.checkpoint_period_s) - 1
        return trained_s + max(checkpoints, 0) * self.checkpoint_cost_s

    def last_checkpoint_s(self, elapsed_s: float) -> float:
        """Return the completion time of the last checkpoint; 0 before the first."""
        if elapsed_s <= 0.0 or math.isinf(self.checkpoint_period_s):
            return 0.0
        cycle_s = self.checkpoint_period_s + self.checkpoint_cost_s
        return math.floor(elapsed_s / cycle_s) * cycle_s

    def makes_progress(self, time_s: float, step_s: float) -> bool:
        """Return True if a job stopped `time_s` after its start keeps any progress.

        Args:
            time_s: time with its GPUs, including a restart.
            step_s: time of one iteration.
        """
        trains_s = time_s - self.restart_s
        if self.keeps is Keeps.NOTHING:
            return False
        if self.keeps is Keeps.CHECKPOINTS:
            return self.last_checkpoint_s(trains_s) > 0.0
        return trains_s >= step_s
