"""Trace of a torch model: the operations of one training step, without running it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.predict.workload.costs.optimizer import OPTIMIZERS, STYLES, rule_of
from wattloop.predict.workload.files import cached_workload
from wattloop.predict.workload.fusion import MODES
from wattloop.predict.workload.workload import Workload

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
_LOSSES = ("cross_entropy", "mse")


@dataclass(frozen=True)
class TraceRequest:
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
    compile: str = ""
    step: Callable[[], Any] | None = None

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
        if self.compile and self.compile not in MODES:
            raise ConfigError(
                f"compile mode '{self.compile}' is not known; use one of {', '.join(MODES)}"
            )
        if self.accumulate < 1:
            raise ConfigError(f"accumulate is {self.accumulate}; at least one pass makes a step")
        if self.batch is not None and self.batch < 1:
            raise ConfigError(f"batch is {self.batch}; at least one sample makes a pass")
        if isinstance(self.optimizer, str) and self.optimizer:
            rule = rule_of(self.optimizer)
            if self.style == "fused" and rule.fused is None:
                raise ConfigError(f"torch has no fused {self.optimizer}; use style 'foreach'")
        elif self.optimizer and not (callable(self.optimizer) or _is_optimizers(self.optimizer)):
            raise ConfigError(
                f"optimizer: expected one of {', '.join(OPTIMIZERS)}, an optimizer of torch, a "
                f"function or None, got {type(self.optimizer).__name__}"
            )


def _is_optimizers(value: Any) -> bool:
    listed = value if isinstance(value, (list, tuple)) else [value]
    return all(hasattr(each, "param_groups") for each in listed)


def trace(  # noqa: PLR0913 - most have a default
    model: Any,
    inputs: Any = None,
    *,
    step: Callable[[], Any] | None = None,
    targets: Any = None,
    loss: Callable[..., Any] | str | None = None,
    precision: str = "fp32",
    optimizer: Any = "adamw",
    style: str = "foreach",
    training: bool = True,
    accumulate: int = 1,
    batch: int | None = None,
    name: str = "",
    compile: str | None = None,  # noqa: A002 - as torch calls it
    cache: bool = False,
) -> Workload:
    """Trace operations, memory and parameters of one step of `model` on `inputs`.

    Nothing is executed and no weights are allocated.

    Args:
        model: a `torch.nn.Module` (on any device, best on `meta`), a Hugging Face configuration, or
            a function without arguments that makes a module.
        inputs: of the model: a tensor, a tuple of them, or a dictionary by name; only shapes and
            types count, so `torch.empty(..., device="meta")` will do. Or a function that gives
            them.
        step: the training step itself, a function without arguments: batch, forward pass, loss,
            backward pass and optimizer as they are. It runs on fake tensors, and nothing that it
            refers to changes. `inputs`, `targets` and `loss` are then not needed, and `optimizer`
            is the optimizer that it uses, or several; the step ends when each has stepped.
        targets: given to `loss` after the model's output.
        loss: `loss(output, targets)`, or `loss(output)` without targets; `"cross_entropy"` and
            `"mse"` make targets that fit. By default the loss in the model's own output, else the
            mean of it.
        precision: `fp32`, `tf32` (products and convolutions), `bf16` or `fp16` (autocast).
        optimizer: `adamw`, `adam`, `sgd`, `sgd+momentum`, `rmsprop` (`+decay` for weight decay), a
            `torch.optim` optimizer, a function from parameters to one, or None for no step.
        style: of the optimizer: `loop`, `foreach` (torch's default on CUDA) or `fused`.
        training: False for the forward pass alone, without gradients.
        accumulate: passes before the optimizer.
        batch: samples in `inputs`, where it is not the first length of the first tensor.
        name: what to call the workload; by default the class of the model.
        compile: mode of `torch.compile(model)`, `default` or `reduce-overhead`; None for an eager
            step. Loss functions outside the model and the optimizer stay eager.
        cache: take a trace made before from the user's cache folder where all that determines it
            is the same, and keep a new one there.

    Raises:
        ConfigError: an argument is wrong, the shapes do not fit the model (names the module), or
            the model depends on data where no default exists (names operation and module).
    """
    request = TraceRequest(
        model=model,
        inputs=inputs,
        targets=targets,
        loss=loss,
        precision=precision,
        optimizer=optimizer,
        style=style,
        training=training,
        accumulate=accumulate,
        batch=batch,
        name=name,
        compile=compile or "",
        step=step,
    )
    try:
        import torch  # noqa: F401 - only to say in good time that it is missing
    except ImportError as problem:
        raise ConfigError(
            "tracing a model needs torch; run `pip install 'wattloop[torch]'`, or predict from a "
            "saved workload"
        ) from problem
    from wattloop.predict.workload.tracing.step import traced

    if not cache or step is not None:
        return traced(request)
    from wattloop.predict.workload.tracing.identity import identity_of

    return cached_workload(identity_of(request), lambda: traced(request))
