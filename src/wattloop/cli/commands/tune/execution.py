"""Execution of searches from the command line, new or resumed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from wattloop.cli.output import say, write_json
from wattloop.cli.progress import bars, is_redrawable, spinner
from wattloop.core.settings import Settings
from wattloop.core.units import format_duration, format_energy
from wattloop.tune.problem import Limits
from wattloop.tune.progress import Progress, Status
from wattloop.tune.search_loop import BudgetSpent
from wattloop.tune.segment import Segment

if TYPE_CHECKING:
    from wattloop.store.database import Store
    from wattloop.tune.search_setup import PreparedSearch
    from wattloop.tune.spec import SearchSpec


FINE = (Status.PAUSED, Status.REACHED, Status.ENDED, Status.NOT_SUPPORTED)


@contextmanager
def progress(spec: "SearchSpec | None" = None) -> Iterator["Watcher"]:
    """Keep a status line up to date on a terminal; elsewhere print failures only."""
    if not is_redrawable():
        yield Watcher(spec)
        return
    from rich.progress import SpinnerColumn, TimeElapsedColumn

    with bars(SpinnerColumn(), "{task.description}", TimeElapsedColumn()) as bar:
        yield _OnTerminal(spec, bar, bar.add_task("", total=None))


@contextmanager
def busy(text: str) -> Iterator[None]:
    """Show a line with the elapsed time on a terminal; elsewhere the line alone."""
    if not is_redrawable():
        say(f"wattloop: {text}")
    with spinner(text):
        yield


class Watcher:
    """Progress as lines: failures only."""

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


@dataclass(slots=True, kw_only=True)
class TuneRequest:
    """Options of `tune`; None or empty means not given."""

    settings: Settings
    spec_file: str | None = None
    command: list[str] = field(default_factory=list)
    fields: Mapping[str, Any] = field(default_factory=dict)
    target: float | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    parallel: str | None = None
    new: bool = False
    resume_only: bool = False
    json_file: str | None = None


def execute(request: TuneRequest) -> None:
    """Run the search of a file."""
    from wattloop.store.database import open_store
    from wattloop.tune.search_setup import prepare_search

    spec = spec_of(request)
    for note in (*spec.notes, *spec.remarks):
        say(f"wattloop: {request.spec_file}: {note}")
    with open_store(request.settings.store_location) as store:
        with progress(spec) as listener:
            ready = prepare_search(
                spec,
                store,
                request.settings,
                resume=not request.new,
                resume_only=request.resume_only,
                parallel=request.parallel,
                listener=listener,
            )
            _say_known(ready, store, request)
            _run(ready)
        _show(ready, store, request)


def execute_stored(reference: str | None, request: TuneRequest) -> None:
    """Resume a stored search; by default the last unfinished one."""
    from wattloop.cli.experiments import say_which
    from wattloop.store.database import open_store
    from wattloop.tune.search_setup import resume_search

    limits = {name: value for name, value in request.limits.items() if value is not None}
    with open_store(request.settings.store_location) as store:
        say_which(store, reference or "last", "search")
        with progress() as listener:
            ready = resume_search(
                reference, store, request.settings, limits=limits, listener=listener
            )
            listener.about(ready.spec)
            _run(ready)
        _show(ready, store, request)


def spec_of(request: TuneRequest) -> "SearchSpec":
    """Return the specification of a file with the options applied."""
    from wattloop.core.yaml_spec import read_yaml
    from wattloop.tune.spec import spec_from

    assert request.spec_file is not None
    source = read_yaml(request.spec_file)
    data = dict(source.data)
    data |= {name: value for name, value in request.fields.items() if value is not None}
    if request.fields.get("strategy") is not None:
        data.pop("method", None)
    if request.command:
        data |= {"command": request.command}
    limits = {name: value for name, value in request.limits.items() if value is not None}
    if limits:
        own = data.get("limits")
        known = dict(own) if isinstance(own, Mapping) else {}
        if "time" in limits:
            known.pop("deadline", None)  # another word for it
        if "trials" in limits:
            data.pop("run_cap", None)
        data["limits"] = {**known, **limits}
    if request.target is not None:
        metric = data.get("metric")
        written = metric if isinstance(metric, Mapping) else {"name": metric}
        data["metric"] = {**written, "target": request.target}
    return spec_from(data, source)


def _say_known(ready: "PreparedSearch", store: "Store", request: TuneRequest) -> None:
    """Tell the user that an equal search exists and how to resume it."""
    from wattloop.store.experiments import same_experiments

    if ready.is_resumed or request.new:
        return
    own = ready.experiment
    for known in same_experiments(store, own.fingerprint):
        if known.experiment_id != own.experiment_id and known.status == "finished":
            say(
                f"wattloop: {known.experiment_id} searched the same to its end: 'wattloop tune "
                "show' has what it found; this is another search"
            )
            return


def _run(ready: "PreparedSearch") -> None:
    verb = "going on with" if ready.is_resumed else "beginning"
    if ready.is_over:
        verb = "nothing is left to train in"
    say(f"wattloop: {verb} {ready.experiment.experiment_id}")
    for name, reason in ready.without.items():
        say(f"wattloop: the search goes on without {name}: {reason}")
    try:
        stopped = ready.run()
    except (KeyboardInterrupt, SystemExit):
        say("wattloop: interrupted; 'wattloop tune resume' goes on, what has ended is kept")
        raise
    if stopped.limit:
        say(f"wattloop: stopped: {stopped.limit}; the best so far stands")


def _show(ready: "PreparedSearch", store: "Store", request: TuneRequest) -> None:
    from wattloop.cli.commands.tune.view import print_found, result_of
    from wattloop.report.stored_results import looked_at
    from wattloop.store.experiments import find_experiment

    experiment = find_experiment(store, ready.experiment.experiment_id)
    found, summary = looked_at(store, experiment)
    if request.json_file is not None:
        write_json(result_of(found, summary, experiment), request.json_file)
    if request.json_file != "-":
        print_found(found, summary, experiment)
    if found and summary.failed == len(found):
        said = next((text for one in found for text in one.messages), "")
        say("wattloop: every configuration failed" + (f"; the first: {said}" if said else ""))
        raise typer.Exit(1)
