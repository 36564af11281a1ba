"""Prediction request, and its workload: loaded, cached or traced."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from numbers import Real
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.hardware.gpus import Gpu
from wattloop.predict.prediction import HOP_S, Placement
from wattloop.predict.workload.workload import Workload
from wattloop.version import __version__

if TYPE_CHECKING:
    from wattloop.predict.parallel.layout import Layout

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""float32 throughout, float32 with TF32 products, autocast to bfloat16 or float16."""
COMPILE_MODES = ("none", "default", "reduce-overhead")
"""Modes of `torch.compile`, and `none` for an eager step."""
SLOWEST, QUICKEST = 0.05, 20.0
"""Range of plausible host speeds; others are typing errors."""
FIELDS = {"cap": "cap_w", "clock": "clock_mhz"}
"""Varied quantity -> field, where they differ."""
QUANTITIES = {
    **FIELDS,
    "samples-per-second": "samples_s",
    "network": "network_bytes_s",
    "host-speed": "host_speed",
    "hop": "hop_s",
    "exchange-power": "exchange_w",
}
"""Numeric quantity -> field."""


@dataclass(frozen=True, slots=True)
class Question:
    """Workload and placement of a request. None stands for a default, or for the value of a saved
    workload.

    Attributes:
        model: `hf:gpt2`, `torch:package.module:factory`, `file.py:factory`, `FILE.json` (a saved
            workload), a module of torch, a `Workload`, a Trainer of Hugging Face, or a Lightning
            module. With `step`, the module that it trains, or None.
        gpu: name of the GPU, such as `h200`, or a YAML file that describes one.
        gpus: how many train together, data parallel; `batch` is that of each.
        parallel: `fsdp=8` or `dp=8,zero=2`: GPUs that divide weights, gradients or the
            optimizer's state. Layouts that divide layers are for `wattloop.predict.parallel`.
        batch, seq, image: samples of one pass on one GPU, tokens of a sample, and its height and
            width in pixels.
        precision: one of `PRECISIONS`; `fp32` unless given.
        optimizer, style: a name, or an optimizer of torch, `adamw` unless given; and `loop`,
            `foreach` (the default) or `fused`.
        accumulate: passes per optimizer step.
        compile: mode of `torch.compile(model)`: `default`, `reduce-overhead`, or `none`, the
            default.
        training: False predicts the forward pass alone.
        cap_w, clock_mhz: power limit and locked SM clock of each GPU.
        samples_s: the most samples a second that the data loader brings to a GPU.
        network_bytes_s: of a node towards the next, for more GPUs than the 8 of one node.
        hop_s: latency of one hop of the ring of GPUs; some microseconds unless given.
        exchange_w: power of a GPU while it only exchanges; its power at rest unless given.
        host_speed: dispatch speed of the host, relative to the calibrated one (1, the default);
            `wattloop calibrate host` measures it.
        head: of a model named `hf:NAME`, such as `causal-lm`.
        stated: inputs as `x=float32[B,3,224,224]`.
        inputs: of a module: a tensor, a tuple or a dict of them, best on the `meta` device;
            guessed from its layers unless given.
        loss: of a module: takes its output; guessed from the output unless given.
        step: a function that makes one training step as it is written: batch, forward pass, loss,
            backward pass, optimizer. It runs on fake tensors and changes nothing. Arguments that
            it has come from `inputs`; `optimizer` is then the optimizer that it uses, or several.
        trainer: Lightning's Trainer, whose precision, accumulation and clipping are taken.
        estimator: `kernels`, `adept` or `roofline`.
        calibration: a file of constants, instead of those known for the GPU.
    """

    model: Any
    gpu: str = "h200"
    gpus: int = 1
    parallel: str | None = None
    batch: int | None = None
    seq: int | None = None
    image: int | None = None
    precision: str | None = None
    optimizer: Any = None
    style: str | None = None
    accumulate: int | None = None
    compile: str | None = None
    training: bool = True
    cap_w: float | None = None
    clock_mhz: float | None = None
    samples_s: float | None = None
    network_bytes_s: float | None = None
    hop_s: float | None = None
    exchange_w: float | None = None
    host_speed: float | None = None
    head: str | None = None
    stated: tuple[str, ...] = ()
    inputs: Any = None
    loss: Callable[..., Any] | None = None
    step: Callable[..., Any] | None = None
    trainer: Any = None
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
        if self.compile is not None and self.compile not in COMPILE_MODES:
            raise ConfigError(
                f"compile {self.compile}: choose one of {', '.join(COMPILE_MODES)}; other modes of "
                "torch.compile choose kernels by measuring them, which a prediction cannot"
            )
        if self.parallel is not None:
            object.__setattr__(self, "gpus", _sharding(self.parallel, self.gpus).gpus)
        for name in ("gpus", "batch", "seq", "image", "accumulate"):
            value = getattr(self, name)
            if value is not None and (not is_number(value) or value < 1 or value % 1):
                shown = value if is_number(value) else repr(value)
                raise ConfigError(f"{name} {shown}: must be a whole number of at least 1")
            if value is not None:  # 8.0 and numpy's integers are not sizes for torch or JSON
                object.__setattr__(self, name, int(value))
        for name, field in QUANTITIES.items():
            value = getattr(self, field)
            if value is not None and not is_number(value):
                raise ConfigError(f"{name} {value!r}: must be a number")
        if self.samples_s is not None and not self.samples_s > 0:
            raise ConfigError(f"samples-per-second {self.samples_s:g}: must be above 0")
        if self.network_bytes_s is not None and not self.network_bytes_s > 0:
            raise ConfigError(f"network {8e-9 * self.network_bytes_s:g} Gbit/s: must be above 0")
        for name, value in (("hop", self.hop_s), ("exchange-power", self.exchange_w)):
            if value is not None and not value > 0:
                raise ConfigError(f"{name} {value:g}: must be above 0")
        if self.host_speed is not None and not SLOWEST <= self.host_speed <= QUICKEST:
            raise ConfigError(
                f"host-speed {self.host_speed:g}: 1 is the calibrated host's, and this is not "
                f"between {SLOWEST:g} and {QUICKEST:g}; 'wattloop calibrate host' measures it"
            )

    def varied(self, name: str, value: Any) -> "Question":
        """Return the request with another batch, cap, GPU or other field `name`."""
        changes: dict[str, Any] = {FIELDS.get(name, name): value}
        return replace(self, **changes)

    def placement(self, gpu: Gpu) -> Placement:
        """Return its placement, if the GPU allows it.

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
        if self.exchange_w is not None and self.exchange_w > gpu.tdp_w:
            raise ConfigError(
                f"exchange-power {self.exchange_w:g}: more than the {gpu.tdp_w:g} W of the "
                f"{gpu.product}"
            )
        return Placement(
            gpu=gpu,
            gpus=self.gpus,
            cap_w=self.cap_w,
            clock_mhz=self.clock_mhz,
            samples_s=self.samples_s,
            network_bytes_s=self.network_bytes_s,
            link_latency_s=HOP_S if self.hop_s is None else self.hop_s,
            exchange_w=self.exchange_w,
            zero=0 if self.parallel is None else _sharding(self.parallel, self.gpus).zero,
            host_speed=1.0 if self.host_speed is None else self.host_speed,
            is_host_known=self.host_speed is not None,
        )


def _sharding(text: str, gpus: int) -> "Layout":
    """Return the layout of a model that is traced whole.

    Raises:
        ConfigError: it would divide layers.
    """
    from wattloop.predict.parallel.layout import Layout

    layout = Layout.parse(text, None if gpus == 1 else gpus)
    if layout.gpus > layout.dp or layout.ep > 1 or layout.shard:
        raise ConfigError(
            f"parallel {text}: layers are divided for decoder-only language models by name "
            "(hf:llama-3-70b); any other model takes dp=8, dp=8,zero=1 or fsdp=8"
        )
    return layout


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_optimizer(optimizer: Any, style: str | None) -> None:
    from wattloop.predict.workload.costs.optimizer import OPTIMIZERS, STYLES

    if isinstance(optimizer, str) and optimizer not in OPTIMIZERS:
        raise ConfigError(f"optimizer {optimizer}: unknown; choose one of {', '.join(OPTIMIZERS)}")
    if style is not None and style not in STYLES:
        raise ConfigError(f"style {style}: unknown; choose one of {', '.join(STYLES)}")


LIBRARIES = ("torch", "transformers")
ASKED = (
    "model", "batch", "seq", "image", "precision", "optimizer", "style", "head", "training",
    "compile",
)  # fmt: skip


def trace_key(question: Question) -> list[str] | None:
    """Return parts of the key; None when they are unknown without running the user's code."""
    model = question.model
    if not isinstance(model, str) or not model.startswith("hf:") or question.stated:
        return None
    from wattloop.predict.sources.huggingface import configuration_named

    entry, notes = configuration_named(model.removeprefix("hf:"))
    try:
        libraries = [version(name) for name in LIBRARIES]
    except PackageNotFoundError:  # tracing says how to install it
        return None
    asked = [str(getattr(question, name)) for name in ASKED]
    # A saved workload has a fixed number of passes; one and several differ in the work of a pass.
    passes = str(question.accumulate or 1)
    facts = json.dumps(entry, sort_keys=True, default=str)
    return ["hf", __version__, *libraries, *_code(), facts, *notes, *asked, passes]


