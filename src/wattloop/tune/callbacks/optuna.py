"""Energy of every trial of an Optuna study, an energy budget, and a pruner that counts joules."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.units import format_energy
from wattloop.measure.api import Measurement, measure
from wattloop.tune.spec_sections import joules
from wattloop.tune.strategies.optuna import import_optuna

# study.optimize(measured(objective), n_trials=20, callbacks=[EnergyCallback("2 kWh")])
# Each trial then has the user attributes `energy_j`, `time_s`, `power_w`, `uncertainty_j`,
# `provenance` and `run_id`. Trials that run at the same time share the readings of the machine, so
# measure with `n_jobs=1`.

ENERGY_BY_STEP = "energy_j_by_step"
"""User attribute: cumulative joules at each reported step."""
Goal = Callable[[Any], Any]


def measured(objective: Goal, **options: Any) -> Goal:
    """Return the objective wrapped in a measurement with the options of `wattloop.measure`."""

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
        warn: called once when trials have no energy; no warning unless given.
    """

    def __init__(self, budget: float | str, warn: Callable[[str], None] | None = None) -> None:
        self.budget_j = positive_joules(budget, "budget")
        self._warn = warn

    def __call__(self, study: Any, trial: Any) -> None:
        if trial.user_attrs.get("energy_j") is None and self._warn is not None:
            self._warn(f"trial {trial.number} has no energy: use measured(objective)")
            self._warn = None
        if self.used_j(study) >= self.budget_j:
            study.stop()

    def used_j(self, study: Any) -> float:
        trials = study.get_trials(deepcopy=False)
        return float(sum(trial.user_attrs.get("energy_j") or 0.0 for trial in trials))

    def __repr__(self) -> str:
        return f"EnergyCallback({format_energy(self.budget_j)})"


def positive_joules(value: float | str, name: str) -> float:
    """Parse an energy above 0."""
    try:
        found = joules(value)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    if isinstance(found, bool) or not isinstance(found, int | float) or not found > 0:
        raise ConfigError(f"{name} is {value!r}; give an energy above 0, such as '20 kJ'")
    return float(found)


def _note_energy_with_each_report(trial: Any, measurement: Measurement) -> None:
    used: dict[str, float] = {}
    report = trial.report

    def noted(value: float, step: int) -> None:
        energy_j = measurement.energy_j
        if energy_j is not None:
            # A single reading may lie slightly below an earlier estimate.
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


# Epochs and steps of different batch sizes are not comparable; the joules used are.

BasePruner: Any = import_optuna("EnergyBudgetPruner").pruners.BasePruner


class EnergyBudgetPruner(BasePruner):  # type: ignore[misc]  # known only where Optuna is installed
    """Prunes a trial that has used its energy budget, or is behind others for the same energy.

    Args:
        budget: joules, or text such as `50 kJ`, that one trial may use; None for no budget.
        percentile: prune a trial whose best value is worse than this percentile of what the
            others had for the same energy (50 is the median); None for never.
        startup: trials that must have reported that much energy before any is compared.
        grace: joules, or text, that a trial may use before it is compared.

    Raises:
        ConfigError: neither a budget nor a percentile, or a number out of range.
    """

    def __init__(
        self,
        budget: float | str | None = None,
        *,
        percentile: float | None = 50.0,
        startup: int = 5,
        grace: float | str | None = None,
    ) -> None:
        if budget is None and percentile is None:
            raise ConfigError("give a budget, a percentile, or both: nothing would be pruned")
        if percentile is not None and not 0 < percentile < 100:
            raise ConfigError(f"percentile is {percentile:g}; give a number between 0 and 100")
        if startup < 1:
            raise ConfigError(f"startup is {startup}; give 1 or more")
        self.budget_j = None if budget is None else positive_joules(budget, "budget")
        self.grace_j = 0.0 if grace is None else positive_joules(grace, "grace")
        self.percentile, self.startup = percentile, startup
        self._warned = False

    def prune(self, study: Any, trial: Any) -> bool:
        used_j = _last_energy_j(trial)
        if used_j is None:
            if trial.intermediate_values and not self._warned:
                self._warned = True
                warnings.warn(
                    "EnergyBudgetPruner: the trial has no energy; use measured(objective)",
                    stacklevel=2,
                )
            return False
        if self.budget_j is not None and used_j >= self.budget_j:
            return True
        if self.percentile is None or used_j < self.grace_j:
            return False
        return self._behind(study, trial, used_j)

    def _behind(self, study: Any, trial: Any, used_j: float) -> bool:
        maximize = study.direction.name == "MAXIMIZE"
        own = _best_until(trial, used_j, maximize)
        others = [
            best
            for other in study.get_trials(deepcopy=False)
            if other.number != trial.number
            and (_last_energy_j(other) or 0.0) >= used_j
            and (best := _best_until(other, used_j, maximize)) is not None
        ]
        if own is None or len(others) < self.startup:
            return False
        import numpy as np

        share = self.percentile if not maximize else 100 - (self.percentile or 0)
        bar = float(np.percentile(others, share or 0))
        return own < bar if maximize else own > bar


def _energies(trial: Any) -> dict[int, float]:
    known = trial.user_attrs.get(ENERGY_BY_STEP) or {}
    return {int(step): float(energy_j) for step, energy_j in known.items()}


def _last_energy_j(trial: Any) -> float | None:
    return max(_energies(trial).values(), default=None)


def _best_until(trial: Any, energy_j: float, maximize: bool) -> float | None:
    """Return the best value that a trial had reported by the time it had used this energy."""
    energies = _energies(trial)
    values = [
        value
        for step, value in trial.intermediate_values.items()
        if energies.get(step, float("inf")) <= energy_j and value == value  # noqa: PLR0124 - not NaN
    ]
    if not values:
        return None
    return float(max(values) if maximize else min(values))
