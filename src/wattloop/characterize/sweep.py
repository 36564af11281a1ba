"""Doing a sweep: warm-up, rounds of all points, cool-down in between, resumable at any moment."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from wattloop.characterize.cooling import Thermometer, cool_down
from wattloop.characterize.repeats import Repeated, repeated
from wattloop.characterize.sweep_plan import Plan, Point, fingerprint
from wattloop.characterize.sweep_progress import Listener, Progress, progress_of
from wattloop.characterize.sweep_result import SweepResult, chosen_scope, result_of
from wattloop.control.lever import Lever
from wattloop.core.clock import Clock, RealClock
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.meters.base import Context
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
from wattloop.trials.outcome import Outcome, TrialStatus
from wattloop.trials.runner import TrialRunner
from wattloop.trials.trial import Trial

__all__ = ["Sweep", "open_experiment"]

KIND = "sweep"
WARM_UP = "warm-up"
MAY_PASS = (TrialStatus.FAILED, TrialStatus.KILLED)
"""Programs that fail now and then are tried twice; a hang has cost a whole time limit already."""


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
        self._beside_s: list[float] = []

    def run(self, *, retry_failed: bool = False) -> SweepResult:
        """Run what has not been run yet.

        One that stopped because the default setting did not work tries again what failed.
        Interrupted (ctrl-C, SIGTERM) it puts the levers back and leaves the rest for later.

        Raises:
            ConfigError: the command does not work even at the default setting.
            LeverError: levers cannot be taken or put back.
        """
        identity = self._experiment.experiment_id
        if retry_failed or self._experiment.status == "failed":
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
            if self._beside_s:
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
                label = f"{WARM_UP} {start}.{number}"
                outcome = self._paid_run(runner, self._plan.trial(point, label), cool)
                if outcome.status in MAY_PASS:
                    again = self._plan.trial(point, f"{label} again")
                    outcome = self._paid_run(runner, again, cool)
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
                if point.is_default and self._hopeless(point, outcome):
                    raise ConfigError(_refused(point, outcome))

    def _hopeless(self, point: Point, last: Outcome) -> bool:
        """Whether a point has never worked and is not going to."""
        state = self._state(point)
        if last.ok or state.used:
            return False
        return last.status not in MAY_PASS or state.given_up

    def _paid_run(self, runner: TrialRunner, trial: Trial, cool: Callable[[], None]) -> Outcome:
        begin_s = self._clock.now_s()
        cool()
        self._listener.begins(trial, self._progress())
        outcome = runner.run(trial)
        took_s = self._clock.now_s() - begin_s
        self._beside_s.append(max(0.0, took_s - (outcome.lasted_s or 0.0)))
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
        return progress_of(states, self._plan.spec.repeats, self._scope, self._beside_s)


def _refused(point: Point, outcome: Outcome) -> str:
    return (
        f"the command does not work at the default setting ({point.key}), so there is nothing to "
        f"compare with: {outcome.status.value}: {outcome.message}"
    )
