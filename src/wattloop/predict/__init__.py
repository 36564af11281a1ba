"""Predict: what a training step will cost in time, power and energy, before it runs.

workload/    a torch model -> the operations of one step, traced without running it
placement    where it is to run: which GPU, how many, cap, clock, accumulation, data rate
models/      roofline, adept (the thesis), kernels (ours, the default): fit, predict, explain
prediction   what every model answers: time, power, energy, interval, regime, terms
calibrate/   measure a GPU in minutes and fit its constants
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattloop.predict.workload.rules.registry import register_rule
    from wattloop.predict.workload.trace import trace

__all__ = ["register_rule", "trace"]

_HOMES = {
    "register_rule": "wattloop.predict.workload.rules.registry",
    "trace": "wattloop.predict.workload.trace",
}


def __getattr__(name: str) -> object:
    """What needs more than a saved workload is loaded when it is first used."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'wattloop.predict' has no attribute '{name}'")
