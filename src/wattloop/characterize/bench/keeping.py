"""Results as an experiment in the store: a trial each, written as it comes."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from wattloop.characterize.bench.plan import Plan
from wattloop.characterize.bench.result import KernelResult
from wattloop.characterize.bench.session_record import BenchRecord
from wattloop.core.errors import StoreError
from wattloop.store.database import Store
from wattloop.store.experiments import (
    Experiment,
    begin_trial,
    create_experiment,
    end_trial,
    find_experiment,
    new_experiment_id,
    read_trials,
    set_experiment_status,
)

__all__ = ["Keeper", "kept_record"]

KIND = "bench"


class Keeper:
    """Writes results of one session; a store that fails costs a warning, never a result."""

    def __init__(self, store: Store, plan: Plan, wall_s: float) -> None:
        self.experiment_id: str | None = new_experiment_id(KIND, wall_s)
        self.warnings: list[str] = []
        self._store = store
        experiment = Experiment(
            experiment_id=self.experiment_id,
            kind=KIND,
            name=f"{','.join(plan.choice.kernels)} on {plan.choice.device}",
            created_wall_s=wall_s,
            spec=asdict(plan.choice),
        )
        self._try(lambda: create_experiment(store, experiment))

    def add(self, result: KernelResult) -> None:
        """Keep one."""
        experiment_id = self.experiment_id
        if experiment_id is None:
            return
        settings = {
            name: getattr(result, name)
            for name in ("kernel", "size", "dtype", "backend", "style", "threads", "device")
        }

        def write() -> None:
            record = begin_trial(self._store, experiment_id, result.key, settings)
            done = replace(
                record, status=result.status, outcome=result.to_dict(), run_id=result.run_id
            )
            end_trial(self._store, experiment_id, done)

        self._try(write)

    def end(self, status: str, record: BenchRecord | None = None) -> None:
        """Say how it ended, and keep what belongs to all results."""
        experiment_id = self.experiment_id
        if experiment_id is None:
            return
        facts: Mapping[str, Any] = {}
        if record is not None:
            whole = record.to_dict()
            facts = {name: whole[name] for name in FACTS}
        self._try(lambda: set_experiment_status(self._store, experiment_id, status, facts))

    def _try(self, write: Any) -> None:
        try:
            write()
        except StoreError as error:
            self.experiment_id = None
            self.warnings.append(f"results are not kept: {error}")


FACTS = ("idle", "idle_by_threads", "left_out", "machine", "missing", "warnings", "version")


def kept_record(store: Store, reference: str) -> BenchRecord:
    """What an earlier session found; `last` is the newest.

    Raises:
        ExperimentNotFound: there is none of that name.
    """
    experiment = find_experiment(store, reference, KIND)
    trials = read_trials(store, experiment.experiment_id)
    return BenchRecord.from_dict(
        {
            "version": 1,
            **experiment.facts,
            "results": [trial.outcome for trial in trials if trial.ended],
            "experiment_id": experiment.experiment_id,
        }
    )
