"""The best cap of a command: by one measured run per probe, or within a single run of it."""

import hashlib
import json
import math
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

from wattloop.cap.callback import CapTuner
from wattloop.cap.finder import CapChoice, CapFinder
from wattloop.cap.gpus import CapPlan, job_energy_j
from wattloop.cap.online import OnlineRules, OnlineState
from wattloop.core.clock import Clock
from wattloop.core.errors import ConfigError, LeverError
from wattloop.core.process import stops_raise
from wattloop.core.settings import Settings
from wattloop.measure.command import short_name
from wattloop.store.database import Store
from wattloop.store.experiments import (
    Experiment,
    end_trial,
    forget_trials,
    is_unfinished,
    open_experiment,
    read_trials,
    set_experiment_status,
)
from wattloop.trials.runner import TrialRunner, run_group, trial_status
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
    name, resumable = short_name(command), None if new else is_unfinished
    return open_experiment(store, KIND, mark, clock, spec, name=name, resumable=resumable)


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
                    "are restored; finished probes are stored, and the same command continues "
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


# Within one run, from the lines that report the command's progress.

LOOK_EVERY_S = 0.02


class ProgressLines:
    r"""Finds progress in lines of output.

    A line that matches is one unit. Where the pattern has a group that is a number, such as
    `step (\d+)`, progress is how much it has grown; where it falls, an epoch has begun.

    Raises:
        ConfigError: not a regular expression.
    """

    def __init__(self, pattern: str) -> None:
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"--progress {pattern}: not a regular expression ({error})") from None
        self._last: float | None = None
        self.seen = 0

    def units(self, line: str) -> float | None:
        """Progress that a line tells; None when it tells none, 0 when it only sets the count."""
        match = self._pattern.search(line)
        if match is None:
            return None
        self.seen += 1
        try:
            count = float(match.group(1))
        except (IndexError, TypeError, ValueError):
            return 1.0
        before, self._last = self._last, count
        return max(0.0, count - before) if before is not None else 0.0


class CapRun:
    """Runs a command once and finds its cap meanwhile.

    Args:
        progress: pattern of the lines that tell of progress.
        precision, most_s: of each probe, relative; and the longest one lasts.
        apply: whether the cap found is kept for the rest of the run.
    """

    def __init__(
        self,
        job: CapJob,
        *,
        progress: str,
        precision: float = 0.01,
        most_s: float = 60.0,
        apply: bool = False,
        echo: bool = True,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._lines = ProgressLines(progress)
        plan, finder = job.plan, job.finder
        self._plan, self._command = plan, list(job.command)
        known = job.experiment.facts.get("finder")
        self._finder = finder if known is None else CapFinder.from_dict(known)
        self._experiment, self._store = job.experiment, job.store
        self._timeout_s, self._echo, self._report = job.timeout_s, echo, report
        least_s = min(4.0, most_s)
        self._tuner = CapTuner(
            finder.metric,
            finder.k,
            gpus=",".join(name.removeprefix("gpu:") for name in plan.devices),
            caps=",".join(f"{cap:g}" for cap in plan.caps_w),
            rules=OnlineRules(
                precision=precision,
                least_s=least_s,
                most_s=most_s,
                settle_s=min(1.0, least_s / 2),
                watch_s=max(20.0, 2 * least_s),
                watch=apply,
            ),
            most_probes=finder.most_probes,
            report=lambda text: report(f"wattloop: {text}"),
            probed=self._keep,
            apply=apply,
            settings=job.settings,
            finder=self._finder,
        )

    def run(self) -> CapResult:
        """Run the command to its end; the caps are put back then at the latest.

        Raises:
            ConfigError: energy cannot be had, or the command ended before anything was found.
            LeverError: a GPU's limit cannot be set, or another process holds it.
        """
        identity = self._experiment.experiment_id
        status = "interrupted"
        try:
            with stops_raise(), tempfile.TemporaryDirectory(prefix="wattloop-cap-") as folder:
                message = self._followed(Path(folder) / "output")
            result = self._result(message)
            status = "finished"
        except (ConfigError, LeverError):
            status = "failed"
            raise
        finally:
            set_experiment_status(self._store, identity, status)
        return result

    # -- inside ----------------------------------------------------------------------------

    def _followed(self, output: Path) -> str:
        """Run the command while the tuner works; return the failure of the command, if any."""
        output.touch()
        ended = threading.Event()
        reader = threading.Thread(target=self._follow, args=(output, ended), daemon=True)
        # Python programs would otherwise keep their lines until they have kilobytes of them.
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with self._tuner.begin_or_raise():
            reader.start()
            try:
                end = run_group(
                    self._command, environment, timeout_s=self._timeout_s, output=output
                )
            finally:
                ended.set()
                reader.join()
        status, facts = trial_status(end, self._timeout_s, output)
        return "" if status is TrialStatus.OK else str(facts.get("message") or status.value)

    def _follow(self, output: Path, ended: threading.Event) -> None:
        rest = ""
        with output.open("r", errors="replace", newline="") as file:
            while True:
                last = ended.is_set()
                text = file.read()
                if text and self._echo:
                    sys.stdout.write(text)
                    sys.stdout.flush()
                *lines, rest = (rest + text).replace("\r", "\n").split("\n")
                self._saw(lines)
                if last and not text:
                    return
                if not text:
                    ended.wait(LOOK_EVERY_S)

    def _saw(self, lines: Sequence[str]) -> None:
        """Count lines that came together as one step: when each was printed is unknown."""
        total = 0.0
        for line in lines:
            units = self._lines.units(line)
            if units == 0:
                if total:
                    self._tuner.step(total)
                self._tuner.interrupt()
                total = 0.0
            total += units or 0.0
        if total:
            self._tuner.step(total)

    def _keep(self, finder: CapFinder) -> None:
        """Store the first search only: a later execution of the command begins with that work."""
        pilot = self._tuner.pilot
        if pilot is not None and pilot.searches:
            return
        self._finder = finder
        facts = {"finder": finder.to_dict()}
        set_experiment_status(self._store, self._experiment.experiment_id, "running", facts)

    def _result(self, message: str) -> CapResult:
        pilot = self._tuner.pilot
        choice = self._tuner.choice
        if message and choice is not None and choice.unfinished:
            choice = None
        elif choice is None and self._finder.probes and not message:  # the search started again
            choice = self._finder.best()
            self._report("wattloop: the command ended before the search did")
        if choice is None or pilot is None:
            why = (
                message
                or self._tuner.fault
                or (
                    f"it ended before the first probe did: {self._lines.seen} lines matched "
                    "--progress, and a probe takes at least 5 steps and 4 seconds"
                )
            )
            raise ConfigError(f"no cap found: {why}. Probes so far are kept")
        if pilot.searches and pilot.state is OnlineState.PROBING:
            self._report("wattloop: the command ended before the cap of the changed work was found")
        return CapResult(
            choice,
            pilot.found_by or self._finder,
            self._plan,
            self._experiment.experiment_id,
            self._tuner.provenance,
            message,
        )