def _code() -> list[str]:
    """Return the date of the tracing code: a clone changes without a new version."""
    folders = [Path(__file__).with_name(name) for name in ("workload", "sources")]
    files = sorted(path for folder in folders for path in folder.rglob("*.*") if path.is_file())
    return [
        f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}"
        for path, stat in ((path, path.stat()) for path in files)
        if path.suffix in (".py", ".yaml")
    ]


_one_at_a_time = Lock()
"""Tracing sets torch's default device for a moment: two threads would disturb each other."""


def request_workload(question: Question, *, cache: bool = False) -> Workload:
    """Return the operations of one step of the request's model.

    Args:
        question: the request; its placement is not used.
        cache: take a trace of `hf:NAME` from the user's cache folder, or keep it there.

    Raises:
        ConfigError: it cannot be found, read or traced; the message says why.
    """
    from wattloop.predict.sources.source import is_saved_workload

    model = question.model
    if question.step is not None and isinstance(model, (str, Workload)):
        name = model if isinstance(model, str) else model.name
        raise ConfigError(f"step: model {name} is traced without one; leave the model out")
    if isinstance(model, Workload):
        return _as_asked(model, question, model.name)
    if isinstance(model, str) and is_saved_workload(model):
        from wattloop.predict.workload.files import load_workload

        path = user_path(model)
        if not path.is_file():
            raise ConfigError(
                f"model {model}: no such file; write a workload with --save-workload {model}"
            )
        workload = load_workload(path)
        if workload.precision not in PRECISIONS:
            raise ConfigError(
                f"model {model}: field 'precision' is '{workload.precision}', none of "
                f"{', '.join(PRECISIONS)}; trace the model again"
            )
        return _as_asked(workload, question, model)
    if not isinstance(model, str):
        from wattloop.predict.sources.training_step import has_step, step_workload

        if has_step(question):
            with _one_at_a_time:
                return step_workload(question)
    if not cache:
        return _traced(question)
    from wattloop.predict.workload.files import cached_workload

    return cached_workload(trace_key(question), lambda: _traced(question))


