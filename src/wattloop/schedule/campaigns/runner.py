"""Campaign runner: simulate in worker processes, store each result, reuse known results."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.process import stops_deferred
from wattloop.schedule.campaigns.campaign import Campaign, Outcomes, SimulationJob, fingerprint
from wattloop.schedule.campaigns.store import (
    FAILED,
    FINISHED,
    CampaignRecord,
    known_cells,
    open_campaign,
)
from wattloop.schedule.campaigns.workers import Simulator, each_outcome
from wattloop.schedule.scenarios.scenario import Scenario
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment
from wattloop.trials.experiment_lock import lock_experiment


def share_predictions(scenarios: Iterable[Scenario]) -> None:
    """Share one oracle, with its cached predictions, among scenarios of the same cluster."""
    first: list[Scenario] = []
    for scenario in scenarios:
        like = [
            each
            for each in first
            if each.cluster == scenario.cluster and each.oracle == scenario.oracle
        ]
        if like:
            # the attribute that `cached_property` would set
            scenario.__dict__["truth"] = like[0].truth
        else:
            first.append(scenario)


class CampaignCallback:
    """Progress callbacks of a campaign; the default ones do nothing."""

    def begins(self, experiment: Experiment, cells: int, known: int, *, resumed: bool) -> None:
        """Handle the start: the number of simulations, and of those already known."""

    def ended(self, cell: SimulationJob, outcome: Mapping[str, Any], left_s: float) -> None:
        """Handle the end of a simulation, with the estimated time for the rest."""


def run_campaign(
    campaign: Campaign,
    store: Store,
    *,
    workers: int = 1,
    new: bool = False,
    listener: CampaignCallback | None = None,
) -> tuple[Experiment, Outcomes]:
    """Run the simulations of a campaign that are not in the store.

    Each outcome is stored as soon as its simulation ends. A killed campaign continues there when it
    is started again, and campaigns with common simulations share their outcomes. Outcomes do not
    depend on the number of workers; 1 uses this process only.

    Returns:
        The experiment in the store, and the outcome of every simulation.

    Raises:
        ConfigError: the scenario cannot be built.
        DeviceBusy: another process runs the same campaign.
    """
    if workers < 1:
        raise ConfigError(f"--workers {workers}: give 1 or more")
    listener = listener or CampaignCallback()
    cells = campaign.cells()
    found = {} if new else known_cells(store, cells)
    simulator = _simulator(campaign, [cell for cell in cells if cell.key not in found])
    experiment, resumed = open_campaign(
        store, campaign.spec(), fingerprint(cells), name=campaign.scenario.name, new=new
    )
    record = CampaignRecord(store, experiment)
    with lock_experiment(store, experiment.experiment_id):
        record.begin(cells, found)
        listener.begins(experiment, len(cells), len(found), resumed=resumed)
        try:
            _compute(simulator, cells, record, found, workers, listener)
        except BaseException:
            with stops_deferred():
                record.ended("interrupted")
            raise
        failed = any("error" in outcome for outcome in found.values())
        record.ended(FAILED if failed else FINISHED)
    return experiment, {(c.variant, c.choice.label, c.seed): found[c.key] for c in cells}


def _simulator(campaign: Campaign, todo: Sequence[SimulationJob]) -> Simulator:
    """Build the simulator; an invalid scenario raises before anything is stored."""
    scenarios = campaign.scenarios
    share_predictions(scenarios.values())
    simulator = Simulator(scenarios, checks=campaign.checks)
    if todo:
        simulator.world(todo[0])
    return simulator


def _compute(
    simulator: Simulator,
    cells: Sequence[SimulationJob],
    record: CampaignRecord,
    found: dict[str, dict[str, Any]],
    workers: int,
    listener: CampaignCallback,
) -> None:
    todo = [cell for cell in cells if cell.key not in found]
    numbers = {cell.key: number for number, cell in enumerate(cells)}
    pace = _Pace([cell.choice.label for cell in todo], min(workers, len(todo)))
    for cell, outcome in each_outcome(simulator, todo, workers):
        with stops_deferred():
            record.keep(numbers[cell.key], cell, outcome)
        found[cell.key] = outcome
        listener.ended(cell, outcome, pace.left_s(cell.choice.label, outcome.get("wall_s", 0.0)))


@dataclass(slots=True)
class _Pace:
    """Estimate of the remaining time, by the mean time of each policy."""

    left: list[str]
    workers: int
    took_s: dict[str, list[float]] = field(default_factory=dict)

    def left_s(self, label: str, took_s: float) -> float:
        self.took_s.setdefault(label, []).append(took_s)
        self.left.remove(label)
        means_s = {name: math.fsum(each) / len(each) for name, each in self.took_s.items()}
        usual_s = math.fsum(means_s.values()) / len(means_s)
        return sum(means_s.get(name, usual_s) for name in self.left) / self.workers
