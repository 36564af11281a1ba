"""Doing a sweep: warm-up, rounds of all points, cool-down in between, resumable at any moment."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from wattloop.characterize.cooling import Thermometer, cool_down
from wattloop.characterize.repeats import Repeated, repeated
from wattloop.characterize.sweep_plan import Plan, Point, fingerprint
from wattloop.characterize.sweep_result import SweepResult, chosen_scope, result_of
from wattloop.control.lever import Lever
from wattloop.core.clock import Clock, RealClock
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.measure.meter import Context
from wattloop.store.database import Store
from wattloop.store.experiments import (
    RUNNING,
    Experiment,
    create_experiment,
    forget_trials,
    new_experiment_id,
    read_trials,
    same_experiments,
    set_experiment_status,
)
from wattloop.trials.outcome import Outcome
from wattloop.trials.runner import TrialRunner
from wattloop.trials.trial import Trial

__all__ = ["Listener", "Progress", "Sweep", "open_experiment"]

KIND = "sweep"
WARM_UP = "warm-up"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sweep is. What is left is estimated from what ran so far; None before that."""

    done: int
    left: int
    time_left_s: float | None
    energy_left_j: float | None
    scope: str | None


class Listener(Protocol):
    """Who is told what happens. Every method may do nothing."""

    def begins(self, trial: Trial, progress: Progress) -> None:
        """A trial begins."""

    def ended(self, trial: Trial, outcome: Outcome) -> None:
        """It has ended."""

    def cooled(self, waited_s: float) -> None:
        """Devices have cooled down."""


def open_experiment(
    store: Store, plan: Plan, clock: Clock, *, resume: bool = True
) -> tuple[Experiment, bool]:
    """The unfinished sweep of the same points and commands, or a new one; whether it is resumed."""
    mark = fingerprint(plan)
    if resume:
        unfinished = [e for e in same_experiments(store, mark) if e.status != "finished"]
        if unfinished:
            return unfinished[0], True
    wall_s = clock.wall_s()
    experiment = Experiment(
        experiment_id=new_experiment_id(KIND, wall_s),
        kind=KIND,
        name=plan.spec.name,
        created_wall_s=wall_s,
        fingerprint=mark,
        spec=plan.spec.to_dict(),
        facts={"host": Host.from_environment().name, "axes": [a.to_dict() for a in plan.axes]},
    )
    create_experiment(store, experiment)
    return experiment, False


