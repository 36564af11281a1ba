"""Answers to questions: finds the model, traces it once, asks the estimator."""

from dataclasses import replace
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.user_path import user_path
from wattloop.hardware.gpus import Gpu, gpu_named, variant_assumed
from wattloop.predict.breakdown import top_operations_s
from wattloop.predict.estimators import estimator_for
from wattloop.predict.fits import fit_on
from wattloop.predict.forecast import Forecast
from wattloop.predict.models.model import Model
from wattloop.predict.prediction import Prediction
from wattloop.predict.question import Question
from wattloop.predict.workload.workload import Workload

__all__ = ["Forecaster"]

TRACED = ("batch", "seq", "image", "precision", "optimizer", "style", "training", "head", "stated")
"""What a trace depends on, beside the model."""
SPEC_ONLY = "spec-only"


class Forecaster:
    """Keeps workloads and estimators, so that a sweep traces no more than it must."""

    def __init__(self) -> None:
        self._workloads: dict[tuple[Any, ...], Workload] = {}
        self._estimators: dict[tuple[str, str, str | None], Model] = {}

    def answer(self, question: Question) -> Forecast:
        """Predict.

        Raises:
            ConfigError: a part of the question is wrong; the message names it and the remedy.
        """
        gpu = _gpu(question.gpu)
        placement = question.placement(gpu)  # refuses a wrong cap before anything is traced
        estimator = self.estimator(question, gpu)
        workload = self.workload(question)
        prediction = estimator.predict(workload, placement)
        return Forecast(
            workload=workload,
            placement=placement,
            prediction=prediction,
            estimator=estimator.name,
            is_calibrated=_is_calibrated(question, prediction),
            memory=fit_on(workload, gpu, question.gpus),
            top_operations_s=top_operations_s(estimator, workload, placement),
            notes=tuple(filter(None, (*workload.notes, variant_assumed(question.gpu)))),
            warnings=_warnings(workload, gpu, question),
        )

    def workload(self, question: Question) -> Workload:
        """The operations of one step, traced or read from a file, once."""
        passes = question.accumulate
        key = (
            question.model if isinstance(question.model, str) else id(question.model),
            *(getattr(question, name) for name in TRACED),
            passes is not None and passes > 1,  # gradients are then added to those of the last pass
        )
        if key not in self._workloads:
            self._workloads[key] = _found(question)
        found = self._workloads[key]
        return found if passes in (None, found.accumulate) else found.accumulating(passes)

    def estimator(self, question: Question, gpu: Gpu) -> Model:
        """The model that answers for this GPU, made once."""
        key = (gpu.name, question.estimator, question.calibration)
        if key not in self._estimators:
            self._estimators[key] = estimator_for(gpu, question.estimator, question.calibration)
        return self._estimators[key]


def _gpu(name: str) -> Gpu:
    try:
        return gpu_named(name)
    except ConfigError as error:
        raise ConfigError(f"gpu {name}: {error}") from None


def _found(question: Question) -> Workload:
    from wattloop.predict.sources.finding import is_saved_workload

    model = question.model
    if isinstance(model, Workload):
        return _as_asked(model, question, model.name)
    if isinstance(model, str) and is_saved_workload(model):
        from wattloop.predict.workload.files import load_workload

        path = user_path(model)
        if not path.is_file():
            raise ConfigError(
                f"model {model}: no such file; write a workload with --save-workload {model}"
            )
        return _as_asked(load_workload(path), question, model)
    return _traced(question)


def _traced(question: Question) -> Workload:
    from wattloop.predict.sources.finding import find_source
    from wattloop.predict.sources.libraries import quiet_libraries
    from wattloop.predict.sources.source import Sizes
    from wattloop.predict.workload.trace import trace

    sizes = Sizes(question.batch, question.seq, question.image)
    training = question.training
    if isinstance(question.model, str):
        source = find_source(
            question.model, sizes, head=question.head, stated=question.stated, training=training
        )
    else:
        from wattloop.predict.sources.factories import module_source

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
        with quiet_libraries():
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
            )
    except ConfigError as error:
        raise ConfigError(f"model {source.name}: {error}") from None
    said = (*source.notes, getattr(source.loss, "note", ""), *workload.notes)
    return replace(workload, batch=source.batch, notes=tuple(filter(None, said)))


def _as_asked(workload: Workload, question: Question, name: str) -> Workload:
    """A workload that was traced before cannot be of another batch or precision."""
    for field in ("batch", "precision", "optimizer"):
        wanted, saved = getattr(question, field), getattr(workload, field)
        if wanted is not None and wanted != saved:
            raise ConfigError(
                f"{field} {wanted}: {name} was traced with {field} {saved}; leave it out, or "
                "trace the model itself"
            )
    for field in ("seq", "image", "head"):
        if getattr(question, field) is not None:
            raise ConfigError(
                f"{field} {getattr(question, field)}: {name} is traced already; trace the model "
                "itself to change it"
            )
    if question.training != workload.training:
        # what forward alone would keep cannot be told from what it keeps for backward
        was, option = ("training", "with") if workload.training else ("inference", "without")
        raise ConfigError(
            f"inference: {name} was traced for {was}; trace the model itself {option} --inference"
        )
    return workload


def _is_calibrated(question: Question, prediction: Prediction) -> bool:
    if question.calibration is not None:
        return True
    return question.estimator == "kernels" and SPEC_ONLY not in prediction.model


def _warnings(workload: Workload, gpu: Gpu, question: Question) -> tuple[str, ...]:
    found = []
    if question.estimator == "roofline" and question.calibration is None:
        found.append(
            "roofline of the data sheet: takes all peaks as reached, at the power limit; the "
            "time is too short"
        )
    if workload.precision == "bf16" and "bf16" not in gpu.matrix_flops:
        found.append(
            f"the {gpu.product} has no bfloat16 units: torch would emulate it, slower than "
            "predicted; use --precision fp16 or fp32"
        )
    if workload.precision == "tf32" and "tf32" not in gpu.matrix_flops:
        found.append(f"the {gpu.product} has no TF32 units: products run in fp32")
    return tuple(found)
