"""Forecaster: choose the model, trace the workload once, and predict."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattloop.accounting.summary import parse_gpu_price
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.settings import Settings
from wattloop.hardware.gpus import Gpu, gpu_named, variant_assumed
from wattloop.predict.breakdown import top_operations_s
from wattloop.predict.forecast import Forecast
from wattloop.predict.memory import memory_fit
from wattloop.predict.models.model import Model
from wattloop.predict.prediction import Prediction, Regime
from wattloop.predict.request import Question, request_workload
from wattloop.predict.run_total import RunLength
from wattloop.predict.workload.workload import Workload

ESTIMATORS = ("kernels", "adept", "roofline")


def estimator_for(gpu: Gpu, name: str = "kernels", calibration: str | None = None) -> Model:
    """Return the model called `name` for `gpu`.

    Args:
        gpu: what it is to predict for.
        name: one of `ESTIMATORS`.
        calibration: a file of constants; unless given, the user's own calibration of that GPU,
            the one shipped with the package, or what its data sheet says.

    Raises:
        ConfigError: no such model, or a file that is corrupted or of another GPU.
    """
    if name not in ESTIMATORS:
        raise ConfigError(f"estimator {name}: unknown; choose one of {', '.join(ESTIMATORS)}")
    path = None if calibration is None else user_path(calibration)
    if path is not None and not path.is_file():
        raise ConfigError(
            f"calibration {path}: no such file; make one with 'wattloop calibrate fit', or leave "
            "it out"
        )
    if name == "kernels":
        return _kernels(gpu, path)
    if name == "roofline":
        from wattloop.predict.models.roofline import Roofline

        return Roofline.of_peaks() if path is None else Roofline.from_constants(_read(path))
    from wattloop.predict.models.adept.model import Adept

    return Adept.for_gpu(gpu) if path is None else Adept.from_constants(_read(path))


def _kernels(gpu: Gpu, path: Path | None) -> Model:
    from wattloop.predict.models.kernels import KernelConstants, KernelModel

    if path is None:
        return KernelModel.for_gpu(gpu)
    constants = KernelConstants.load(path)
    if constants.gpu != gpu.name:
        raise ConfigError(
            f"calibration {path}: its field gpu says {constants.gpu}, but {gpu.name} is asked "
            f"for; predict for {constants.gpu}, or leave the calibration out"
        )
    return KernelModel(constants, source="calibrated")


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"calibration {path}: cannot be read: {error}; make it again with "
            "'wattloop calibrate fit'"
        ) from None
    if not isinstance(data, dict):
        raise ConfigError(f"calibration {path}: holds no constants; make it again")
    return data


TRACED = (
    "batch", "seq", "image", "precision", "style", "training", "head", "stated",
    "compile",
)  # fmt: skip
"""Fields that a trace depends on, in addition to the model."""
HELD = ("step", "optimizer", "inputs", "trainer")
"""The same, of which the identity counts."""
SPEC_ONLY = "spec-only"
MUCH_UNRULED = 0.05
"""Share of the bytes above which operations without a rule cause a warning."""


class Forecaster:
    """Cache of workloads and estimators, so that a sweep traces each workload once.

    Args:
        cache: also keep traces of models named `hf:NAME` in the user's cache folder.
    """

    def __init__(self, *, cache: bool = False) -> None:
        self._cache = cache
        self._workloads: dict[tuple[Any, ...], Workload] = {}
        self._estimators: dict[tuple[Gpu, str, str | None], Model] = {}

    def answer(self, question: Question) -> Forecast:
        """Predict a request.

        Raises:
            ConfigError: a part of the question is wrong; the message names it and the remedy.
        """
        gpu = _gpu(question.gpu)
        placement = question.placement(gpu)  # refuses a wrong cap before tracing
        estimator = self.estimator(question, gpu)
        workload = self.workload(question)
        prediction = estimator.predict(workload, placement)
        assumed = (
            variant_assumed(question.gpu),
            _host_assumed(question, prediction, workload),
            _graphs_assumed(workload),
        )
        return Forecast(
            workload=workload,
            placement=placement,
            prediction=prediction,
            estimator=estimator.name,
            is_calibrated=_is_calibrated(question, prediction),
            memory=memory_fit(workload, gpu, question.gpus, placement.zero),
            top_operations_s=top_operations_s(estimator, workload, placement),
            notes=(*workload.notes, *filter(None, assumed)),
            warnings=_warnings(workload, gpu, question),
        )

    def workload(self, question: Question) -> Workload:
        """Return the operations of one step, traced or read from a file, once."""
        passes = question.accumulate
        key = (
            question.model if isinstance(question.model, str) else _Held(question.model),
            *(
                _Held(getattr(question, name))
                for name in ("step", "optimizer", "inputs", "trainer")
            ),
            *(getattr(question, name) for name in TRACED),
            passes is not None and passes > 1,  # gradients are then added to those of the last pass
        )
        if key not in self._workloads:
            self._workloads[key] = request_workload(question, cache=self._cache)
        found = self._workloads[key]
        return found if passes in (None, found.accumulate) else found.accumulating(passes)

    def estimator(self, question: Question, gpu: Gpu) -> Model:
        key = (gpu, question.estimator, question.calibration)
        if key not in self._estimators:
            self._estimators[key] = estimator_for(gpu, question.estimator, question.calibration)
        return self._estimators[key]


class _Held:
    """Module or workload as a key, compared by identity."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and other._model is self._model

    def __hash__(self) -> int:
        return id(self._model)


