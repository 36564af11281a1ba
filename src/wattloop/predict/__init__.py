"""Predict: what a training step will cost in time, power and energy, before it runs.

    from wattloop.predict import predict

    forecast = predict("hf:gpt2", batch=64, precision="bf16", gpu="h200")
    print(forecast.prediction.step_s, forecast.prediction.power_w, forecast.fits)

sources/     a name or a bare module -> module, inputs and loss
workload/    a torch model -> the operations of one step, traced without running it
placement    where it is to run: which GPU, how many, cap, clock, accumulation, data rate
models/      roofline, adept (the thesis), kernels (ours, the default): fit, predict, explain
prediction   what every model answers: time, power, energy, interval, regime, terms
capped, communication, node, fits, run_total
             power caps, rings of GPUs, whole nodes, memory, whole runs
intervals, scope
             how wrong it may be, and where it was calibrated
question, asked_workload, forecaster, forecast, whole
             what a person asks, who answers it, and everything they get
axes, points, breakdown
             what a sweep varies, its answers, and a workload by module
calibrate/   measure a GPU in minutes and fit its constants
api          all of it in one call
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattloop.predict.api import predict
    from wattloop.predict.forecast import Forecast
    from wattloop.predict.forecaster import Forecaster
    from wattloop.predict.prediction import Placement, Prediction
    from wattloop.predict.request import Question
    from wattloop.predict.workload.rules.registry import register_rule
    from wattloop.predict.workload.trace import trace
    from wattloop.predict.workload.workload import Workload

__all__ = [
    "Forecast",
    "Forecaster",
    "Placement",
    "Prediction",
    "Question",
    "Workload",
    "predict",
    "register_rule",
    "trace",
]

_HOMES = {
    "Forecast": "wattloop.predict.forecast",
    "Forecaster": "wattloop.predict.forecaster",
    "Placement": "wattloop.predict.prediction",
    "Prediction": "wattloop.predict.prediction",
    "Question": "wattloop.predict.request",
    "Workload": "wattloop.predict.workload.workload",
    "predict": "wattloop.predict.api",
    "register_rule": "wattloop.predict.workload.rules.registry",
    "trace": "wattloop.predict.workload.trace",
}


def __getattr__(name: str) -> object:
    """What needs more than a saved workload is loaded when it is first used."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'wattloop.predict' has no attribute '{name}'")
