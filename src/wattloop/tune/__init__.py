"""Searches: settings that reach the same quality for less energy.

    from wattloop.tune import search

    def train(trial):
        for epoch in trial.epochs(20):
            ...
            trial.report(accuracy=accuracy)

    result = search(train, space={"lr": [0.01, 0.1]}, metric="accuracy", goal="maximize")
    print(result.best.parameters)

- `parameters`, `space`, `objective`  what may be chosen, and what makes one choice better
- `spec`        the same as a YAML file
- `segment`     a stretch of training that a strategy asks for
- `progress`    what came of it: energy, time, quality epoch by epoch, or why there is none
- `problem`     what is searched, for what, within which limits
- `strategy`    the contract of every strategy: ask, tell, resume
- `strategies`  one file each
- `bench`       the contract of what runs segments; `function_bench` and `command_bench` do
- `torch`       a bench of trainings in PyTorch, with data that stays on the device
- `trial`       what a training sees of its search
- `search_loop` strategy, bench and store together, resumable at any moment
- `history`     what stored searches found
- `api`         all of it in one call
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattloop.tune.api import Best, SearchResult, search
    from wattloop.tune.parameters import Choice, Fixed, Integer, Linked, Real
    from wattloop.tune.running_trial import current_trial
    from wattloop.tune.trial import Trial, TrialStopped

__all__ = [
    "Best",
    "Choice",
    "Fixed",
    "Integer",
    "Linked",
    "Real",
    "SearchResult",
    "Trial",
    "TrialStopped",
    "current_trial",
    "search",
]

_WHERE = {
    "Best": "api",
    "SearchResult": "api",
    "search": "api",
    "current_trial": "running_trial",
    "Trial": "trial",
    "TrialStopped": "trial",
    **dict.fromkeys(("Choice", "Fixed", "Integer", "Linked", "Real"), "parameters"),
}


def __getattr__(name: str) -> object:
    """Loaded when it is first used: a training that only reports loads next to nothing."""
    import importlib

    if name in _WHERE:
        return getattr(importlib.import_module(f"wattloop.tune.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'wattloop.tune' has no attribute '{name}'")
