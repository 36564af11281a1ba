"""Strategies from Optuna's samplers: TPE, NSGA-II for several objectives, Gaussian processes."""

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wattloop.core.errors import ConfigError, StrategyError
from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import Segment, Value
from wattloop.tune.space import Choice, Configuration, Integer, Linked, Parameter, Real, Space
from wattloop.tune.strategies.base import StrategyEvent
from wattloop.tune.strategies.candidates import Candidate
from wattloop.tune.strategies.exhaustive import OneByOne, check_ends, draw_unseen

REMEDY = "pip install 'wattloop[tune]'"


def import_optuna(what: str) -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError(f"{what} needs optuna, which is not installed: {REMEDY}") from None
    return optuna


def new_study(directions: Sequence[str], **more: Any) -> Any:
    """Create a study; in memory unless `more` has a storage. Optuna's messages are disabled."""
    optuna = import_optuna("optuna")
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(directions=list(directions), **more)
    finally:
        optuna.logging.set_verbosity(level)


def distributions(space: Space) -> dict[str, Any]:
    return {name: _distribution(space.parameters[name]) for name in space.varied}


def suggest_configuration(space: Space, known: Mapping[str, Any], trial: Any) -> Configuration:
    """Return the configuration that a trial suggests, conditions and links included."""
    found: dict[str, Value] = {}
    for name in space.order:
        if not space.active(name, found):
            continue
        parameter = space.parameters[name]
        if isinstance(parameter, Linked):
            found[name] = found[parameter.same_as]
        elif name in known:
            value = _suggest(trial, name, known[name])
            rounds = isinstance(parameter, Real) and parameter.log
            found[name] = parameter.nearest(value) if rounds else value  # type: ignore[attr-defined]  # a Real, as `rounds` says
        else:
            found[name] = (parameter.listed() or (None,))[0]
    return space.complete(found)


def finished_trial(
    configuration: Mapping[str, Value],
    known: Mapping[str, Any],
    values: Sequence[float],
    *,
    short_by: float = 0.0,
) -> Any:
    """Return a finished trial; `short_by` above 0 means that it misses its target."""
    optuna = import_optuna("optuna")
    own = {name: value for name, value in configuration.items() if name in known}
    return optuna.trial.create_trial(
        params=own,
        distributions={name: known[name] for name in own},
        values=[float(value) for value in values],
        system_attrs={"constraints": (float(short_by),)},
    )


def _suggest(trial: Any, name: str, distribution: Any) -> Any:
    optuna = import_optuna("optuna")
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    ends = {"low": distribution.low, "high": distribution.high, "log": distribution.log}
    if isinstance(distribution, optuna.distributions.IntDistribution):
        return trial.suggest_int(name, step=distribution.step, **ends)
    return trial.suggest_float(name, step=distribution.step, **ends)


def _distribution(parameter: Parameter) -> Any:
    kinds = import_optuna("optuna").distributions
    if isinstance(parameter, Choice):
        return kinds.CategoricalDistribution(parameter.values)
    if isinstance(parameter, Integer):
        return kinds.IntDistribution(
            parameter.low, parameter.high, log=parameter.log, step=parameter.step
        )
    if isinstance(parameter, Real):
        # Optuna has no steps on a logarithmic scale; values are rounded afterwards.
        step = None if parameter.log else parameter.step
        return kinds.FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=step)
    raise AssertionError(f"{type(parameter).__name__} has one value only")


# Optuna stores the generation in each trial when it is asked for. Here a trial is created when its
# result is told, so the first `population_size` results are the first generation, and so on.


def ordered_nsga2(parents: dict[int, list[Any]], **options: Any) -> Any:
    """Return an NSGA-II sampler whose generations follow the order of results.

    `parents` of each generation are kept from one sampler of a study to the next.
    """
    optuna = import_optuna("nsga2")
    base: Any = optuna.samplers.NSGAIISampler

    class OrderedNsga2(base):  # type: ignore[misc]  # known only where Optuna is installed
        def get_trial_generation(self, study: Any, trial: Any) -> int:
            return len(self._results(study)) // int(self.population_size)

        def get_population(self, study: Any, generation: int) -> list[Any]:
            begin = generation * self.population_size
            return self._results(study)[begin : begin + self.population_size]

        def get_parent_population(self, study: Any, generation: int) -> list[Any]:
            # Optuna's own method recurses over all generations, and its cache changes their order,
            # so that a resumed search would differ.
            for due in range(len(parents) + 1, generation + 1):
                parents[due] = self.select_parent(study, due)
            return parents.get(generation, [])

        def _results(self, study: Any) -> list[Any]:
            complete = (optuna.trial.TrialState.COMPLETE,)
            return list(study.get_trials(deepcopy=False, states=complete))

    return OrderedNsga2(**options)


