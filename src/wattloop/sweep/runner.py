"""Run a sweep: warm-up, rounds of all points, cool-down in between, resumable at any moment."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from wattloop.analyze.repeats import estimate
from wattloop.control.lever import Lever
from wattloop.core.clock import Clock, RealClock
from wattloop.core.errors import ConfigError
from wattloop.core.records import Gap
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.meters.base import Context
from wattloop.meters.registry import detect
from wattloop.store.database import Store
from wattloop.store.experiments import (
    RUNNING,
    Experiment,
    forget_trials,
    is_unfinished,
    open_experiment,
    read_trials,
    set_experiment_status,
)
from wattloop.sweep.plan import SweepPlan, SweepPoint, fingerprint
from wattloop.sweep.result import (
    RepeatedTrials,
    SweepResult,
    chosen_scope,
    repeated_trials,
    result_of,
)
from wattloop.sweep.spec import CoolDown, Repeats
from wattloop.trials.runner import TrialRunner
from wattloop.trials.trial import Trial, TrialOutcome, TrialStatus

LOOK_EVERY_S = 0.5


class Thermometer:
    """Temperatures of whatever the meters here can tell. A context manager."""

    def __init__(self, context: Context) -> None:
        self._inventory = detect(context, explain=False)

    def __enter__(self) -> "Thermometer":
        return self

    def __exit__(self, *_: object) -> None:
        self._inventory.close()

    def read_c(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for meter in self._inventory.meters:
            names = [signal.name for signal in meter.signals]
            if not any(name.endswith("/temperature") for name in names):
                continue
            for name, value in zip(names, meter.read_signals(), strict=True):
                if name.endswith("/temperature") and not isinstance(value, Gap):
                    found[name.removesuffix("/temperature")] = float(value)
        return found

    @property
    def gpus(self) -> int:
        names = {d.name for m in self._inventory.meters for d in m.domains if d.scope == "gpu"}
        return len({name.partition("/")[0] for name in names})


def cool_down(
    rule: CoolDown,
    idle_c: Mapping[str, float],
    read_c: Callable[[], Mapping[str, float]],
    clock: Clock,
) -> float:
    """Wait until devices are near `idle_c`, as the rule says; return the seconds."""
    begin_s = clock.now_s()
    if rule.pause_s:
        clock.sleep(rule.pause_s)
    if rule.within_c is not None and idle_c:
        deadline_s = clock.now_s() + rule.limit_s
        while clock.now_s() < deadline_s:
            now_c = read_c()
            warm = [n for n, c in idle_c.items() if now_c.get(n, c) > c + rule.within_c]
            if not warm:
                break
            clock.sleep(min(LOOK_EVERY_S, max(0.0, deadline_s - clock.now_s())))
    return clock.now_s() - begin_s


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """Progress of a sweep. The rest is estimated from past runs; None before the first."""

    done: int
    left: int
    time_left_s: float | None
    energy_left_j: float | None
    scope: str | None


class SweepListener(Protocol):
    """Callbacks of a sweep. Every method may do nothing."""

    def begins(self, trial: Trial, progress: SweepProgress) -> None:
        """A trial begins."""

    def ended(self, trial: Trial, outcome: TrialOutcome) -> None:
        """It has ended."""

    def cooled(self, waited_s: float) -> None:
        """Devices have cooled down."""


def estimate_progress(
    states: Sequence[RepeatedTrials], rule: Repeats, scope: str | None, overhead_s: Sequence[float]
) -> SweepProgress:
    """Return what the points still need; `overhead_s` is the time per run outside the program."""
    missing = [state.missing(rule) for state in states]
    time_s = _left([_lasted_s(state) for state in states], missing)
    between = estimate(overhead_s)
    if time_s is not None and between is not None:
        time_s += between.mean * sum(missing)
    energy_j = _left([s.energy_j.mean if s.energy_j else None for s in states], missing)
    done = sum(len(state.outcomes) for state in states)
    return SweepProgress(done, sum(missing), time_s, energy_j, scope)


def _lasted_s(state: RepeatedTrials) -> float | None:
    found = estimate([o.lasted_s for o in state.used if o.lasted_s is not None])
    return None if found is None else found.mean


def _left(means: Sequence[float | None], missing: Sequence[int]) -> float | None:
    """Sum over what is missing; a point that has not run yet counts as the average one."""
    known = [mean for mean in means if mean is not None]
    if not known:
        return None
    usual = sum(known) / len(known)
    pairs = zip(means, missing, strict=True)
    return sum((usual if mean is None else mean) * count for mean, count in pairs)


KIND = "sweep"
NONE_UNFINISHED = "no unfinished sweep of this specification and command; see 'wattloop sweep list'"
WARM_UP = "warm-up"
MAY_PASS = (TrialStatus.FAILED, TrialStatus.KILLED)
"""Programs that fail now and then are tried twice; a hang has cost a whole time limit already."""


def open_sweep(
    store: Store, plan: SweepPlan, clock: Clock, *, resume: bool = True, only: bool = False
) -> tuple[Experiment, bool]:
    """Return the unfinished sweep of the same points, or a new one; True if it is resumed.

    Raises:
        ExperimentNotFound: `only` an unfinished one is wanted, and there is none.
    """
    return open_experiment(
        store,
        KIND,
        fingerprint(plan),
        clock,
        plan.spec.to_dict(),
        name=plan.spec.name,
        facts={"axes": [axis.to_dict() for axis in plan.axes]},
        resumable=is_unfinished if resume else None,
        none=NONE_UNFINISHED if only else "",
    )


@dataclass
class Sweep:
    """Runs a plan as one experiment."""

    plan: SweepPlan
    experiment: Experiment
    store: Store
    settings: Settings
    _: KW_ONLY
    listener: SweepListener
    outputs: Path | None = None
    state_directory: Path | None = None
    clock: Clock = field(default_factory=RealClock)

    def __post_init__(self) -> None:
        self._outcomes: dict[str, list[TrialOutcome]] = {p.key: [] for p in self.plan.points}
        self._scope: str | None = self.plan.spec.scope
        self._overhead_s: list[float] = []

    def run(self, *, retry_failed: bool = False) -> SweepResult:
        """Run what has not been run yet.

        One that stopped because the default setting did not work tries again what failed.
        Interrupted (ctrl-C, SIGTERM) it puts the levers back and leaves the rest for later.

        Raises:
            ConfigError: the command does not work even at the default setting.
            LeverError: levers cannot be taken or put back.
        """
        identity = self.experiment.experiment_id
        if retry_failed or self.experiment.status == "failed":
            forget_trials(self.store, identity, keep=("ok", RUNNING))
        starts = int(self.experiment.facts.get("starts", 0))
        status = "interrupted"
        try:
            with ExitStack() as stack:
                context = Context(Host.from_environment(), self.settings, self.clock)
                thermometer = stack.enter_context(Thermometer(context))
                idle_c = self.experiment.facts.get("idle_c") or thermometer.read_c()
                facts = {"starts": starts + 1, "idle_c": idle_c}
                set_experiment_status(self.store, identity, RUNNING, facts)
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
            set_experiment_status(self.store, identity, status, facts)
        return replace(result, experiment=replace(result.experiment, status=status))

    def result(self) -> SweepResult:
        return result_of(self.experiment, read_trials(self.store, self.experiment.experiment_id))

    # -- inside ----------------------------------------------------------------------------

    def _runner(self) -> TrialRunner:
        levers: dict[str, Lever] = {}
        for axis in self.plan.axes:
            levers |= {lever.name: lever for lever in axis.levers}
        return TrialRunner(
            self.store,
            self.experiment.experiment_id,
            self.settings,
            levers=list(levers.values()),
            outputs=self.outputs,
            state_directory=self.state_directory,
        )

    def _cooler(
        self, idle_c: Mapping[str, float], read_c: Callable[[], Mapping[str, float]]
    ) -> Callable[[], None]:
        def cool() -> None:
            if self._overhead_s:
                waited_s = cool_down(self.plan.spec.cooldown, idle_c, read_c, self.clock)
                self.listener.cooled(waited_s)

        return cool

    def _warm_up(self, runner: TrialRunner, start: int, cool: Callable[[], None]) -> None:
        """Caches, compilers and the cards' own warmth; these runs are kept but not counted.

        After every start: a sweep that is resumed next morning finds a cold machine.
        """
        if not self._anything_left(runner):
            return
        for point in self.plan.references:
            for number in range(self.plan.spec.warmup):
                label = f"{WARM_UP} {start}.{number}"
                outcome = self._paid_run(runner, self.plan.trial(point, label), cool)
                if outcome.status in MAY_PASS:
                    again = self.plan.trial(point, f"{label} again")
                    outcome = self._paid_run(runner, again, cool)
                if not outcome.ok:
                    raise ConfigError(_refused(point, outcome))

    def _rounds(self, runner: TrialRunner, cool: Callable[[], None]) -> None:
        rule = self.plan.spec.repeats
        for number in range(rule.most + max(1, rule.most // 2)):
            for point in self.plan.block(number):
                if not self._state(point).missing(rule):
                    continue
                trial = self.plan.trial(point, str(number))
                outcome = runner.ended(trial.key)
                if outcome is None:
                    outcome = self._paid_run(runner, trial, cool)
                self._outcomes[point.key].append(outcome)
                self._scope = self._scope or chosen_scope([outcome])
                if point.is_default and self._hopeless(point, outcome):
                    raise ConfigError(_refused(point, outcome))

    def _hopeless(self, point: SweepPoint, last: TrialOutcome) -> bool:
        state = self._state(point)
        if last.ok or state.used:
            return False
        return last.status not in MAY_PASS or state.given_up

    def _paid_run(
        self, runner: TrialRunner, trial: Trial, cool: Callable[[], None]
    ) -> TrialOutcome:
        begin_s = self.clock.now_s()
        cool()
        self.listener.begins(trial, self._progress())
        outcome = runner.run(trial)
        took_s = self.clock.now_s() - begin_s
        self._overhead_s.append(max(0.0, took_s - (outcome.lasted_s or 0.0)))
        self.listener.ended(trial, outcome)
        return outcome

    def _anything_left(self, runner: TrialRunner) -> bool:
        rule = self.plan.spec.repeats
        for point in self.plan.points:
            numbers = range(rule.most + max(1, rule.most // 2))
            found = [runner.ended(self.plan.trial(point, str(n)).key) for n in numbers]
            known = [outcome for outcome in found if outcome is not None]
            scope = self._scope or chosen_scope(known)
            if repeated_trials(known, scope).missing(rule):
                return True
        return False

    def _state(self, point: SweepPoint) -> RepeatedTrials:
        return repeated_trials(self._outcomes[point.key], self._scope)

    def _progress(self) -> SweepProgress:
        states = [self._state(point) for point in self.plan.points]
        return estimate_progress(states, self.plan.spec.repeats, self._scope, self._overhead_s)


def _refused(point: SweepPoint, outcome: TrialOutcome) -> str:
    return (
        f"the command does not work at the default setting ({point.key}), so there is nothing to "
        f"compare with: {outcome.status.value}: {outcome.message}"
    )
