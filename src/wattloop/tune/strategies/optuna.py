"""Samplers of Optuna: TPE, NSGA-II for several objectives, Gaussian processes.

A proposal depends on nothing but the results told so far, in the order in which they were told,
and on how many configurations were begun: every one comes from a new sampler with a seed of its
own. So a search goes on exactly where it was when its results are given back to the study, which
takes milliseconds, where asking the sampler for all of them again would take minutes.

A training that misses the target is told as one that violates a constraint, by as much as it
misses; one that failed is not told at all, and its configuration is not proposed again.
"""

import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from wattloop.core.errors import ConfigError, StrategyError
from wattloop.tune.engines.optuna_space import distributions, frozen, library, new_study, suggested
from wattloop.tune.problem import Problem
from wattloop.tune.segment import Segment
from wattloop.tune.space import Configuration
from wattloop.tune.strategies.ledger import Candidate
from wattloop.tune.strategies.one_by_one import OneByOne, check_ends
from wattloop.tune.strategy import Event

__all__ = ["Gp", "Nsga2", "Tpe"]

TRIES = 5
"""Proposals that may repeat what was begun before, until a random one is taken."""
NO_TORCH = (
    "gp needs torch, which is not installed: pip install torch scipy; or use tpe, which does not"
)


class _Sampled(OneByOne):
    """Asks a sampler of Optuna for configurations."""

    name: str

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        library(self.name)
        check_ends(problem, self.name)
        if "sm2" in problem.objective.names:
            raise ConfigError(
                f"{self.name} scores each training by itself, and sm2 only compares several: use "
                "grid, random or the strategy sm2"
            )
        self._distributions = distributions(problem.space)
        self._untold: list[Any] = []  # results that the study does not know yet
        self._study = new_study(["minimize"] * len(problem.objective.names))

    @abstractmethod
    def sampler(self, seed: int) -> Any:
        """A new sampler."""

    def propose(self) -> Configuration | None:
        """The sampler's proposal; a random one when it only repeats itself."""
        begun = len(self.ledger)
        size = self.problem.space.size
        if size is not None and begun >= size:
            return None
        self._study.add_trials(self._untold)
        self._untold.clear()
        for attempt in range(TRIES):
            self._study.sampler = self.sampler(_seed(self.problem.seed, begun, attempt))
            trial = self._study.ask()
            found = suggested(self.problem.space, self._distributions, trial)
            # a proposal is not a result: samplers do not look at failed trials
            self._study.tell(trial, state=library(self.name).trial.TrialState.FAIL)
            if not self.ledger.seen(found):
                return found
        return self._random(begun)

    def learn(self, candidate: Candidate) -> None:
        """Tell the study, unless there is nothing to compare."""
        trial = self._trial(candidate)
        if trial is not None:
            self._untold.append(trial)

    def recall(self, events: Iterable[Event]) -> None:
        """Take what happened as it is; the sampler is not asked again.

        Raises:
            StrategyError: the events are not those of this strategy on this problem.
        """
        for event in events:
            if event.progress is None:
                self._begin_again(event.segment)
            else:
                self.tell(event.segment, event.progress)

    # -- inside ----------------------------------------------------------------------------

    def _begin_again(self, segment: Segment) -> None:
        if segment.candidate in self.alive():
            self.rest(segment.candidate)
            return
        due = f"c{len(self.ledger)}.0"
        try:
            found = self.problem.space.complete({**segment.parameters, **segment.levers})
        except ConfigError as error:
            raise StrategyError(f"the search was begun over another space: {error}") from None
        if segment.key != due:
            raise StrategyError(
                f"the search was begun by something else: it asked for {segment.key!r}, now for "
                f"{due!r}"
            )
        self.ledger.segment(self.ledger.begin(found))

    def _trial(self, candidate: Candidate) -> Any:
        if not self.ledger.comparable(candidate):
            return None
        scores = self.ledger.scores(candidate)
        if not all(math.isfinite(score) for score in scores):
            return None
        own = {n: v for n, v in candidate.levers.items() if n in self.problem.space.parameters}
        return frozen(
            {**candidate.parameters, **own},
            self._distributions,
            scores,
            short_by=self.ledger.short_by(candidate),
        )

    def _random(self, begun: int) -> Configuration | None:
        import numpy as np

        from wattloop.tune.strategies.one_by_one import drawn

        rng = np.random.default_rng(_seed(self.problem.seed, begun, TRIES))
        return drawn(self.problem, self.ledger, rng)


class Tpe(_Sampled):
    """Tree-structured Parzen estimator; for several objectives, too.

    Args:
        problem: what is searched.
        startup: configurations drawn at random before the sampler has a say.
        multivariate: look at parameters together.
    """

    name = "tpe"

    def __init__(self, problem: Problem, *, startup: int = 10, multivariate: bool = False) -> None:
        super().__init__(problem)
        self._startup, self._multivariate = _count("startup", startup, 0), multivariate

    def sampler(self, seed: int) -> Any:
        """See `_Sampled`."""
        return library(self.name).samplers.TPESampler(
            seed=seed,
            n_startup_trials=self._startup,
            multivariate=self._multivariate,
            **constraints(),
        )


class Gp(_Sampled):
    """Gaussian processes; needs torch.

    Args:
        problem: what is searched.
        startup: configurations drawn at random before the sampler has a say.
    """

    name = "gp"

    def __init__(self, problem: Problem, *, startup: int = 10) -> None:
        super().__init__(problem)
        self._startup = _count("startup", startup, 0)
        try:
            import scipy  # noqa: F401 - only whether it is there
            import torch  # noqa: F401 - only whether it is there
        except ImportError:
            raise ConfigError(NO_TORCH) from None

    def sampler(self, seed: int) -> Any:
        """See `_Sampled`."""
        return library(self.name).samplers.GPSampler(
            seed=seed,
            n_startup_trials=self._startup,
            warn_independent_sampling=False,
            **constraints(),
        )


class Nsga2(_Sampled):
    """NSGA-II: a population that keeps to the front of several objectives.

    Args:
        problem: what is searched.
        population: trainings of a generation.
    """

    name = "nsga2"

    def __init__(self, problem: Problem, *, population: int = 10) -> None:
        super().__init__(problem)
        self._population = _count("population", population, 2)
        self._parents: dict[int, list[Any]] = {}

    def sampler(self, seed: int) -> Any:
        """See `_Sampled`."""
        from wattloop.tune.engines.optuna_generations import by_order

        options = {"population_size": self._population, "seed": seed}
        return by_order(self._parents, **options, **constraints())


def constraints() -> dict[str, Any]:
    """How to make a sampler look at constraints: since Optuna 5 it does so by itself."""
    optuna = library("optuna")
    if hasattr(optuna.trial.Trial, "set_constraint"):
        return {}
    return {"constraints_func": lambda trial: trial.system_attrs.get("constraints", (0.0,))}


def _seed(seed: int, begun: int, attempt: int) -> int:
    """Another number for each proposal, the same in each run; Optuna takes 32 bits."""
    return (seed * 1_000_003 + begun * (TRIES + 1) + attempt) % (2**32)


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}; give a whole number of {least} or more")
    return value
