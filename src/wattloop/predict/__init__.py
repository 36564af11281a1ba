"""Prediction of the time, power and energy of a training step, before it runs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattloop.predict.forecast import Forecast
    from wattloop.predict.forecaster import Forecaster, predict
    from wattloop.predict.prediction import Placement, Prediction
    from wattloop.predict.request import Question
    from wattloop.predict.workload.costs.registry import register_rule
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
    "predict": "wattloop.predict.forecaster",
    "register_rule": "wattloop.predict.workload.costs.registry",
    "trace": "wattloop.predict.workload.trace",
}


def __getattr__(name: str) -> object:
    """Import on first use what needs more than a saved workload."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'wattloop.predict' has no attribute '{name}'")
