"""Current results of stored sweeps and searches."""

from dataclasses import asdict

from wattloop.core.errors import ConfigError
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment, find_experiment, read_trials
from wattloop.sweep.result import SweepResult, result_of
from wattloop.trials.runner import with_status_now
from wattloop.trials.trial import SCOPES
from wattloop.tune.results import (
    CandidateResult,
    SearchSummary,
    aggregate_candidates,
    stored_quality,
    summarize_search,
)


def stored_sweep(store: Store, reference: str, scope: str | None = None) -> SweepResult:
    """Return the result of a stored sweep."""
    if scope is not None and scope not in SCOPES:
        raise ConfigError(f"--scope {scope}: unknown; choose one of {', '.join(SCOPES)}")
    experiment = with_status_now(store, find_experiment(store, reference, "sweep"))
    return result_of(experiment, read_trials(store, experiment.experiment_id), scope)


def stored_search(store: Store, reference: str) -> Experiment:
    """Return a stored search with its current status."""
    return with_status_now(store, find_experiment(store, reference, "search"))


def looked_at(store: Store, experiment: Experiment) -> tuple[list[CandidateResult], SearchSummary]:
    """Return the candidates of a search, and its summary with the best one.

    Also of a search that goes on or was killed. Its trials are read once: there may be many.
    """
    from wattloop.core.config_file import load_settings
    from wattloop.tune.search_setup import current_choice
    from wattloop.tune.segment import without_gc

    with without_gc():
        records = read_trials(store, experiment.experiment_id)
        found = aggregate_candidates(records, stored_quality(experiment.facts))
        best = current_choice(store, experiment, load_settings(needs=()), records)
    return found, summarize_search(store, experiment, found, None if best is None else asdict(best))
