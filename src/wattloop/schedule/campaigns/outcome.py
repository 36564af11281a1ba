"""What comes of a cell: its figures, and what the policy could not do."""

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
    """Simulates cells; what all seeds of a scenario share is built once.

    Args:
        scenarios: variant -> the world it makes.
        checks: look after every event whether the invariants hold.
    """

    def __init__(self, scenarios: Mapping[str, Scenario], *, checks: bool = False) -> None:
        self.scenarios, self.checks = scenarios, checks
        self._built: dict[tuple[str, int], World] = {}

    def __call__(
        self, cells: Sequence[SimulationJob]
    ) -> Iterator[tuple[SimulationJob, dict[str, Any]]]:
        """Each cell of one world with what came of it."""
        world = self.world(cells[0])
        for cell in cells:
            yield cell, self._outcome(world, cell)

    def world(self, cell: SimulationJob) -> World:
        """The world of a cell; the last one is kept, for a trace takes seconds to read."""
        key = cell.variant, cell.seed
        if key not in self._built:
            self._built = {key: self.scenarios[cell.variant].world(cell.seed)}
        return self._built[key]

    def __getstate__(self) -> dict[str, Any]:
        """For workers: without the world, which may be larger than what makes it."""
        return self.__dict__ | {"_built": {}}

    def _outcome(self, world: World, cell: SimulationJob) -> dict[str, Any]:
        try:
            result = simulated(world, cell.choice, checks=self.checks)
            return outcome_of(result) | {"sources": _sources(world)}
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - a policy's fault is the result of its cell
            return {"error": f"{type(error).__name__}: {error} ({_where(error)})"}


def simulated(world: World, choice: PolicyChoice, *, checks: bool = False) -> SimulationResult:
    """A policy in a world, to its end."""
    return Simulation(
        world.cluster,
        world.jobs,
        choice.policy(),
        truth=world.truth,
        oracle=world.oracle,
        settings=replace(world.settings, checks=True) if checks else world.settings,
    ).run()


def outcome_of(result: SimulationResult) -> dict[str, Any]:
    """Plain data for the store: metrics, jobs that never run by reason, refusals, assumptions."""
    return {
        **metrics_of(result).to_dict(),
        "policy_s": result.policy_s,
        "never": dict(Counter(result.never.values())),
        "left": list(result.left.values()),
        "refused": list(result.refused[:REFUSED_KEPT]),
        "notes": list(result.jobs.notes),
    }


def _where(error: Exception) -> str:
    """`FILE:LINE` where it was raised: whoever wrote a policy looks there first."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def _sources(world: World) -> list[str]:
    """Where time and power come from; of a table's many parts, the tables."""
    parts = [
        part for kind in world.jobs.kinds for part in world.truth.options(kind).source.split("; ")
    ]
    return [part for part in dict.fromkeys(parts) if part and not part.startswith("caps of ")]
