"""One prediction, as a person asks for it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu
from wattloop.predict.placement import Placement

__all__ = ["PRECISIONS", "QUICKEST", "SLOWEST", "Question", "is_number"]

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""float32 throughout, float32 with TF32 products, autocast to bfloat16 or float16."""

SLOWEST, QUICKEST = 0.05, 20.0
"""Of hosts: beyond that it is a slip of the pen."""

FIELDS = {"cap": "cap_w", "clock": "clock_mhz"}
"""What people vary -> field, where they differ."""
QUANTITIES = {
    **FIELDS,
    "samples-per-second": "samples_s",
    "network": "network_bytes_s",
    "host-speed": "host_speed",
}
"""What is a number, with or without a fraction -> field."""


@dataclass(frozen=True, slots=True)
class Question:
    """What trains, and where. None stands for what is usual, or for what a saved workload says.

    Attributes:
        model: `hf:gpt2`, `torch:package.module:factory`, `file.py:factory`, `FILE.json`, a module
            of torch, or a `Workload`.
        gpu: name of the GPU, or a file that describes one.
        gpus: how many train together.
        batch, seq, image: samples of one pass on one GPU, tokens and pixels of a sample.
        precision: one of `PRECISIONS`.
        optimizer, style: such as `adamw`, and `loop`, `foreach` or `fused`.
        accumulate: passes per optimizer step.
        training: False predicts forward only.
        cap_w, clock_mhz: power limit and locked SM clock of each GPU.
        samples_s: samples a second that the data loader brings to each GPU.
        network_bytes_s: between nodes, where more GPUs train than a node has.
        host_speed: how quick the host dispatches; 1 is the calibrated one's, which is usual.
        head: of a model of Transformers, such as `causal-lm`.
        stated: inputs as `x=float32[B,3,224,224]`.
        inputs, loss: of a module.
        estimator, calibration: which model answers, and its file of constants.
    """

    model: Any
    gpu: str = "h200"
    gpus: int = 1
    batch: int | None = None
    seq: int | None = None
    image: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    style: str | None = None
    accumulate: int | None = None
    training: bool = True
    cap_w: float | None = None
    clock_mhz: float | None = None
    samples_s: float | None = None
    network_bytes_s: float | None = None
    host_speed: float | None = None
    head: str | None = None
    stated: tuple[str, ...] = ()
    inputs: Any = None
    loss: Callable[..., Any] | None = None
    estimator: str = "kernels"
    calibration: str | None = None

    def __post_init__(self) -> None:
        if self.precision is not None and self.precision not in PRECISIONS:
            raise ConfigError(
                f"precision {self.precision}: unknown; choose one of {', '.join(PRECISIONS)}"
            )
        if not isinstance(self.gpu, str):
            raise ConfigError(
                f"gpu {self.gpu!r}: must be a name such as 'h200', or the path of a file that "
                "describes one, as text"
            )
        _check_optimizer(self.optimizer, self.style)
        for name in ("gpus", "batch", "seq", "image", "accumulate"):
            value = getattr(self, name)
            if value is not None and (not is_number(value) or value < 1 or value % 1):
                shown = value if is_number(value) else repr(value)
                raise ConfigError(f"{name} {shown}: must be a whole number of at least 1")
            if value is not None:  # 8.0 and what numpy counts: neither is a size for torch or JSON
                object.__setattr__(self, name, int(value))
        for name, field in QUANTITIES.items():
            value = getattr(self, field)
            if value is not None and not is_number(value):
                raise ConfigError(f"{name} {value!r}: must be a number")
        if self.samples_s is not None and not self.samples_s > 0:
            raise ConfigError(f"samples-per-second {self.samples_s:g}: must be above 0")
        if self.network_bytes_s is not None and not self.network_bytes_s > 0:
            raise ConfigError(f"network {8e-9 * self.network_bytes_s:g} Gbit/s: must be above 0")
        if self.host_speed is not None and not SLOWEST <= self.host_speed <= QUICKEST:
            raise ConfigError(
                f"host-speed {self.host_speed:g}: 1 is the calibrated host's, and this is not "
                f"between {SLOWEST:g} and {QUICKEST:g}; 'wattloop calibrate host' measures it"
            )

    def varied(self, name: str, value: Any) -> "Question":
        """The same with another batch, cap, GPU or whatever `name` says."""
        changes: dict[str, Any] = {FIELDS.get(name, name): value}
        return replace(self, **changes)

    def placement(self, gpu: Gpu) -> Placement:
        """Where it runs, when the GPU allows that.

        Raises:
            ConfigError: a cap or clock that this GPU cannot be set to.
        """
        if self.cap_w is not None and not gpu.cap_min_w <= self.cap_w <= gpu.cap_max_w:
            raise ConfigError(
                f"cap {self.cap_w:g}: the {gpu.product} can be set to {gpu.cap_min_w:g} to "
                f"{gpu.cap_max_w:g} W; choose a cap in that range"
            )
        if self.clock_mhz is not None and not 0 < self.clock_mhz <= gpu.boost_clock_mhz:
            raise ConfigError(
                f"clock {self.clock_mhz:g}: the {gpu.product} runs at up to "
                f"{gpu.boost_clock_mhz:g} MHz; choose a clock up to that"
            )
        return Placement(
            gpu=gpu,
            gpus=self.gpus,
            cap_w=self.cap_w,
            clock_mhz=self.clock_mhz,
            samples_s=self.samples_s,
            network_bytes_s=self.network_bytes_s,
            host_speed=1.0 if self.host_speed is None else self.host_speed,
        )


def is_number(value: object) -> bool:
    """Of any library, but not a text that reads like one."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_optimizer(optimizer: str | None, style: str | None) -> None:
    from wattloop.predict.workload.costs.optimizers import OPTIMIZERS, STYLES

    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise ConfigError(f"optimizer {optimizer}: unknown; choose one of {', '.join(OPTIMIZERS)}")
    if style is not None and style not in STYLES:
        raise ConfigError(f"style {style}: unknown; choose one of {', '.join(STYLES)}")