class Sweep:
    """Runs a plan as one experiment.

    Args:
        plan: points and rules.
        experiment: where it is written, from `open_experiment`.
        store: the store that has it.
        settings: how to measure.
        listener: told what happens.
        outputs: folder for what programs print; None shows it.
        state_directory: where levers are journaled, for tests.
        clock: time to cool down on.
    """

    def __init__(
        self,
        plan: Plan,
        experiment: Experiment,
        store: Store,
        settings: Settings,
        *,
        listener: Listener,
        outputs: Path | None = None,
        state_directory: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._plan = plan
        self._experiment = experiment
        self._store = store
        self._settings = settings
        self._listener = listener
        self._outputs = outputs
        self._state_directory = state_directory
        self._clock = clock or RealClock()
        self._outcomes: dict[str, list[Outcome]] = {p.key: [] for p in plan.points}
        self._scope: str | None = plan.spec.scope
        self._paid = 0

    def run(self, *, retry_failed: bool = False) -> SweepResult:
        """Run what has not been run yet.

        Interrupted (ctrl-C, SIGTERM) it puts the levers back and leaves the rest for later.

        Raises:
            ConfigError: the command does not work even at the default setting.
            LeverError: levers cannot be taken or put back.
        """
        identity = self._experiment.experiment_id
        if retry_failed:
            forget_trials(self._store, identity, keep=("ok", RUNNING))
        starts = int(self._experiment.facts.get("starts", 0))
        status = "interrupted"
        try:
            with ExitStack() as stack:
                context = Context(Host.from_environment(), self._settings, self._clock)
                thermometer = stack.enter_context(Thermometer(context))
                idle_c = self._experiment.facts.get("idle_c") or thermometer.read_c()
                facts = {"starts": starts + 1, "idle_c": idle_c}
                set_experiment_status(self._store, identity, RUNNING, facts)
                runner = stack.enter_context(self._runner())
                cool = self._cooler(idle_c, thermometer.read_c)
                self._warm_up(runner, starts, cool)
                self._rounds(runner, cool)
            status = "finished"
        except ConfigError:
            status = "failed"
            raise
        finally:
            result = self.result()
            facts = {"summary": result.summary()}
            set_experiment_status(self._store, identity, status, facts)
        return replace(result, experiment=replace(result.experiment, status=status))

    def result(self) -> SweepResult:
        """Everything found so far."""
        return result_of(self._experiment, read_trials(self._store, self._experiment.experiment_id))

    # -- inside ----------------------------------------------------------------------------

    def _runner(self) -> TrialRunner:
        levers: dict[str, Lever] = {}
        for axis in self._plan.axes:
            levers |= {lever.name: lever for lever in axis.levers}
        return TrialRunner(
            self._store,
            self._experiment.experiment_id,
            self._settings,
            levers=list(levers.values()),
            outputs=self._outputs,
            state_directory=self._state_directory,
        )

    def _cooler(
        self, idle_c: Mapping[str, float], read_c: Callable[[], Mapping[str, float]]
    ) -> Callable[[], None]:
        def cool() -> None:
            if self._paid:
                waited_s = cool_down(self._plan.spec.cooldown, idle_c, read_c, self._clock)
                self._listener.cooled(waited_s)

        return cool

    def _warm_up(self, runner: TrialRunner, start: int, cool: Callable[[], None]) -> None:
        """Caches, compilers and the cards' own warmth; these runs are kept but not counted.

        After every start anew: a sweep that is resumed next morning finds a cold machine.
        """
        if not self._anything_left(runner):
            return
        for point in self._plan.references:
            for number in range(self._plan.spec.warmup):
                trial = self._plan.trial(point, f"{WARM_UP} {start}.{number}")
                outcome = self._paid_run(runner, trial, cool)
                if not outcome.ok:
                    raise ConfigError(_refused(point, outcome))

    def _rounds(self, runner: TrialRunner, cool: Callable[[], None]) -> None:
        rule = self._plan.spec.repeats
        for number in range(rule.most + max(1, rule.most // 2)):
            for point in self._plan.block(number):
                if not self._state(point).missing(rule):
                    continue
                trial = self._plan.trial(point, str(number))
                outcome = runner.ended(trial.key)
                if outcome is None:
                    outcome = self._paid_run(runner, trial, cool)
                self._outcomes[point.key].append(outcome)
                self._scope = self._scope or chosen_scope([outcome])
                if point.is_default and not outcome.ok and not self._state(point).used:
                    raise ConfigError(_refused(point, outcome))

    def _paid_run(self, runner: TrialRunner, trial: Trial, cool: Callable[[], None]) -> Outcome:
        cool()
        self._listener.begins(trial, self._progress())
        outcome = runner.run(trial)
        self._paid += 1
        self._listener.ended(trial, outcome)
        return outcome

    def _anything_left(self, runner: TrialRunner) -> bool:
        """Whether a resumed sweep has anything to run."""
        rule = self._plan.spec.repeats
        for point in self._plan.points:
            numbers = range(rule.most + max(1, rule.most // 2))
            found = [runner.ended(self._plan.trial(point, str(n)).key) for n in numbers]
            known = [outcome for outcome in found if outcome is not None]
            scope = self._scope or chosen_scope(known)
            if repeated(known, scope).missing(rule):
                return True
        return False

    def _state(self, point: Point) -> Repeated:
        return repeated(self._outcomes[point.key], self._scope)

    def _progress(self) -> Progress:
        states = [self._state(point) for point in self._plan.points]
        missing = [state.missing(self._plan.spec.repeats) for state in states]
        time_s = _left([s.time_s.mean if s.time_s else None for s in states], missing)
        energy_j = _left([s.energy_j.mean if s.energy_j else None for s in states], missing)
        done = sum(len(outcomes) for outcomes in self._outcomes.values())
        return Progress(done, sum(missing), time_s, energy_j, self._scope)


def _left(means: Sequence[float | None], missing: Sequence[int]) -> float | None:
    """Sum over what is missing; a point that has not run yet counts as the average one."""
    known = [mean for mean in means if mean is not None]
    if not known:
        return None
    usual = sum(known) / len(known)
    pairs = zip(means, missing, strict=True)
    return sum((usual if mean is None else mean) * count for mean, count in pairs)


def _refused(point: Point, outcome: Outcome) -> str:
    return (
        f"the command does not work at the default setting ({point.key}), so there is nothing to "
        f"compare with: {outcome.status.value}: {outcome.message}"
    )
