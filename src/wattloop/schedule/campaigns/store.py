"""Campaigns in the store: one trial per finished simulation."""

from collections.abc import Mapping, Sequence
from typing import Any

from wattloop.core.clock import RealClock
from wattloop.hardware.host import Host
from wattloop.schedule.campaigns.campaign import SimulationJob
from wattloop.store.database import Store
from wattloop.store.experiments import (
    RUNNING,
    Experiment,
    TrialRecord,
    add_trials,
    create_experiment,
    each_trial,
    new_experiment_id,
    read_trials,
    same_experiments,
    set_experiment_status,
    trials_with_keys,
)

KIND = "campaign"
FINISHED, FAILED = "finished", "failed"


def open_campaign(
    store: Store,
    spec: Mapping[str, Any],
    fingerprint: str,
    *,
    name: str = "",
    new: bool = False,
) -> tuple[Experiment, bool]:
    """Find the campaign with the same simulations or create one; return also if it existed."""
    if not new:
        for known in same_experiments(store, fingerprint):
            if known.kind == KIND:
                return known, True
    wall_s = RealClock().wall_s()
    experiment = Experiment(
        experiment_id=new_experiment_id(KIND, wall_s),
        kind=KIND,
        name=name,
        created_wall_s=wall_s,
        fingerprint=fingerprint,
        spec=dict(spec),
        facts={"host": Host.from_environment().name},
    )
    create_experiment(store, experiment)
    return experiment, False


def known_cells(store: Store, cells: Sequence[SimulationJob]) -> dict[str, dict[str, Any]]:
    """Return key -> outcome of the simulations that any campaign has completed."""
    found = trials_with_keys(store, KIND, [cell.key for cell in cells], FINISHED)
    return {key: record.outcome for key, record in found.items()}


class CampaignRecord:
    """Writer of one campaign's outcomes."""

    def __init__(self, store: Store, experiment: Experiment) -> None:
        self.store, self.experiment = store, experiment

    def begin(self, cells: Sequence[SimulationJob], known: Mapping[str, Mapping[str, Any]]) -> None:
        """Mark the campaign as running, and copy known outcomes of other campaigns."""
        if self.experiment.status != RUNNING:
            self.ended(RUNNING)
        own = {each.key for each in read_trials(self.store, self.experiment.experiment_id)}
        others = [
            _record(number, cell, known[cell.key])
            for number, cell in enumerate(cells)
            if cell.key in known and cell.key not in own
        ]
        if others:
            add_trials(self.store, self.experiment.experiment_id, others)

    def keep(self, number: int, cell: SimulationJob, outcome: Mapping[str, Any]) -> None:
        """Store an outcome at once, so that it survives a crash."""
        add_trials(self.store, self.experiment.experiment_id, [_record(number, cell, outcome)])

    def ended(self, status: str) -> None:
        set_experiment_status(self.store, self.experiment.experiment_id, status)


def _record(number: int, cell: SimulationJob, outcome: Mapping[str, Any]) -> TrialRecord:
    return TrialRecord(
        key=cell.key,
        number=number,
        status=FAILED if "error" in outcome else FINISHED,
        settings=cell.settings,
        outcome=dict(outcome),
    )


def known_outcomes(
    store: Store, experiment: Experiment
) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return (variant, policy, seed) -> outcome, in the order of the campaign."""
    found = {
        (str(own.get("variant", "")), str(own["policy"]), int(own["seed"])): record.outcome
        for record in each_trial(store, experiment.experiment_id)
        for own in (record.settings,)
    }
    variants = {name: at for at, name in enumerate(experiment.spec.get("variants", ()))}
    labels = {name: at for at, name in enumerate(experiment.spec.get("policies", ()))}
    last = len(labels)

    def place(cell: tuple[str, str, int]) -> tuple[int, int, int]:
        variant, label, seed = cell
        return variants.get(variant, 0), labels.get(label, last), seed

    return {cell: found[cell] for cell in sorted(found, key=place)}
