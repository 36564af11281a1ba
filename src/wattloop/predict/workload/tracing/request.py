"""Arguments of a trace, checked before torch is imported."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.predict.workload.costs.optimizer import OPTIMIZERS, STYLES, rule_of

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
_LOSSES = ("cross_entropy", "mse")


@dataclass(frozen=True)
class Request:
    """Arguments of `trace`. `merge`: equal blocks are traced once."""

    model: Any
    inputs: Any
    targets: Any
    loss: Callable[..., Any] | str | None
    precision: str
    optimizer: Any
    style: str
    training: bool
    accumulate: int
    name: str
    batch: int | None = None
    merge: bool = True

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ConfigError(
                f"precision '{self.precision}' is not known; use one of {', '.join(PRECISIONS)}"
            )
        if isinstance(self.loss, str) and self.loss not in _LOSSES:
            raise ConfigError(
                f"loss '{self.loss}' is not known; use one of {', '.join(_LOSSES)} or a function"
            )
        if self.style not in STYLES:
            raise ConfigError(f"style '{self.style}' is not known; use one of {', '.join(STYLES)}")
        if self.accumulate < 1:
            raise ConfigError(f"accumulate is {self.accumulate}; at least one pass makes a step")
        if self.batch is not None and self.batch < 1:
            raise ConfigError(f"batch is {self.batch}; at least one sample makes a pass")
        if isinstance(self.optimizer, str) and self.optimizer:
            rule = rule_of(self.optimizer)
            if self.style == "fused" and rule.fused is None:
                raise ConfigError(f"torch has no fused {self.optimizer}; use style 'foreach'")
        elif self.optimizer and not callable(self.optimizer):
            raise ConfigError(
                f"optimizer: expected one of {', '.join(OPTIMIZERS)}, a function or None, got "
                f"{type(self.optimizer).__name__}"
            )
