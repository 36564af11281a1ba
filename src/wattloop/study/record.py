"""Stored results of a study, step by step."""

import hashlib
import time
from collections.abc import Mapping
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.store.database import Store
from wattloop.store.experiments import (
    Experiment,
    begin_experiment,
    list_experiments,
    set_experiment_status,
)
from wattloop.study.spec import StudySpec

STEPS = ("objective", "baseline", "characterize", "simulate", "decide", "validate")


class StudyRecord:
    """The steps of one study; a step done again replaces what was known of it and of later ones.

    Args:
        store: where it is kept.
        spec: the study.
    """

    def __init__(self, store: Store, spec: StudySpec) -> None:
        self._store = store
        self.spec = spec
        self.experiment = _found(store, spec) or _created(store, spec)

    @property
    def steps(self) -> dict[str, dict[str, Any]]:
        return dict(self.experiment.facts.get("steps") or {})

    def need(self, step: str) -> dict[str, Any]:
        """What an earlier step found.

        Raises:
            ConfigError: it has not been done; says the command.
        """
        found = self.steps.get(step)
        if found is None:
            raise ConfigError(
                f"study {self.spec.name}: first comes '{step}': wattloop study {step} FILE"
            )
        return found

    def keep(self, step: str, found: Mapping[str, Any]) -> None:
        """Write a step down; later ones rest on it and have to be done again."""
        at = STEPS.index(step)
        kept = {name: value for name, value in self.steps.items() if STEPS.index(name) < at}
        kept[step] = {**found, "done_wall_s": time.time()}
        status = "finished" if step == STEPS[-1] else "running"
        set_experiment_status(self._store, self.experiment.experiment_id, status, {"steps": kept})
        found_again = _found(self._store, self.spec)
        assert found_again is not None
        self.experiment = found_again


def next_step(steps: Mapping[str, Any]) -> str | None:
    """The first one that has not been done, the third after a FAIL; None when all goals are met."""
    if is_dead_end(steps):
        return "characterize"
    return next((step for step in STEPS[1:] if step not in steps), None)


def is_dead_end(steps: Mapping[str, Any]) -> bool:
    """Return True if no candidate was good enough, in the simulation or in the validation."""
    decided, validated = steps.get("decide"), steps.get("validate")
    if validated is not None:
        return not validated["success"]
    return decided is not None and not decided["choice"]


def study_campaigns(store: Store) -> dict[str, Experiment]:
    """Return the campaigns that steps of studies rest on, each with its study."""
    found = {}
    for study in list_experiments(store, "study"):
        for step in (study.facts.get("steps") or {}).values():
            source = str(step.get("source") or "").partition(",")[0]
            if source.startswith("campaign-"):
                found[source] = study
    return found


def _fingerprint(spec: StudySpec) -> str:
    return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()


def _found(store: Store, spec: StudySpec) -> Experiment | None:
    mark = _fingerprint(spec)
    return next((e for e in list_experiments(store, "study") if e.fingerprint == mark), None)


def _created(store: Store, spec: StudySpec) -> Experiment:
    return begin_experiment(
        store,
        "study",
        time.time(),
        name=spec.name,
        fingerprint=_fingerprint(spec),
        spec=spec.model_dump(mode="json"),
        facts={"steps": {"objective": {"kpis": [kpi.model_dump() for kpi in spec.kpis]}}},
    )
