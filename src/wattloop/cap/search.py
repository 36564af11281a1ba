"""The best cap of a command: one measured run per probe, resumable at any moment."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

from wattloop.cap.finder import CapChoice, CapFinder
from wattloop.cap.gpus import CapPlan, job_energy_j
from wattloop.core.clock import Clock
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.store.database import Store
from wattloop.store.experiments import (
    Experiment,
    end_trial,
    forget_trials,
    read_trials,
    set_experiment_status,
)
from wattloop.trials.runner import TrialRunner, open_experiment
from wattloop.trials.trial import Trial, TrialOutcome, TrialStatus

KIND = "cap"


@dataclass(frozen=True, slots=True)
class CapResult:
    """Result of a cap search.

    Attributes:
        provenance: of the energy: `measured`, or `simulated` on the virtual GPU.
        failure: how the command failed after the cap had been found.
    """

    choice: CapChoice
    finder: CapFinder
    plan: CapPlan
    experiment_id: str
    provenance: str = ""
    failure: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "experiment_id": self.experiment_id,
            "metric": self.finder.metric,
            "k": self.finder.k if self.finder.metric == "eds" else None,
            "scope": "gpu",
            "provenance": self.provenance,
            "failure": self.failure or None,
            "reference_w": self.finder.reference_w,
            **self.plan.to_dict(),
            "choice": self.choice.to_dict(),
            "probe_count": len(self.finder.probes),
            "probe_limit": self.finder.limit,
            "probes": self.finder.to_dict()["probes"],
        }


def open_search(
    store: Store,
    plan: CapPlan,
    finder: CapFinder,
    command: Sequence[str],
    clock: Clock,
    *,
    mode: str = "runs",
    new: bool = False,
) -> tuple[Experiment, bool]:
    """The unfinished search of the same caps and command, or a new one; whether it is resumed."""
    spec = {**plan.to_dict(), **finder.to_dict(), "command": list(command), "mode": mode}
    text = json.dumps([KIND, spec], sort_keys=True, default=str)
    mark = hashlib.sha256(text.encode()).hexdigest()[:16]
    return open_experiment(store, KIND, mark, clock, spec, resume=not new)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapJob:
    """The command, caps and store of a search.

    Attributes:
        window: the part of the command that counts; empty for all of it.
    """

    plan: CapPlan
    finder: CapFinder
    command: Sequence[str]
    experiment: Experiment
    store: Store
    settings: Settings
    timeout_s: float | None = None
    window: str = ""


@dataclass
class CapSearch:
    """Runs a command at the caps that a finder asks for.

    Attributes:
        began: called with the cap and the number of the probe before each run.
        ended: called with the cap and the outcome.
    """

    job: CapJob
    _: KW_ONLY
    began: Callable[[float, int], None] = lambda cap_w, number: None
    ended: Callable[[float, TrialOutcome], None] = lambda cap_w, outcome: None
    outputs: Path | None = None
    state_directory: Path | None = None
    provenance: str = field(default="", init=False)

    def run(self) -> CapResult:
        """Probe until the finder is done; caps are restored. Raises ConfigError and LeverError."""
        identity = self.job.experiment.experiment_id
        forget_trials(self.job.store, identity, keep=("ok", "running"))
        set_experiment_status(self.job.store, identity, "running")
        status = "interrupted"
        try:
            with TrialRunner(
                self.job.store,
                identity,
                self.job.settings,
                levers=self.job.plan.levers,
                outputs=self.outputs,
                state_directory=self.state_directory,
            ) as runner:
                self._probe_all(runner)
            choice = self.job.finder.best()
            status = "finished"
        except ConfigError:
            status = "failed"
            raise
        finally:
            facts = {"finder": self.job.finder.to_dict()}
            if status == "finished":
                facts["choice"] = choice.to_dict()
            set_experiment_status(self.job.store, identity, status, facts)
        return CapResult(choice, self.job.finder, self.job.plan, identity, self.provenance)

    def _probe_all(self, runner: TrialRunner) -> None:
        while (cap_w := self.job.finder.ask()) is not None:
            number = len(self.job.finder.probes)
            trial = Trial(
                key=f"{number} {cap_w:g} W",
                settings=self.job.plan.settings(cap_w),
                command=list(self.job.command),
                timeout_s=self.job.timeout_s,
                window=self.job.window,
                name=f"cap {cap_w:g} W",
            )
            self.began(cap_w, number)
            outcome = runner.run(trial)
            self.ended(cap_w, outcome)
            if not outcome.ok or not outcome.time_s:
                raise ConfigError(
                    f"the command at {cap_w:g} W: {outcome.message or outcome.status.value}. Caps "
                    "are back as they were; probes so far are kept and the same command goes on "
                    "with them"
                )
            try:
                energy_j, noise = job_energy_j(outcome, self.job.plan.devices)
            except ConfigError:
                self._pay_again(trial.key)
                raise
            self.provenance = _provenance(outcome, self.job.plan.devices)
            own = math.hypot(self.job.finder.noise, noise)
            self.job.finder.tell(cap_w, outcome.time_s, energy_j, own)

    def _pay_again(self, key: str) -> None:
        """Discard a run without energy, so that a resumed search measures it again."""
        identity = self.job.experiment.experiment_id
        for record in read_trials(self.job.store, identity):
            if record.key == key:
                failed = replace(record, status=TrialStatus.FAILED.value)
                end_trial(self.job.store, identity, failed)


def _provenance(outcome: TrialOutcome, devices: Sequence[str]) -> str:
    kinds = {str(d["provenance"]) for d in outcome.domains if d["name"] in devices}
    return ", ".join(sorted(kinds))
