"""A search as it stands: its strategy and the best configuration, also of one that was killed."""

from collections.abc import Iterable

from wattloop.core.errors import WattloopError
from wattloop.core.settings import Settings
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment, TrialRecord
from wattloop.tune.running import problem_without
from wattloop.tune.search_record import OVER, SearchRecord
from wattloop.tune.spec import spec_from
from wattloop.tune.stored import without_collecting
from wattloop.tune.strategies import strategy_for
from wattloop.tune.strategy import Chosen, Strategy

__all__ = ["chosen_now", "strategy_now"]


def chosen_now(
    store: Store,
    experiment: Experiment,
    settings: Settings,
    records: Iterable[TrialRecord] | None = None,
) -> Chosen | None:
    """What its strategy would choose, told everything that is stored (`records`, where read).

    A search that has ended or was interrupted has written it down; one that runs or was killed has
    not. One whose specification cannot be read any more has none, and no error: looking at a search
    must not fail.
    """
    known = experiment.facts.get("best")
    if known or experiment.status in OVER:
        return None if not known else Chosen(**known)
    strategy = strategy_now(store, experiment, settings, records)
    return None if strategy is None else strategy.best()


def strategy_now(
    store: Store,
    experiment: Experiment,
    settings: Settings,
    records: Iterable[TrialRecord] | None = None,
) -> Strategy | None:
    """Its strategy, told everything that is stored; None where it cannot be made any more."""
    try:
        spec = spec_from(experiment.spec)
        problem = problem_without(spec.problem(settings), experiment.facts.get("without") or {})
        strategy = strategy_for(spec, problem)
        with without_collecting():
            strategy.recall(SearchRecord(store, experiment).story(records).events)
        return strategy
    except WattloopError:
        return None
