"""The report of a run or an experiment, with its advice."""

from collections.abc import Callable

from wattloop.accounting.restatement import restated
from wattloop.advise.advisor import advice_on
from wattloop.core.errors import ConfigError, ExperimentNotFound, RunNotFound
from wattloop.core.settings import Settings
from wattloop.report.campaign import report_of_campaign
from wattloop.report.document import Document
from wattloop.report.run import notes_of, report_of_run
from wattloop.report.search import report_of_search
from wattloop.report.study import report_of_study
from wattloop.report.sweep import report_of_cap, report_of_sweep
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment, find_experiment
from wattloop.store.runs import RunRecord, find_run

EXPERIMENTS: dict[str, Callable[[Store, Experiment], Document]] = {
    "cap": report_of_cap,
    "sweep": report_of_sweep,
    "search": report_of_search,
    "campaign": report_of_campaign,
    "study": report_of_study,
}
"""Kind of experiment -> what makes its report."""


def report_of(store: Store, reference: str, settings: Settings | None = None) -> Document:
    """Return the report on a run, sweep, search, campaign or study.

    An identifier or its beginning comes first, then the name of an experiment, then the name of a
    run, of which the newest is meant.

    Args:
        store: where it is looked for.
        reference: an identifier, its beginning, or a name.
        settings: of the reader, for the carbon and cost of a run that was stored without them.

    Raises:
        ConfigError: this kind of experiment has no report.
        RunNotFound: nothing is called so.
    """
    try:
        return _of_run(store, find_run(store, reference), settings)
    except RunNotFound as no_run:
        try:
            experiment = _experiment(store, reference)
        except ExperimentNotFound:
            try:
                return _of_run(store, find_run(store, reference, by_name=True), settings)
            except RunNotFound:
                nor = "nor is a sweep, search, campaign or study called so"
                raise RunNotFound(f"{no_run}; {nor}") from None
    if experiment.kind not in EXPERIMENTS:
        known = ", ".join(["run", *EXPERIMENTS])
        raise ConfigError(
            f"{experiment.experiment_id} is a {experiment.kind}: there are reports on {known}"
        )
    return EXPERIMENTS[experiment.kind](store, experiment)


def _experiment(store: Store, reference: str) -> Experiment:
    """Return the named experiment that has a report; a final belongs to its search."""
    try:
        return find_experiment(store, reference, *EXPERIMENTS)
    except ExperimentNotFound:
        other = find_experiment(store, reference)
    search = other.facts.get("search")
    return find_experiment(store, search, "search") if search else other


def _of_run(store: Store, run: RunRecord, settings: Settings | None) -> Document:
    run = run if settings is None else restated(run, settings)
    return report_of_run(store, run, notes_of(advice_on(store, run)))
