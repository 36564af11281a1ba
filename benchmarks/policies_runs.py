"""Which simulations the benchmark of policies needs, and how they are run, two at a time."""

import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from wattloop.schedule.engine import Simulation
from wattloop.schedule.metrics.metrics import Metrics, metrics_of
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.schedule.scenarios.scenario import Scenario

__all__ = ["Case", "Found", "run_all"]


@dataclass(frozen=True)
class Case:
    """One policy on one variation of a shipped scenario.

    Attributes:
        policy: name with parameters, as people write it.
        scenario: name of a shipped scenario.
        variant: one of its variants; empty for itself.
        changes: field -> value on top of it.
    """

    policy: str
    scenario: str = "thesis"
    variant: str = ""
    changes: tuple[tuple[str, Any], ...] = field(default=())


Found = Mapping[Case, Sequence[Metrics]]
"""What came of each case, seed by seed."""


def run_all(cases: Sequence[Case], seeds: Mapping[Case, Sequence[int]], workers: int = 2) -> Found:
    """Every case on its seeds; the same whatever the number of workers."""
    tasks = [(case, seed) for case in dict.fromkeys(cases) for seed in seeds[case]]
    found: dict[Case, list[Metrics]] = {case: [] for case, _ in tasks}
    show = sys.stderr.isatty()
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for done, (task, metrics) in enumerate(
            zip(tasks, pool.imap(_simulated, tasks, chunksize=5), strict=True), start=1
        ):
            found[task[0]].append(metrics)
            if show and done % 50 == 0:
                print(f"\r{done} of {len(tasks)} simulations", end="", file=sys.stderr)
    return found


def _simulated(task: tuple[Case, int]) -> Metrics:
    case, seed = task
    world = _scenario(replace(case, policy="")).world(seed)
    return metrics_of(
        Simulation(
            world.cluster,
            world.jobs,
            policy_from(case.policy),
            truth=world.truth,
            oracle=world.oracle,
            settings=world.settings,
        ).run()
    )


@lru_cache(maxsize=64)
def _scenario(case: Case) -> Scenario:
    scenario = load_scenario(case.scenario, dict(case.changes))
    return scenario.variants[case.variant] if case.variant else scenario


def mean(metrics: Sequence[Metrics], name: str) -> float:
    """Mean of one figure over seeds; those without one are left out."""
    values = [getattr(each, name) for each in metrics]
    return float(np.mean([value for value in values if value is not None]))


def miss_percent(metrics: Sequence[Metrics]) -> float:
    """Deadlines missed over all seeds together, in per cent."""
    due = sum(each.deadlines for each in metrics)
    return 100 * sum(each.misses for each in metrics) / due if due else float("nan")
