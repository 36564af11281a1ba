"""A pruner of Optuna that counts joules, not steps.

study = optuna.create_study(pruner=EnergyBudgetPruner("50 kJ", percentile=50))
study.optimize(measured(objective), n_trials=50)

A large batch and a small one have different steps and epochs; what they have used of the
electricity is comparable.
"""

import warnings
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.tune.engines.optuna_measured import ENERGY_BY_STEP, positive_joules
from wattloop.tune.engines.optuna_space import library

__all__ = ["EnergyBudgetPruner"]

BasePruner: Any = library("EnergyBudgetPruner").pruners.BasePruner


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
        """Whether Optuna should stop the trial."""
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
    """The best value that a trial had reported by the time it had used so much."""
    energies = _energies(trial)
    values = [
        value
        for step, value in trial.intermediate_values.items()
        if energies.get(step, float("inf")) <= energy_j and value == value  # noqa: PLR0124 - not NaN
    ]
    if not values:
        return None
    return float(max(values) if maximize else min(values))
