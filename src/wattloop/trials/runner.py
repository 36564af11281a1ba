"""Run trials: set levers, measure the program, record the outcome before the next one begins."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from wattloop.control.lever import Lever
from wattloop.control.session import LeverSession, lever_session
from wattloop.core.clock import Clock
from wattloop.core.errors import LeverError, StoreLocked
from wattloop.core.process import Deferral, stops_deferred
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.database import Store
from wattloop.store.experiments import (
    Experiment,
    TrialRecord,
    begin_trial,
    create_experiment,
    end_trial,
    new_experiment_id,
    read_trials,
    same_experiments,
)
from wattloop.store.journal_import import import_orphaned
from wattloop.trials.lock import (
    TRIAL_VARIABLE,
    end_leftovers,
    lock_experiment,
    program_variables,
)
from wattloop.trials.measurement import measure_call, measure_command
from wattloop.trials.process import stops_raise
from wattloop.trials.trial import Trial, TrialOutcome, TrialStatus


def open_experiment(
    store: Store,
    kind: str,
    fingerprint: str,
    clock: Clock,
    spec: dict[str, Any],
    *,
    name: str = "",
    facts: Mapping[str, Any] | None = None,
    resume: bool = True,
) -> tuple[Experiment, bool]:
    """Return the unfinished experiment of that fingerprint, or a new one; True if it is resumed."""
    if resume:
        for known in same_experiments(store, fingerprint):
            if known.status != "finished":
                return known, True
    wall_s = clock.wall_s()
    experiment = Experiment(
        experiment_id=new_experiment_id(kind, wall_s),
        kind=kind,
        name=name,
        created_wall_s=wall_s,
        fingerprint=fingerprint,
        spec=spec,
        facts={"host": Host.from_environment().name, **(facts or {})},
    )
    create_experiment(store, experiment)
    return experiment, False


@dataclass
class TrialRunner:
    """Runs the trials of one experiment, each once, whatever is killed in between.

    Use it as a context manager: entering locks the levers, leaving restores them. Between trials
    they keep the last trial's values.
    """

    store: Store
    experiment_id: str
    settings: Settings
    _: KW_ONLY
    levers: Sequence[Lever] = ()
    state_directory: Path | None = None
    outputs: Path | None = None

    def __post_init__(self) -> None:
        self._held: LeverSession | None = None
        self._stack = ExitStack()
        self._ended: dict[str, TrialOutcome] = {}

    def __enter__(self) -> "TrialRunner":
        with ExitStack() as stack:
            stack.enter_context(stops_raise())
            stack.enter_context(lock_experiment(self.store, self.experiment_id))
            end_leftovers(self.store, self.experiment_id)
            with stops_deferred():
                self._ended = self._known()
            if self.levers:
                held = lever_session(self.levers, directory=self.state_directory)
                self._held = stack.enter_context(held)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._held = None
        self._stack.__exit__(kind, error, traceback)

    def ended(self, key: str) -> TrialOutcome | None:
        """The outcome of a trial that was paid for already, now or before we were started."""
        return self._ended.get(key)

    def run(self, trial: Trial) -> TrialOutcome:
        """Run the trial's command measured, or hand back what it gave when it ran before."""
        return self._once(trial, lambda stops: self._command(trial, stops))

    def call(
        self, trial: Trial, function: Callable[[], Mapping[str, float] | None]
    ) -> TrialOutcome:
        """As `run`, with a function of this process; the numbers it returns are kept as metrics.

        After `timeout_s` the function is interrupted at its next line of Python, if it runs in
        the main thread; a call that does not return from a library cannot be interrupted.
        """
        tags = self._tags(trial)
        return self._once(
            trial, lambda stops: measure_call(trial, function, self.settings, stops, tags)
        )

    # -- inside ----------------------------------------------------------------------------

    def _known(self) -> dict[str, TrialOutcome]:
        return {
            record.key: TrialOutcome.from_dict(record.outcome)
            for record in read_trials(self.store, self.experiment_id)
            if record.ended
        }

    def _once(self, trial: Trial, measured: Callable[[Deferral], TrialOutcome]) -> TrialOutcome:
        known = self._ended.get(trial.key)
        if known is not None:
            return known
        # Only the program itself is interrupted: what it gave is written down all the same.
        with stops_deferred() as stops:
            record = begin_trial(self.store, self.experiment_id, trial.key, trial.to_dict())
            if record.ended:  # another process has resumed the same experiment
                outcome = TrialOutcome.from_dict(record.outcome)
            else:
                outcome = self._set(trial) or measured(stops)
                self._keep(record, outcome)
            self._ended[trial.key] = outcome
        return outcome

    def _set(self, trial: Trial) -> TrialOutcome | None:
        if not trial.settings:
            return None
        if self._held is None:
            raise LeverError("TrialRunner: levers are held inside 'with' only")
        try:
            self._held.set(trial.settings)
        except LeverError as error:
            return TrialOutcome(status=TrialStatus.NOT_SET, message=str(error))
        return None

    def _command(self, trial: Trial, stops: Deferral) -> TrialOutcome:
        return measure_command(
            trial,
            self.settings,
            self.store,
            stops,
            tags=self._tags(trial),
            environment={
                TRIAL_VARIABLE: f"{self.experiment_id}/{trial.key}",
                **program_variables(self.store, self.experiment_id),
            },
            output=self._output_of(trial),
        )

    def _tags(self, trial: Trial) -> dict[str, str]:
        return {"experiment": self.experiment_id, "trial": trial.key}

    def _keep(self, record: TrialRecord, outcome: TrialOutcome) -> None:
        end_trial(
            self.store,
            self.experiment_id,
            TrialRecord(
                key=record.key,
                number=record.number,
                status=outcome.status.value,
                settings=record.settings,
                outcome=outcome.to_dict(),
                run_id=outcome.run_id,
            ),
        )
        # While the store is busy the run waits in its journal for the next import.
        with suppress(StoreLocked):
            import_orphaned(self.store, finalize_orphaned_run)

    def _output_of(self, trial: Trial) -> Path | None:
        if self.outputs is None:
            return None
        self.outputs.mkdir(parents=True, exist_ok=True)
        name = "".join(c if c.isalnum() or c in "=.-" else "_" for c in trial.key)
        return self.outputs / f"{name[:150]}.log"
