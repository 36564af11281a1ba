"""When a training ends by itself: its quality has not become better for some epochs."""

from collections.abc import Iterable
from dataclasses import dataclass

from wattloop.core.errors import ConfigError

__all__ = ["EarlyStopping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStopping:
    """Ends a training after `patience` epochs without a gain.

    Attributes:
        patience: epochs.
        least_gain: what counts as better than the best so far, in units of the metric.
        maximize: whether more is better.
        most_epochs: ends it in any case; None for no limit.
    """

    patience: int
    least_gain: float = 0.0
    maximize: bool = True
    most_epochs: int | None = None

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ConfigError(f"patience {self.patience}: use one epoch or more")

    def gained(self, best: float | None, quality: float) -> bool:
        """Whether `quality` counts as better than the best so far."""
        if best is None:
            return True
        gain = quality - best if self.maximize else best - quality
        return gain > self.least_gain

    def over(self, epochs: float, since_gain: float) -> bool:
        """Whether to end after `epochs`, the last `since_gain` of them without a gain."""
        if self.most_epochs is not None and epochs >= self.most_epochs:
            return True
        return since_gain >= self.patience

    def ended(self, qualities: Iterable[float | None]) -> bool:
        """The same of a whole training, from the quality of each epoch."""
        best, epochs, since_gain = None, 0, 0
        for quality in qualities:
            epochs += 1
            since_gain += 1
            if quality is not None and self.gained(best, quality):
                best, since_gain = quality, 0
        return self.over(epochs, since_gain)
