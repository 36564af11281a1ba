"""Campaigns read back from the store."""

from typing import Any

from wattloop.store.database import Store
from wattloop.store.experiments import Experiment, each_trial

__all__ = ["known_outcomes"]


def known_outcomes(
    store: Store, experiment: Experiment
) -> dict[tuple[str, str, int], dict[str, Any]]:
    """(variant, policy, seed) -> what came of it, in the order of the campaign."""
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
