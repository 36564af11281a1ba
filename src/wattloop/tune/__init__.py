"""Searches: settings that reach the same quality for less energy.

    from wattloop.tune import search

    def train(trial):
        for epoch in trial.epochs(20):
            ...
            trial.report(accuracy=accuracy)

    result = search(train, space={"lr": [0.01, 0.1]}, metric="accuracy", goal="maximize")
    print(result.best.parameters)

- `parameters`, `parameter`, `dependencies`, `space`   what may be chosen
- `objective`, `sm2_score`, `cap_metric`   what makes one choice better
- `problem`     what is searched, for what, within which limits
- `spec`        the same as a YAML file; its sections are in `spec_*`, `parameter_spec`,
  `objective_spec`, `hardware_spec`, its words in `amounts`
- `strategy`    the contract of every strategy: ask, tell, resume; `strategies/` has one file each
- `segment`     a stretch of training that a strategy asks for
- `progress`, `account`, `failures`   what came of it: energy, time, quality, or why there is none
- `course`, `pace`, `early_stopping`  where a training stands, and when it ends by itself
- `bench`, `benches`, `training_bench`   the contract of what runs segments
- `function_*`, `trial`, `running_trial`   trainings that are a function, and what it sees
- `command_*`, `program`, `program_news`, `metric_lines`, `doorbell`   trainings that are a command
- `parallel_*`, `device_groups`, `slots`   several trainings at once
- `torch/`      a bench of trainings in PyTorch, with data that stays on the device
- `callbacks/`, `engines/`   trainings of frameworks as trials; Ray and Optuna
- `levers`, `cap_watch`, `metering`, `checkpoint`, `seeding`, `reserve`   what a segment needs
- `search_loop`, `search_limits`, `running`, `listening`   strategy, bench and store together,
  resumable at any moment
- `search_record`, `stored`, `history`, `search_table`   searches in the store, and what they found
- `standing`, `candidate_results`, `summary`   the best so far, and what it cost
- `final`, `saving`   the winner trained in full, and what it saves
- `replay/`     strategies on measured tables, in seconds
- `api`         all of it in one call
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wattloop.tune.api import Best, SearchResult, search
    from wattloop.tune.space import Choice, Fixed, Integer, Linked, Real
    from wattloop.tune.trial import Trial, TrialStopped, current_trial

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
