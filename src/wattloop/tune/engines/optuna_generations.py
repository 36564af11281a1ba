"""NSGA-II of Optuna with generations counted by results, not by what trials remember.

Optuna writes the generation into each trial as it is asked for. Here a trial is made when its
result is told, so the first `population_size` results are the first generation, and so on.
"""

from typing import Any

from wattloop.tune.engines.optuna_space import library

__all__ = ["by_order"]


def by_order(parents: dict[int, list[Any]], **options: Any) -> Any:
    """A sampler.

    Args:
        parents: of each generation, kept from one sampler of a study to the next; empty at first.
        options: those of `NSGAIISampler`.
    """
    return _class(parents)(**options)


def _class(parents: dict[int, list[Any]]) -> Any:
    sampler: Any = library("nsga2").samplers.NSGAIISampler

    class ByOrder(sampler):  # type: ignore[misc]  # known only where Optuna is installed
        """Generations by the order of results."""

        def get_trial_generation(self, study: Any, trial: Any) -> int:
            return len(self._results(study)) // int(self.population_size)

        def get_population(self, study: Any, generation: int) -> list[Any]:
            begin = generation * self.population_size
            return self._results(study)[begin : begin + self.population_size]

        def get_parent_population(self, study: Any, generation: int) -> list[Any]:
            # Optuna's own recurses over all generations, and its cache changes their order, so
            # that a resumed search would go on differently
            for due in range(len(parents) + 1, generation + 1):
                parents[due] = self.select_parent(study, due)
            return parents.get(generation, [])

        def _results(self, study: Any) -> list[Any]:
            return list(study.get_trials(deepcopy=False, states=(_complete(),)))

    return ByOrder


def _complete() -> Any:
    return library("nsga2").trial.TrialState.COMPLETE
