"""`tune show --figures DIR`: the course of a search by `sm2`, drawn."""

from typing import TYPE_CHECKING

from wattloop.cli.output import say
from wattloop.core.user_code import user_path

if TYPE_CHECKING:
    from wattloop.store.database import Store
    from wattloop.store.experiments import Experiment

__all__ = ["draw", "drawable"]


def drawable(experiment: "Experiment", folder: str) -> None:
    """Refuse before anything is printed what could not be written after it."""
    from wattloop.report.figures.render import needs_libraries, writable_folder
    from wattloop.report.sm2_course import is_by_sm2

    if not is_by_sm2(experiment):
        return
    needs_libraries()
    writable_folder(user_path(folder))


def draw(store: "Store", experiment: "Experiment", folder: str) -> None:
    """Write figures 1 and 2 of document 003; of another strategy, say where its figures are."""
    from wattloop.report.figures.render import save
    from wattloop.report.sm2_course import is_by_sm2, sm2_charts
    from wattloop.tune.results import summary_of

    search_id = experiment.experiment_id
    if not is_by_sm2(experiment):
        say(
            "wattloop: these figures are those of sm2, which this search did not use; see "
            f"'wattloop report {search_id}' and 'wattloop analyze'"
        )
        return
    summary = summary_of(store, experiment)
    charts = sm2_charts(store, experiment, summary)
    if not charts:
        say("wattloop: nothing to draw: no epoch of this search has ended")
        return
    host = experiment.facts.get("host", "unknown")
    notes = [f"{search_id}: energy of {summary.scope}, {summary.provenance}; host {host}"]
    written = save(charts, user_path(folder), title=experiment.name or search_id, notes=notes)
    say(f"wattloop: {len(charts)} figures in {folder}: see {written[-1]}")
