"""How far an experiment is, also where its process was killed and cannot say so itself."""

from dataclasses import replace

from wattloop.hardware.host import Host
from wattloop.store.database import Store
from wattloop.store.experiments import RUNNING, Experiment
from wattloop.trials.claim import is_claimed

__all__ = ["with_status_now"]


def with_status_now(store: Store, experiment: Experiment) -> Experiment:
    """As it is stored, but for one that is marked as running here and that nobody runs."""
    here = experiment.facts.get("host") == Host.from_environment().name
    if experiment.status == RUNNING and here and not is_claimed(store, experiment.experiment_id):
        return replace(experiment, status="interrupted")
    return experiment
