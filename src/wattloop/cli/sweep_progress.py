"""How far a sweep is, with the time and energy that are left."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wattloop.cli.output import say
from wattloop.cli.progress import counted_trials, is_redrawable
from wattloop.cli.result_view import short_energy
from wattloop.core.units import format_duration
from wattloop.sweep.runner import SweepListener, SweepProgress
from wattloop.trials.outcome import TrialOutcome
from wattloop.trials.trial import Trial

if TYPE_CHECKING:
    from wattloop.sweep.plan import SweepPlan

__all__ = ["progress"]


@contextmanager
def progress(plan: "SweepPlan", identity: str, *, resumed: bool) -> Iterator[SweepListener]:
    """A bar on a terminal; elsewhere a line at the beginning, and one per failure."""
    rule = plan.spec.repeats
    times = str(rule.least) if rule.least == rule.most else f"{rule.least} to {rule.most}"
    verb = "going on with" if resumed else "beginning"
    count = len(plan.points)
    points = f"{count} point{'s' if count != 1 else ''}"
    say(f"wattloop: {verb} {identity}: {points}, {times} run{'s' if rule.most != 1 else ''} each")
    if not is_redrawable():
        yield _Lines()
        return
    with counted_trials() as bar:
        yield _OnTerminal(bar, bar.add_task("", total=None, left=""))


class _Lines:
    """Says only what went wrong."""

    def begins(self, trial: Trial, progress: SweepProgress) -> None:
        """Nothing to say."""

    def ended(self, trial: Trial, outcome: TrialOutcome) -> None:
        """Failures."""
        if not outcome.ok:
            say(f"wattloop: {trial.key}: {outcome.status.value}: {outcome.message}")

    def cooled(self, waited_s: float) -> None:
        """Nothing to say."""


class _OnTerminal(_Lines):
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task

    def begins(self, trial: Trial, progress: SweepProgress) -> None:
        """What runs now, and what is left."""
        self._bar.update(
            self._task,
            completed=progress.done,
            total=progress.done + progress.left,
            left=_left(progress),
            description=trial.key,
        )


def _left(progress: SweepProgress) -> str:
    parts = []
    if progress.time_left_s is not None:
        parts.append(format_duration(progress.time_left_s))
    if progress.energy_left_j is not None:
        parts.append(f"{short_energy(progress.energy_left_j)} {progress.scope}")
    return f"left: {', '.join(parts)}" if parts else ""
