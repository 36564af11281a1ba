"""Simulations of the benchmark of policies, run two at a time."""

import argparse
import multiprocessing
import pickle
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wattloop.schedule.engine import Simulation
from wattloop.schedule.metrics.metrics import Metrics, metrics_of
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.scenarios.file import load_scenario
from wattloop.schedule.scenarios.scenario import Scenario

__all__ = ["Case", "Found", "Pieces", "pieces", "run_all"]


@dataclass(frozen=True)
class Case:
    """One policy on one variation of a shipped scenario.

    Attributes:
        policy: name with parameters.
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


class Pieces(NamedTuple):
    """Division of a long benchmark into several calls.

    Attributes:
        path: file of results of earlier calls, which are not simulated again. Delete it when a
            policy or the engine has changed. None to keep nothing.
        limit_s: time after which a call ends.
    """

    path: Path | None = None
    limit_s: float = float("inf")


def pieces(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> Any:
    """Add `--keep` and `--minutes` to a parser; return its arguments, with `pieces`."""
    parser.add_argument("--keep", metavar="FILE", type=Path, help="keep results for the next call")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after this time")
    args = parser.parse_args(argv)
    args.pieces = Pieces(args.keep, 60 * args.minutes)
    return args


def _die_of_sigterm() -> None:
    """Let a worker end with its pool, whatever handler the calling program has."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_all(
    cases: Sequence[Case],
    seeds: Mapping[Case, Sequence[int]],
    workers: int = 2,
    kept: Pieces = Pieces(),  # noqa: B008, it cannot be changed
) -> Found:
    """Every case on its seeds; the same whatever the number of workers.

    Raises:
        SystemExit: the time of `kept` is over; the next call continues.
    """
    tasks = [(case, seed) for case in dict.fromkeys(cases) for seed in seeds[case]]
    known, begun_s = _known(kept.path), time.monotonic()
    left = [task for task in tasks if task not in known]
    show = sys.stderr.isatty()
    with multiprocessing.get_context("fork").Pool(workers, _die_of_sigterm) as pool:
        results = pool.imap(_simulated, left, chunksize=5)
        for done, (task, metrics) in enumerate(zip(left, results, strict=True), start=1):
            known[task] = metrics
            if kept.path is not None:
                with kept.path.open("ab") as file:
                    pickle.dump((task, metrics), file)
            if show and done % 50 == 0:
                print(f"\r{done} of {len(left)} simulations", end="", file=sys.stderr)
            if time.monotonic() - begun_s > kept.limit_s and done < len(left):
                pool.terminate()
                raise SystemExit(f"{done} of {len(left)} simulations are done; call again")
    found: dict[Case, list[Metrics]] = {case: [] for case, _ in tasks}
    for task in tasks:
        found[task[0]].append(known[task])
    return found


def _known(path: Path | None) -> dict[tuple[Case, int], Metrics]:
    found: dict[tuple[Case, int], Metrics] = {}
    if path is None or not path.exists():
        return found
    with path.open("rb") as file:
        while file.peek(1):
            task, metrics = pickle.load(file)
            found[task] = metrics
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
    """Return the mean of one figure over seeds; those without one are left out."""
    values = [getattr(each, name) for each in metrics]
    return float(np.mean([value for value in values if value is not None]))


def miss_percent(metrics: Sequence[Metrics]) -> float:
    """Return the missed deadlines of all seeds together, in percent."""
    due = sum(each.deadlines for each in metrics)
    return 100 * sum(each.misses for each in metrics) / due if due else float("nan")