def _traced(question: Question) -> Workload:
    from wattloop.predict.sources.source import Sizes, find_source, quiet_libraries
    from wattloop.predict.workload.trace import trace

    sizes = Sizes(question.batch, question.seq, question.image)
    training = question.training
    if isinstance(question.model, str):
        source = find_source(
            question.model, sizes, head=question.head, stated=question.stated, training=training
        )
    else:
        from wattloop.predict.sources.torch_factory import module_source

        source = module_source(
            type(question.model).__name__,
            question.model,
            sizes,
            inputs=question.inputs,
            loss=question.loss,
            stated=question.stated,
            training=training,
        )
    try:
        with _one_at_a_time, quiet_libraries():
            workload = trace(
                source.module,
                source.inputs,
                loss=source.loss,
                precision=question.precision or "fp32",
                optimizer=question.optimizer or "adamw",
                style=question.style or "foreach",
                training=training,
                accumulate=question.accumulate or 1,
                name=source.name,
                compile=None if question.compile == "none" else question.compile,
            )
    except ConfigError as error:
        raise ConfigError(f"model {source.name}: {error}") from None
    said = (*source.notes, getattr(source.loss, "note", ""), *workload.notes)
    return replace(workload, batch=source.batch, notes=tuple(filter(None, said)))


def _as_asked(workload: Workload, question: Question, name: str) -> Workload:
    """Check that a saved workload has the requested batch and precision."""
    for field in ("batch", "precision", "optimizer", "style"):
        own = "optimizer_style" if field == "style" else field
        wanted, saved = getattr(question, field), getattr(workload, own)
        if wanted is not None and wanted != saved:
            raise ConfigError(
                f"{field} {wanted}: {name} was traced with {field} {saved}; leave it out, or "
                "trace the model itself"
            )
    saved_mode = workload.compile_mode or "none"
    if question.compile not in {None, saved_mode}:
        raise ConfigError(
            f"compile {question.compile}: {name} was traced with compile {saved_mode}; leave it "
            "out, or trace the model itself"
        )
    for field in ("seq", "image", "head"):
        if getattr(question, field) is not None:
            raise ConfigError(
                f"{field} {getattr(question, field)}: {name} is traced already; trace the model "
                "itself to change it"
            )
    if question.stated or question.inputs is not None:
        raise ConfigError(f"input: {name} is traced already; trace the model itself to change it")
    if question.training != workload.training:
        # Memory of a forward-only pass cannot be derived from a training step.
        was, option = ("training", "with") if workload.training else ("inference", "without")
        raise ConfigError(
            f"inference: {name} was traced for {was}; trace the model itself {option} --inference"
        )
    return workload
