"""The optimizer's part of a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.predict.workload import costs
from wattloop.predict.workload.costs.optimizers import rule_of
from wattloop.predict.workload.operation import Operation, Phase
from wattloop.predict.workload.rules.call import dtype_name
from wattloop.predict.workload.tracing.request import Request

__all__ = ["Optimizing"]


@dataclass(frozen=True)
class Optimizing:
    """What an optimizer does and keeps.

    Attributes:
        name: as in `costs.optimizers`; empty when there is none.
        operations: of one step, the sums of accumulated gradients included.
        state_bytes: kept between steps.
        spare_bytes: needed while the step runs.
    """

    name: str
    operations: tuple[Operation, ...]
    state_bytes: float
    spare_bytes: float

    @classmethod
    def of(cls, request: Request, trained: Sequence[Any]) -> "Optimizing":
        """The optimizer that a request asks for, over these parameters."""
        if not request.training or not request.optimizer:
            return cls("", (), 0.0, 0.0)
        name = (
            request.optimizer
            if isinstance(request.optimizer, str)
            else _name_of(request.optimizer(list(trained)))
        )
        rule = rule_of(name)
        by_dtype: dict[str, list[int]] = {}
        for each in trained:
            by_dtype.setdefault(dtype_name(each.dtype), []).append(each.numel())
        made: list[Operation] = []
        if request.precision == "fp16":
            made += _unscaling(name, by_dtype)
        for dtype, sizes in by_dtype.items():
            made += costs.optimizer_step(name, sizes, style=request.style, dtype=dtype)
        whole = float(sum(each.numel() * each.element_size() for each in trained))
        spare = rule.spare * whole if request.style == "foreach" else 0.0
        return cls(name, tuple(made), rule.states * whole, spare)


def _unscaling(name: str, by_dtype: dict[str, list[int]]) -> list[Operation]:
    """Under fp16 a gradient scaler divides gradients and looks for infinities."""
    made = [
        costs.foreach(
            name,
            len(sizes),
            sum(sizes),
            fused=False,
            dtype=dtype,
            sizes=sizes,
            lists=1,
            op="aten._amp_foreach_non_finite_check_and_unscale_",
        )
        for dtype, sizes in by_dtype.items()
    ]
    update = costs.elementwise(1, 3, 1, "fp32", op="aten._amp_update_scale_", phase=Phase.OPTIMIZER)
    return [*made, update]


def _name_of(optimizer: Any) -> str:
    """The rule for an optimizer of torch."""
    kind = type(optimizer).__name__.lower()
    group = optimizer.param_groups[0]
    decays = bool(group.get("weight_decay"))
    if kind not in {"adamw", "adam", "sgd", "rmsprop"}:
        raise ConfigError(
            f"optimizer {type(optimizer).__name__} has no rule; use AdamW, Adam, SGD or RMSprop"
        )
    for option in ("amsgrad", "centered", "nesterov", "maximize"):
        if group.get(option):
            raise ConfigError(f"optimizer {type(optimizer).__name__}: {option} has no rule yet")
    if kind == "rmsprop" and group.get("momentum"):
        raise ConfigError("optimizer RMSprop: momentum has no rule yet")
    name = kind
    if kind == "sgd" and group.get("momentum"):
        name += "+momentum"
    if decays and kind != "adamw":
        name += "+decay"
    return name
