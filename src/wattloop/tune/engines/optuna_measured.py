"""Energy for people who use Optuna already: every trial of a study is measured.

study.optimize(measured(objective), n_trials=20, callbacks=[EnergyCallback("2 kWh")])

Afterwards each trial has the user attributes `energy_j`, `time_s`, `power_w`, `uncertainty_j`,
`provenance` and `run_id`. Trials that run at the same time share what the machine reads, so
measure with `n_jobs=1`.
"""

import functools
from collections.abc import Callable
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.units import format_energy
from wattloop.measure.api import Measurement, measure
from wattloop.tune.amounts import joules

__all__ = ["ENERGY_BY_STEP", "EnergyCallback", "measured", "positive_joules"]

ENERGY_BY_STEP = "energy_j_by_step"
"""User attribute: joules used in all when the trial reported a step, by step."""

Goal = Callable[[Any], Any]


def measured(objective: Goal, **options: Any) -> Goal:
    """The same objective, measured.

    Args:
        objective: takes a trial and returns its value or values.
        options: of `wattloop.measure`, such as `devices="gpu:0"` or `store="runs.db"`.
    """

    @functools.wraps(objective)
    def run(trial: Any) -> Any:
        tags = {"study": str(trial.study.study_name), "trial": str(trial.number)}
        given = {**options, "tags": {**tags, **options.get("tags", {})}}
        measurement = measure(f"trial {trial.number}", **given)
        try:
            with measurement:
                _note_energy_with_each_report(trial, measurement)
                return objective(trial)
        finally:
            _keep(trial, measurement)

    return run


class EnergyCallback:
    """Stops a study when its trials have used an energy budget; needs `measured` objectives.

    Args:
        budget: joules, or text such as `2 kWh`, for the whole study.
        warn: told once when trials have no energy; nothing unless given.
    """

    def __init__(self, budget: float | str, warn: Callable[[str], None] | None = None) -> None:
        self.budget_j = positive_joules(budget, "budget")
        self._warn = warn

    def __call__(self, study: Any, trial: Any) -> None:
        """Called by Optuna after each trial."""
        if trial.user_attrs.get("energy_j") is None and self._warn is not None:
            self._warn(f"trial {trial.number} has no energy: use measured(objective)")
            self._warn = None
        if self.used_j(study) >= self.budget_j:
            study.stop()

    def used_j(self, study: Any) -> float:
        """Joules of all trials of a study whose energy is known."""
        trials = study.get_trials(deepcopy=False)
        return float(sum(trial.user_attrs.get("energy_j") or 0.0 for trial in trials))

    def __repr__(self) -> str:
        return f"EnergyCallback({format_energy(self.budget_j)})"


def positive_joules(value: float | str, name: str) -> float:
    """An energy above 0.

    Raises:
        ConfigError: it is none.
    """
    try:
        found = joules(value)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    if isinstance(found, bool) or not isinstance(found, int | float) or not found > 0:
        raise ConfigError(f"{name} is {value!r}; give an energy above 0, such as '20 kJ'")
    return float(found)


def _note_energy_with_each_report(trial: Any, measurement: Measurement) -> None:
    """Beside each intermediate value, how many joules it took to get there."""
    used: dict[str, float] = {}
    report = trial.report

    def noted(value: float, step: int) -> None:
        energy_j = measurement.energy_j
        if energy_j is not None:
            # the reading of a moment may lie a little below an earlier estimate
            used[str(step)] = max(energy_j, *used.values(), 0.0)
            trial.set_user_attr(ENERGY_BY_STEP, dict(used))
        report(value, step)

    trial.report = noted


def _keep(trial: Any, measurement: Measurement) -> None:
    result = measurement.result
    provenance = result.provenance
    known = {
        "energy_j": result.energy_j,
        "uncertainty_j": result.uncertainty_j,
        "time_s": result.duration_s,
        "power_w": result.power_w,
        "provenance": None if provenance is None else provenance.value,
        "run_id": None if measurement.run is None else measurement.run.run_id,
    }
    for name, value in known.items():
        trial.set_user_attr(name, value)
