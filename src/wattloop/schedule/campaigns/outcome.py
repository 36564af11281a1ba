"""Outcome of one simulation: its metrics, and the policy's refused actions."""

import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.schedule.campaigns.campaign import PolicyChoice, SimulationJob
from wattloop.schedule.engine.result import SimulationResult
from wattloop.schedule.engine.simulation import Simulation
from wattloop.schedule.metrics.metrics import metrics_of
from wattloop.schedule.scenarios.scenario import Scenario, World

REFUSED_KEPT = 3


class Simulator:
    """Simulator of campaign jobs, which builds the shared parts of a scenario once.

    Args:
        scenarios: variant -> scenario.
        checks: check the invariants after every event.
    """

    def __init__(self, scenarios: Mapping[str, Scenario], *, checks: bool = False) -> None:
        self.scenarios, self.checks = scenarios, checks
        self._built: dict[tuple[str, int], World] = {}

    def __call__(
        self, cells: Sequence[SimulationJob]
    ) -> Iterator[tuple[SimulationJob, dict[str, Any]]]:
        """Simulate the jobs of one world; yield each with its outcome."""
        world = self.world(cells[0])
        for cell in cells:
            yield cell, self._outcome(world, cell)

    def world(self, cell: SimulationJob) -> World:
        """Return the world of a job, cached because a trace takes seconds to read."""
        key = cell.variant, cell.seed
        if key not in self._built:
            self._built = {key: self.scenarios[cell.variant].world(cell.seed)}
        return self._built[key]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for workers, without the cached world, which may be large."""
        return self.__dict__ | {"_built": {}}

    def _outcome(self, world: World, cell: SimulationJob) -> dict[str, Any]:
        try:
            result = simulated(world, cell.choice, checks=self.checks)
            return outcome_of(result) | {"sources": _sources(world)}
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a policy error is an outcome
            return {"error": f"{type(error).__name__}: {error} ({_where(error)})"}


def simulated(world: World, choice: PolicyChoice, *, checks: bool = False) -> SimulationResult:
    """Simulate a policy in a world to its end."""
    return Simulation(
        world.cluster,
        world.jobs,
        choice.policy(),
        truth=world.truth,
        oracle=world.oracle,
        settings=replace(world.settings, checks=True) if checks else world.settings,
    ).run()


def outcome_of(result: SimulationResult) -> dict[str, Any]:
    """Convert a result to plain data: metrics, jobs that never run, refusals, assumptions."""
    return {
        **metrics_of(result).to_dict(),
        "policy_s": result.policy_s,
        "never": dict(Counter(result.never.values())),
        "left": list(result.left.values()),
        "refused": list(result.refused[:REFUSED_KEPT]),
        "notes": list(result.jobs.notes),
    }


def _where(error: Exception) -> str:
    """Return `FILE:LINE` of the raising line, for the author of a policy."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def _sources(world: World) -> list[str]:
    """Return the sources of time and power, without the single curves of a table."""
    parts = [
        part for kind in world.jobs.kinds for part in world.truth.options(kind).source.split("; ")
    ]
    return [part for part in dict.fromkeys(parts) if part and not part.startswith("caps of ")]
