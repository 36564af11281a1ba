"""Common interface of the scenarios."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wattloop.tune.executors.torch.training import Training
from wattloop.tune.objective import Objective
from wattloop.tune.search_problem import EarlyStopping, Problem, Quality
from wattloop.tune.space import Choice, Real, Space

__all__ = ["Scenario"]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One training to be tuned.

    Attributes:
        name, title: for programs and for people.
        metric, maximize: of quality.
        batch_sizes: eight of them.
        batch_size, rate: usual values without a search.
        low, high: learning rates, as they suit the optimizer.
        optimizer: its name.
        tolerance: a difference in quality that counts as none, where seeds differ by less.
        stopping: the rule by which every training ends.
        training: makes the training on a device.
        facts: about data and model, for the page.
    """

    name: str
    title: str
    metric: str
    maximize: bool
    batch_sizes: tuple[int, ...]
    batch_size: int
    rate: float
    low: float
    high: float
    optimizer: str
    tolerance: float
    stopping: EarlyStopping
    training: Callable[[Any], Training]
    facts: dict[str, Any] = field(default_factory=dict)

    def problem(self, seed: int, target: float | None = None, alpha: float = 0.75) -> Problem:
        """Return the search over batch sizes and learning rates."""
        return Problem(
            space=Space(
                {
                    "batch_size": Choice(values=self.batch_sizes),
                    "learning_rate": Real(low=self.low, high=self.high, log=True),
                }
            ),
            quality=Quality(metric=self.metric, maximize=self.maximize, target=target),
            objective=Objective(options={"alpha": alpha, "beta": 0.5}),
            default={"batch_size": self.batch_size, "learning_rate": self.rate},
            rate="learning_rate",
            seed=seed,
        )
