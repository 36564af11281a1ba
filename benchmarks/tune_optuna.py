"""The same ten thousand trials in Optuna's own database, and what reading them takes there.

    python benchmarks/tune_optuna.py list|best|resume DATABASE

Run by tune_overhead.py, in a process of its own each time; `fill` makes the database.
"""

import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from wattloop.store.database import Store
from wattloop.store.trial_records import each_trial

STUDY = "ten thousand"


def fill(database: Path, store: Store, search_id: str) -> None:
    """An Optuna study with the trials of a stored search: parameters, curve, final energy."""
    import optuna
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions: dict[str, Any] = {
        "learning_rate": FloatDistribution(1e-4, 1e-1, log=True),
        "batch_size": CategoricalDistribution([16, 32, 64, 128, 256]),
        "optimizer": CategoricalDistribution(["sgd", "adam", "rmsprop"]),
        "width": IntDistribution(16, 512),
        "dropout": FloatDistribution(0.0, 0.6),
        "precision": CategoricalDistribution(["fp32", "bf16"]),
    }
    # nobody waits for a disk while it is filled; how it is read does not depend on that
    storage = optuna.storages.RDBStorage(
        f"sqlite:///{database}", engine_kwargs={"isolation_level": "AUTOCOMMIT"}
    )
    study = optuna.create_study(storage=storage, study_name=STUDY, direction="minimize")
    begun = datetime(2026, 1, 1)
    for record in each_trial(store, search_id):
        outcome, segment = record.outcome, record.settings["segment"]
        failed = outcome["status"] == "diverged"
        trial = create_trial(
            state=TrialState.FAIL if failed else TrialState.COMPLETE,
            value=None if failed else outcome["energy_j"],
            params=segment["parameters"],
            distributions=distributions,
            intermediate_values={
                int(point["epoch"]): point["quality"] for point in outcome["curve"]
            },
            user_attrs={"accuracy": outcome["best"]},
        )
        trial.datetime_start = begun
        trial.datetime_complete = begun + timedelta(seconds=outcome["time_s"])
        study.add_trial(trial)


def main() -> None:
    import optuna

    word, database = sys.argv[1:]
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.load_study(
        study_name=STUDY,
        storage=f"sqlite:///{database}",
        sampler=optuna.samplers.RandomSampler(seed=1),
    )
    if word == "list":
        for trial in study.get_trials(deepcopy=False)[-20:]:
            print(trial.number, trial.state.name, trial.values, trial.params)
    elif word == "best":
        print(study.best_trial.params)
    else:
        trial = study.ask()
        print(trial.number, trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True))


if __name__ == "__main__":
    main()
