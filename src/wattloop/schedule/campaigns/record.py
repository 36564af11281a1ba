"""A campaign in the store: every cell that has ended is a trial, whoever computed it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from wattloop.core.clock import Clock, RealClock
from wattloop.hardware.host import Host
from wattloop.schedule.campaigns.cell import Cell
from wattloop.store.database import Store
from wattloop.store.experiments import (
    RUNNING,
    Experiment,
    create_experiment,
    new_experiment_id,
    same_experiments,
    set_experiment_status,
)
from wattloop.store.trial_records import TrialRecord, add_trials, read_trials, trials_with_keys
from wattloop.trials.claim import is_claimed

__all__ = [
    "FAILED",
    "FINISHED",
    "KIND",
    "CampaignRecord",
    "known_cells",
    "open_campaign",
    "with_status_now",
]

KIND = "campaign"
FINISHED, FAILED = "finished", "failed"


def open_campaign(
    store: Store,
    spec: Mapping[str, Any],
    fingerprint: str,
    *,
    name: str = "",
    new: bool = False,
    clock: Clock | None = None,
) -> tuple[Experiment, bool]:
    """The campaign of these very cells, or a new one; whether it was there.

    Args:
        store: where it is kept.
        spec: what is simulated, as plain data.
        fingerprint: the same for the same cells.
        name: of the scenario.
        new: begin anew, whatever is known.
        clock: that says when it was begun.
    """
    if not new:
        for known in same_experiments(store, fingerprint):
            if known.kind == KIND:
                return known, True
    wall_s = (clock or RealClock()).wall_s()
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


def with_status_now(store: Store, experiment: Experiment) -> Experiment:
    """One that is marked as running and that nobody runs was killed."""
    here = experiment.facts.get("host") == Host.from_environment().name
    if experiment.status == RUNNING and here and not is_claimed(store, experiment.experiment_id):
        return replace(experiment, status="interrupted")
    return experiment


def known_cells(store: Store, cells: Sequence[Cell]) -> dict[str, TrialRecord]:
    """Key -> record of cells that need not be computed, whichever campaign did."""
    return trials_with_keys(store, KIND, [cell.key for cell in cells], FINISHED)


class CampaignRecord:
    """Writes one campaign down.

    Args:
        store: that has the experiment.
        experiment: from `open_campaign`.
    """

    def __init__(self, store: Store, experiment: Experiment) -> None:
        self.store, self.experiment = store, experiment

    def adopt(self, cells: Sequence[Cell], known: Mapping[str, TrialRecord]) -> None:
        """Note cells of this campaign that others have computed."""
        own = {each.key for each in read_trials(self.store, self.experiment.experiment_id)}
        numbers = {cell.key: number for number, cell in enumerate(cells)}
        others = [
            replace(each, number=numbers[key]) for key, each in known.items() if key not in own
        ]
        if others:
            add_trials(self.store, self.experiment.experiment_id, others)

    def keep(self, number: int, cell: Cell, outcome: Mapping[str, Any]) -> None:
        """Write down what came of a cell, at once: what has ended survives any end."""
        status = FAILED if "error" in outcome else FINISHED
        record = TrialRecord(
            key=cell.key,
            number=number,
            status=status,
            settings=cell.settings,
            outcome=dict(outcome),
        )
        add_trials(self.store, self.experiment.experiment_id, [record])

    def ended(self, status: str, facts: Mapping[str, Any] | None = None) -> None:
        """Say how it ended."""
        set_experiment_status(self.store, self.experiment.experiment_id, status, facts)
