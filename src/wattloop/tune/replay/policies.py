"""What can be replayed, by name, and what each is told of a workload."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from wattloop.core.errors import ConfigError
from wattloop.tune.parameters import Choice, Parameter
from wattloop.tune.problem import Limits, Problem
from wattloop.tune.replay.bench import BATCH
from wattloop.tune.replay.policy import DefaultCapPolicy, Policy, RacePolicy, SearchPolicy
from wattloop.tune.replay.workload import Workload
from wattloop.tune.replay.zeus import ZeusPolicy
from wattloop.tune.segment import CAP_LEVER, CapSearch, Value
from wattloop.tune.space import Space
from wattloop.tune.strategies import strategy_named
from wattloop.tune.strategies.race import Race
from wattloop.tune.strategy import Strategy

__all__ = ["POLICIES", "check_policy", "policy", "replay_problem"]

RANDOM = 20
"""Configurations that `random` tries."""

Make = Callable[[Workload, int], Policy]


def policy(name: str, workload: Workload, seed: int) -> Policy:
    """The policy called `name`, for one workload.

    Raises:
        ConfigError: there is none of that name.
    """
    check_policy(name)
    return POLICIES[name](workload, seed)


def check_policy(name: str) -> None:
    """Raise ConfigError when there is none of that name."""
    if name not in POLICIES:
        raise ConfigError(f"unknown strategy '{name}'; known are {', '.join(POLICIES)}")


def replay_problem(workload: Workload, seed: int, *, caps: bool = True) -> Problem:
    """What a strategy is told: batch sizes, and a cap to be found inside trainings; with `caps`
    False, the caps are a parameter like any other.
    """
    space: dict[str, Parameter] = {BATCH: Choice(values=workload.batch_sizes)}
    default: dict[str, Value] = {BATCH: workload.default}
    if not caps:
        limits = sorted({cap_w for curve in workload.curves.values() for cap_w in curve.caps_w})
        space[CAP_LEVER] = Choice(values=tuple(limits), lever="gpu/power_limit")
        default[CAP_LEVER] = limits[-1]
    return Problem(
        space=Space(space),
        quality=workload.wanted,
        default=default,
        limits=Limits(epochs=workload.max_epochs),
        cap=CapSearch() if caps else None,
        seed=seed,
    )


def _race(workload: Workload, seed: int) -> Policy:
    problem = replay_problem(workload, seed)
    return RacePolicy(lambda memory: Race(problem, memory=memory))


def _searched(name: str, *, caps: bool, most: int | None = None) -> Make:
    """Any strategy of the package; grid and random try caps like any other parameter."""

    def make(workload: Workload, seed: int) -> Policy:
        problem = replay_problem(workload, seed, caps=caps)
        if most is not None:
            problem = _limited(problem, most)

        def strategy() -> Strategy:
            return strategy_named(name, problem)

        return SearchPolicy(workload, strategy)

    return make


def _limited(problem: Problem, candidates: int) -> Problem:
    return replace(problem, limits=replace(problem.limits, candidates=candidates))


POLICIES: Mapping[str, Make] = {
    "race": _race,
    "sm2": _searched("sm2", caps=True),
    "grid": _searched("grid", caps=False),
    "random": _searched("random", caps=False, most=RANDOM),
    "zeus": ZeusPolicy,
    "default-cap": lambda workload, seed: DefaultCapPolicy(workload),
    "asha": _searched("asha", caps=True),
}
"""Name -> policy. `asha` is there to see what plain halving does."""
