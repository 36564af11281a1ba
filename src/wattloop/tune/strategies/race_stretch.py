"""What stretches of training took, and what of it was only to begin.

The first stretch of a training holds its start as well: imports, data, a model to be made. That is
paid once, not with every epoch; it is seen when the training goes on.
"""

import math
from dataclasses import dataclass

from wattloop.tune.progress import Progress

__all__ = ["Epoch", "Start", "Stretch", "opened", "spent_j", "started", "trained"]

LEAST_SHARE = 1e-6
"""Of an epoch; less is none."""
DEARER = 0.1
"""A first stretch that costs this much more than those after it holds a start."""
START_ERROR = 0.2
"""How much the start of one candidate differs from that of another (relative)."""
LEAST_LEFT = 0.05
"""Of a first stretch, for training, however dear starts were elsewhere."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one epoch takes, and the relative standard error of the energy."""

    energy_j: float
    time_s: float
    error: float


@dataclass(frozen=True, slots=True)
class Start:
    """What it takes to begin a training."""

    energy_j: float = 0.0
    time_s: float = 0.0


@dataclass(slots=True)
class Stretch:
    """Training under one cap."""

    epochs: float = 0.0
    energy_j: float = 0.0
    time_s: float = 0.0
    error_j: float = 0.0

    def add(self, other: "Stretch") -> None:
        """One more."""
        self.epochs += other.epochs
        self.energy_j += other.energy_j
        self.time_s += other.time_s
        self.error_j = math.hypot(self.error_j, other.error_j)

    @property
    def epoch(self) -> Epoch | None:
        """The average; None when it was too short to say."""
        if self.epochs < LEAST_SHARE or self.energy_j <= 0:
            return None
        return Epoch(
            self.energy_j / self.epochs, self.time_s / self.epochs, self.error_j / self.energy_j
        )

    def after(self, start: Start) -> "Stretch":
        """The training alone, if it began with this start."""
        return Stretch(
            self.epochs,
            max(self.energy_j - start.energy_j, LEAST_LEFT * self.energy_j),
            max(self.time_s - start.time_s, LEAST_LEFT * self.time_s),
            math.hypot(self.error_j, START_ERROR * start.energy_j),
        )


def trained(progress: Progress, epochs: float) -> Stretch:
    """A segment of so many epochs."""
    return Stretch(epochs, spent_j(progress), progress.time_s, progress.uncertainty_j)


def spent_j(progress: Progress) -> float:
    """Without a meter time stands in for energy: shorter is all that can be asked for."""
    return progress.time_s if progress.energy_j is None else progress.energy_j


def opened(progress: Progress, epochs: float, before: Stretch) -> tuple[Stretch, Stretch]:
    """A segment that begins a training, in two: to the end of the first epoch, and from there on;
    all is in the former where the curve does not tell.

    Args:
        progress: what came of it.
        epochs: that it was trained for.
        before: what was told of the training before its first step.
    """
    whole = trained(progress, epochs)
    if not progress.curve or progress.curve[0].epoch >= epochs:
        return whole, Stretch()
    first = progress.curve[0]
    time_s = first.time_s - before.time_s
    told_j = first.time_s if progress.energy_j is None else first.energy_j
    own_j = None if told_j is None else told_j - before.energy_j
    if own_j is None or not 0 < own_j < whole.energy_j:
        return whole, Stretch()
    share = own_j / whole.energy_j
    one = Stretch(first.epoch, own_j, time_s, whole.error_j * math.sqrt(share))
    rest = Stretch(
        epochs - one.epochs,
        whole.energy_j - own_j,
        max(whole.time_s - time_s, 0.0),
        whole.error_j * math.sqrt(1 - share),
    )
    return one, rest


def started(opening: Stretch, usual: Epoch) -> Start:
    """The start that a first stretch holds, where an epoch usually takes so much."""
    more_j = opening.energy_j - opening.epochs * usual.energy_j
    noise = DEARER + 3 * math.hypot(usual.error, opening.error_j / max(opening.energy_j, 1e-12))
    if more_j <= noise * opening.epochs * usual.energy_j:
        return Start()
    return Start(more_j, max(opening.time_s - opening.epochs * usual.time_s, 0.0))
