"""The same ten thousand trials in Optuna's own database, and the time to read them there.

    python benchmarks/tune_optuna.py list|best|resume DATABASE

Run by tune_overhead.py, in a process of its own each time; `fill` makes the database.
"""

import json
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import MetaData, insert

from wattloop.store.database import Store
from wattloop.store.experiments import each_trial

STUDY = "ten thousand"
BEGUN = datetime(2026, 1, 1)


def fill(database: Path, store: Store, search_id: str) -> None:
    """Make an Optuna study with the trials of a stored search: parameters, curve, final energy."""
    import optuna
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions: dict[str, Any] = {
        "learning_rate": FloatDistribution(1e-4, 1e-1, log=True),
        "batch_size": CategoricalDistribution([16, 32, 64, 128, 256]),
        "optimizer": CategoricalDistribution(["sgd", "adam", "rmsprop"]),
        "width": IntDistribution(16, 512),
        "dropout": FloatDistribution(0.0, 0.6),
        "precision": CategoricalDistribution(["fp32", "bf16"]),
    }
    storage = optuna.storages.RDBStorage(f"sqlite:///{database}")
    optuna.create_study(storage=storage, study_name=STUDY, direction="minimize")
    # row by row through the storage it would take half an hour; the stored content is the same
    tables = MetaData()
    tables.reflect(storage.engine)
    rows = _rows(store, search_id, distributions)
    with storage.engine.begin() as connection:
        for name, found in rows.items():
            connection.execute(insert(tables.tables[name]), found)


def _rows(
    store: Store, search_id: str, distributions: dict[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of Optuna's own tables for each trial."""
    from optuna.distributions import distribution_to_json

    written = {name: distribution_to_json(kind) for name, kind in distributions.items()}
    rows: dict[str, list[dict[str, Any]]] = {
        "trials": [],
        "trial_params": [],
        "trial_values": [],
        "trial_intermediate_values": [],
        "trial_user_attributes": [],
    }
    for number, record in enumerate(each_trial(store, search_id)):
        outcome, trial_id = record.outcome, number + 1
        failed = outcome["status"] == "diverged"
        rows["trials"].append(
            {
                "trial_id": trial_id,
                "number": number,
                "study_id": 1,
                "state": "FAIL" if failed else "COMPLETE",
                "datetime_start": BEGUN,
                "datetime_complete": BEGUN + timedelta(seconds=outcome["time_s"]),
            }
        )
        for name, value in record.settings["segment"]["parameters"].items():
            rows["trial_params"].append(
                {
                    "trial_id": trial_id,
                    "param_name": name,
                    "param_value": distributions[name].to_internal_repr(value),
                    "distribution_json": written[name],
                }
            )
        for point in outcome["curve"]:
            rows["trial_intermediate_values"].append(
                {
                    "trial_id": trial_id,
                    "step": int(point["epoch"]),
                    "intermediate_value": point["quality"],
                    "intermediate_value_type": "FINITE",
                }
            )
        if failed:
            continue
        rows["trial_values"].append(
            {
                "trial_id": trial_id,
                "objective": 0,
                "value": outcome["energy_j"],
                "value_type": "FINITE",
            }
        )
        rows["trial_user_attributes"].append(
            {"trial_id": trial_id, "key": "accuracy", "value_json": json.dumps(outcome["best"])}
        )
    return rows


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
