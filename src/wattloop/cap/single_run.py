"""The best cap of a command within one run of it, from the lines that report its progress."""

import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from wattloop.cap.callback import CapTuner
from wattloop.cap.finder import CapFinder
from wattloop.cap.online import OnlineRules, OnlineState
from wattloop.cap.search import CapJob, CapResult
from wattloop.core.errors import ConfigError, LeverError
from wattloop.core.process import stops_raise
from wattloop.store.experiments import set_experiment_status
from wattloop.trials.runner import run_group, trial_status
from wattloop.trials.trial import TrialStatus

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
