"""How far a campaign is, with the time that is left."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from wattloop.cli.output import say
from wattloop.cli.progress import counted_trials, is_redrawable
from wattloop.core.units import format_duration
from wattloop.schedule.campaigns.campaign import SimulationJob
from wattloop.schedule.campaigns.runner import CampaignCallback
from wattloop.store.experiments import Experiment

__all__ = ["progress"]


@contextmanager
def progress() -> Iterator[CampaignCallback]:
    """A bar on a terminal; elsewhere a line at the beginning, and one per failure."""
    if not is_redrawable():
        yield _Lines()
        return
    with counted_trials() as bar:
        yield _OnTerminal(bar)


class _Lines(CampaignCallback):
    """Says what begins, and what went wrong."""

    def begins(self, experiment: Experiment, cells: int, known: int, *, resumed: bool) -> None:
        """How much there is to do."""
        what = f"{cells} simulation{'s' * (cells != 1)}"
        if known == cells:
            say(f"wattloop: {experiment.experiment_id}: {what}, known already")
            return
        verb = "going on with" if resumed else "beginning"
        had = f", {known} of them known already" if known else ""
        say(f"wattloop: {verb} {experiment.experiment_id}: {what}{had}")

    def ended(self, cell: SimulationJob, outcome: Mapping[str, Any], left_s: float) -> None:
        """Failures."""
        if "error" in outcome:
            say(f"wattloop: {cell.label}: failed: {outcome['error']}")


class _OnTerminal(_Lines):
    def __init__(self, bar: Any) -> None:
        self._bar, self._task = bar, None

    def begins(self, experiment: Experiment, cells: int, known: int, *, resumed: bool) -> None:
        """How long the bar is."""
        super().begins(experiment, cells, known, resumed=resumed)
        self._task = self._bar.add_task("", total=cells, completed=known, left="")

    def ended(self, cell: SimulationJob, outcome: Mapping[str, Any], left_s: float) -> None:
        """One more."""
        super().ended(cell, outcome, left_s)
        left = f"left: {format_duration(left_s)}"
        self._bar.update(self._task, advance=1, left=left, description=cell.label)
