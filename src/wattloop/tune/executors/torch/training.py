"""Definition of a PyTorch training: factories of model, optimizer, loss and data."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.tune.executors.torch.batches import FlexibleBatches
from wattloop.tune.search_problem import EarlyStopping
from wattloop.tune.segment import Segment, Value

Parameters = Mapping[str, Value]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Factories and functions of one kind of training.

    Attributes:
        model: makes the model of a configuration, or is a model of which each candidate gets a
            copy. It is made with the candidate's seed.
        loss: of the model and a batch; minimized.
        data: batches, shared by all candidates.
        evaluate: how good a model is, by metric. Called without gradients, in evaluation mode.
        batch_size, rate: names of these parameters in the configuration.
        default_rate: where the configuration has none and none was found.
        bf16: compute in bfloat16 where that is safe (autocast).
        clip: norm to which gradients are clipped; None for no clipping.
        stopping: when a training ends by itself.
    """

    model: Any
    optimizer: Callable[[Iterable[Any], float], Any]
    loss: Callable[[Any, Any], Any]
    data: FlexibleBatches
    evaluate: Callable[[Any], Mapping[str, float]]
    batch_size: str = "batch_size"
    rate: str = "learning_rate"
    default_rate: float = 1e-3
    bf16: bool = False
    clip: float | None = None
    stopping: EarlyStopping | None = None

    def batch_of(self, segment: Segment) -> int:
        """Return the batch size of a configuration."""
        value = segment.parameters.get(self.batch_size)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
            raise ConfigError(f"{self.batch_size} is {value!r}; it must be a whole number")
        return int(value)

    def rate_of(self, segment: Segment) -> float | None:
        value: Value = segment.learning_rate
        if value is None:
            value = segment.parameters.get(self.rate)
        return None if value is None else float(value)
