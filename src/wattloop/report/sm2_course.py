"""How a search by `sm2` went, in figures 1 and 2 of document 003."""

from collections.abc import Mapping
from typing import Any

from wattloop.report.document import Chart, Note, Section
from wattloop.store.database import Store
from wattloop.store.experiments import Experiment
from wattloop.tune.results import SearchSummary

__all__ = ["is_by_sm2", "sm2_charts", "sm2_section"]


def is_by_sm2(experiment: Experiment) -> bool:
    """Whether `sm2` decided in this search."""
    strategy = experiment.spec.get("strategy") or experiment.spec.get("method") or {}
    name = strategy.get("name") if isinstance(strategy, Mapping) else strategy
    return bool(name == "sm2")


def sm2_charts(store: Store, experiment: Experiment, summary: SearchSummary) -> dict[str, Any]:
    """Both figures of a stored search, by name; none where its course cannot be told any more."""
    from wattloop.core.config_file import load_settings
    from wattloop.report.figures.sm2 import sm2_figures
    from wattloop.tune.search_setup import strategy_now
    from wattloop.tune.strategies.sm2.sm2 import Sm2

    strategy = strategy_now(store, experiment, load_settings(needs=()))
    if not isinstance(strategy, Sm2):
        return {}
    return sm2_figures(strategy, said=f"energy of {summary.scope}, {summary.provenance}")


def sm2_section(store: Store, experiment: Experiment, summary: SearchSummary) -> Section:
    """The course of the search first, then the rates that each configuration tried."""
    charts = sm2_charts(store, experiment, summary)
    course = charts.pop("course", None)
    drawn = [] if course is None else [Chart("sm2-course", course, COURSE)]
    drawn += [Chart(f"sm2-{name}", chart, RATES) for name, chart in charts.items()]
    heading = "The course of SM2"
    return Section(heading, tuple(drawn) if drawn else (Note("Nothing was explored yet."),))


COURSE = "Performance, energy and learning rate of every configuration, epoch by epoch"
RATES = "Loss over the learning rates of an exploratory epoch, with the window that was chosen"