def _gpu(name: str) -> Gpu:
    try:
        return gpu_named(name)
    except ConfigError as error:
        raise ConfigError(f"gpu {name}: {error}") from None


def _is_calibrated(question: Question, prediction: Prediction) -> bool:
    if question.calibration is not None:
        return True
    return question.estimator == "kernels" and SPEC_ONLY not in prediction.model


def _host_assumed(question: Question, prediction: Prediction, workload: Workload) -> str:
    """A note about the assumed host of a step that waits for it; empty where it was given."""
    if question.host_speed is not None or question.estimator != "kernels":
        return ""
    if prediction.regime is not Regime.LAUNCH:
        return ""
    if workload.compile_mode:
        return (
            "host: as quick as the virtual Xeon on which compiled steps were measured; a kernel of "
            "a compiled step takes it longer than one of an eager step"
        )
    return (
        "host: as quick as the calibrated one; others differ by a third, which --host-speed "
        "tells and 'wattloop calibrate host' measures"
    )


def _graphs_assumed(workload: Workload) -> str:
    if workload.compile_mode != "reduce-overhead":
        return ""
    return (
        "reduce-overhead: all steps have the shapes of this one; torch records a CUDA graph for "
        "every shape, and batches of varying length are better predicted with --compile default"
    )


def _warnings(workload: Workload, gpu: Gpu, question: Question) -> tuple[str, ...]:
    found = []
    if question.estimator == "roofline" and question.calibration is None:
        found.append(
            "roofline of the data sheet: takes all peaks as reached, at the power limit; the "
            "time is too short"
        )
    if question.host_speed is not None and question.estimator != "kernels":
        found.append(f"{question.estimator} knows no host: host-speed changes nothing")
    unruled = workload.unruled_share
    if unruled > MUCH_UNRULED:
        found.append(
            f"{unruled:.0%} of the bytes are moved by operations without a cost rule, which are "
            "taken for copies; 'wattloop predict inspect' shows where, register_rule adds one"
        )
    if workload.precision == "bf16" and "bf16" not in gpu.matrix_flops:
        found.append(
            f"the {gpu.product} has no bfloat16 units: torch would emulate it, slower than "
            "predicted; use --precision fp16 or fp32"
        )
    if workload.precision == "tf32" and "tf32" not in gpu.matrix_flops:
        found.append(f"the {gpu.product} has no TF32 units: products run in fp32")
    return tuple(found)


def predict(
    model: Any = None,
    *,
    step: Callable[..., Any] | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    samples: int | None = None,
    node: bool = False,
    settings: Settings | None = None,
    price: str | float | None = None,
    **request: Any,
) -> Forecast:
    """Predict time, power, energy and memory of one training step, without running it.

        forecast = predict(model, inputs=images, precision="bf16", gpu="h200")
        print(forecast.prediction.step_s, forecast.prediction.power_w, forecast.fits)

        forecast = predict(step=train_step, model=model, optimizer=optimizer, gpu="h200")
        forecast = predict(trainer, gpu="h200")  # of Hugging Face

    Args:
        model: an `nn.Module`, a `Workload`, or a name: `hf:gpt2`, `torch:package.module:factory`,
            `file.py:factory`, `FILE.json` (a saved workload), a Trainer of Hugging Face, or a
            Lightning module.
        step: your training step as it is: a function that takes a batch, computes the loss, calls
            backward() and steps the optimizer. It runs on fake tensors, and nothing of yours
            changes.
        steps: of the run, whose time, energy, cost and carbon are then in `run`.
        epochs: passes over the data, instead of `steps`; with `samples`.
        samples: of the data set.
        node: count host, memory, fans and power supply as well, in `node` and `run`.
        settings: tariff, carbon intensity and PUE for `run`; none unless given.
        price: of an hour of a GPU, such as `2.5`, `'2.50 USD'` or `'a100=1.50,h200=3.50'`.
        request: further fields of `Question`: gpu, gpus, batch, seq, image, precision, optimizer,
            style, accumulate, compile, training, cap_w, clock_mhz, samples_s, network_bytes_s,
            host_speed, head, stated, inputs, loss, trainer, estimator, calibration.

    Raises:
        ConfigError: a part of the question is wrong; the message names it and the remedy.
    """
    if model is None and step is None:
        raise ConfigError(
            "model: say what to predict: a model, a name such as 'hf:gpt2', or step=, your "
            "training step"
        )
    settings = settings or Settings()
    gpu_price = None if price is None else parse_gpu_price(str(price), settings)
    length = RunLength(steps, epochs, samples, node, settings, gpu_price)
    return length.of(Forecaster().answer(Question(model, step=step, **request)))
