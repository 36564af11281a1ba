"""How far a search is, with the energy and time it has spent and has left."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wattloop.cli.output import say
from wattloop.cli.progress import bars, is_redrawable, spinner
from wattloop.core.units import format_duration, format_energy
from wattloop.tune.budget import BudgetSpent
from wattloop.tune.problem import Limits
from wattloop.tune.progress import Progress, Status
from wattloop.tune.segment import Segment

if TYPE_CHECKING:
    from wattloop.tune.spec import SearchSpec

__all__ = ["Watcher", "busy", "progress"]

FINE = (Status.PAUSED, Status.REACHED, Status.ENDED, Status.NOT_SUPPORTED)


@contextmanager
def progress(spec: "SearchSpec | None" = None) -> Iterator["Watcher"]:
    """A line that is kept up to date on a terminal; elsewhere only what went wrong."""
    if not is_redrawable():
        yield Watcher(spec)
        return
    from rich.progress import SpinnerColumn, TimeElapsedColumn

    with bars(SpinnerColumn(), "{task.description}", TimeElapsedColumn()) as bar:
        yield _OnTerminal(spec, bar, bar.add_task("", total=None))


@contextmanager
def busy(text: str) -> Iterator[None]:
    """A line with the time that passes on a terminal; elsewhere the line alone."""
    if not is_redrawable():
        say(f"wattloop: {text}")
    with spinner(text):
        yield


class Watcher:
    """Says only what went wrong."""

    def __init__(self, spec: "SearchSpec | None") -> None:
        self._limits = Limits()
        self._said: set[str] = set()
        if spec is not None:
            self.about(spec)

    def about(self, spec: "SearchSpec") -> None:
        """What the search may spend."""
        self._limits = spec.limits.limits()

    def begins(self, segment: Segment, spent: BudgetSpent) -> None:
        """Nothing to say."""

    def ended(self, segment: Segment, progress: Progress, spent: BudgetSpent) -> None:
        """Failures, each kind of warning once."""
        if progress.status not in FINE:
            say(f"wattloop: {_who(segment)}: {progress.status.value}: {progress.message}")
        elif progress.message and progress.message not in self._said:
            self._said.add(progress.message)
            say(f"wattloop: {_who(segment)}: {progress.message}")
        if progress.cap is not None and progress.cap.cap_w is None:
            reason, then = (
                f"no power cap was set: {progress.cap.reason}",
                "the search goes on without",
            )
            if progress.cap.too_short:
                reason = "a segment was too short to find a power cap"
                then = "a probe takes about five seconds, and a cap several of them"
            if reason not in self._said:
                self._said.add(reason)
                say(f"wattloop: {reason}; {then}")


class _OnTerminal(Watcher):
    def __init__(self, spec: "SearchSpec | None", bar: Any, task: Any) -> None:
        super().__init__(spec)
        self._bar, self._task = bar, task

    def begins(self, segment: Segment, spent: BudgetSpent) -> None:
        """What is trained now, and what was spent."""
        parts = [
            f"{spent.candidates} configuration{'s' * (spent.candidates != 1)}",
            self._energy(spent),
        ]
        if self._limits.time_s is not None:
            left_s = max(0.0, self._limits.time_s - spent.elapsed_s)
            parts.append(f"{format_duration(left_s)} left")
        self._bar.update(self._task, description=", ".join([*parts, _who(segment)]))

    def _energy(self, spent: BudgetSpent) -> str:
        if self._limits.energy_j is None:
            return f"{format_energy(spent.energy_j)} spent"
        left_j = max(0.0, self._limits.energy_j - spent.energy_j)
        return f"{format_energy(spent.energy_j)} spent, {format_energy(left_j)} left"


def _who(segment: Segment) -> str:
    values = " ".join(f"{name}={value}" for name, value in segment.parameters.items())
    return f"{segment.candidate} ({values})" if values else segment.candidate