# A proposal depends only on the results told so far, in order, and on the number of configurations
# started: each comes from a new sampler with its own seed. So a search resumes exactly when its
# results are told to a new study, which takes milliseconds; repeating all proposals would take
# minutes.
# A training that misses the target is told as a violated constraint, by as much as it misses. A
# failed one is not told, and its configuration is not proposed again.

TRIES = 5
"""Proposals that may repeat earlier configurations, until a random one is used."""
NO_TORCH = (
    "gp needs torch, which is not installed: pip install torch scipy; or use tpe, which does not"
)


class _Sampled(OneByOne):
    """Base of strategies that ask an Optuna sampler for configurations."""

    name: str

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        import_optuna(self.name)
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
        """Return the sampler's proposal; a random one when it only repeats itself."""
        begun = len(self.ledger)
        size = self.problem.space.size
        if size is not None and begun >= size:
            return None
        self._study.add_trials(self._untold)
        self._untold.clear()
        for attempt in range(TRIES):
            self._study.sampler = self.sampler(_seed(self.problem.seed, begun, attempt))
            trial = self._study.ask()
            found = suggest_configuration(self.problem.space, self._distributions, trial)
            # A proposal is not a result: samplers ignore failed trials.
            self._study.tell(trial, state=import_optuna(self.name).trial.TrialState.FAIL)
            if not self.ledger.seen(found):
                return found
        return self._random(begun)

    def learn(self, candidate: Candidate) -> None:
        trial = self._trial(candidate)
        if trial is not None:
            self._untold.append(trial)

    def recall(self, events: Iterable[StrategyEvent]) -> None:
        """Import earlier events; the sampler is not asked again."""
        for event in events:
            if event.progress is None:
                self._begin_again(event.segment)
            else:
                self.tell(event.segment, event.progress)

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
        return finished_trial(
            {**candidate.parameters, **own},
            self._distributions,
            scores,
            short_by=self.ledger.short_by(candidate),
        )

    def _random(self, begun: int) -> Configuration | None:
        import numpy as np

        rng = np.random.default_rng(_seed(self.problem.seed, begun, TRIES))
        return draw_unseen(self.problem, self.ledger, rng)


class Tpe(_Sampled):
    """Tree-structured Parzen estimator; for several objectives, too.

    Args:
        startup: configurations drawn at random before the sampler has a say.
    """

    name = "tpe"

    def __init__(self, problem: Problem, *, startup: int = 10, multivariate: bool = False) -> None:
        super().__init__(problem)
        self._startup, self._multivariate = _count("startup", startup, 0), multivariate

    def sampler(self, seed: int) -> Any:
        return import_optuna(self.name).samplers.TPESampler(
            seed=seed,
            n_startup_trials=self._startup,
            multivariate=self._multivariate,
            **constraints(),
        )


class Gp(_Sampled):
    """Gaussian processes; needs torch.

    Args:
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
        return import_optuna(self.name).samplers.GPSampler(
            seed=seed,
            n_startup_trials=self._startup,
            warn_independent_sampling=False,
            **constraints(),
        )


class Nsga2(_Sampled):
    """NSGA-II: a population that approaches the front of several objectives.

    Args:
        population: trainings of a generation.
    """

    name = "nsga2"

    def __init__(self, problem: Problem, *, population: int = 10) -> None:
        super().__init__(problem)
        self._population = _count("population", population, 2)
        self._parents: dict[int, list[Any]] = {}

    def sampler(self, seed: int) -> Any:
        options = {"population_size": self._population, "seed": seed}
        return ordered_nsga2(self._parents, **options, **constraints())


def constraints() -> dict[str, Any]:
    """Return options that make a sampler use constraints; since Optuna 5 it does so by itself."""
    optuna = import_optuna("optuna")
    if hasattr(optuna.trial.Trial, "set_constraint"):
        return {}
    return {"constraints_func": lambda trial: trial.system_attrs.get("constraints", (0.0,))}


def _seed(seed: int, begun: int, attempt: int) -> int:
    """Return a seed per proposal, the same in each run; Optuna takes 32 bits."""
    return (seed * 1_000_003 + begun * (TRIES + 1) + attempt) % (2**32)


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}; give a whole number of {least} or more")
    return value
