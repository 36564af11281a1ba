"""Power caps of jobs, set through the control daemon by a thread that also queries Slurm."""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from wattloop.control.daemon.client import LOW_POWER, Client, connect
from wattloop.control.daemon.job_gpus import JobGpus, write_job_gpus
from wattloop.control.daemon.protocol import PermissionDenied
from wattloop.core.errors import ConfigError, WattloopError
from wattloop.core.files import atomic_write
from wattloop.core.records import Scope, highest_power_w
from wattloop.fleet.agent.config import AgentConfig, ControlConfig, SaveConfig
from wattloop.fleet.agent.job_facts import JobFacts, JobSource

# Power caps of jobs, set through the control daemon.
#
# The lease on every card is this agent's connection to the daemon: if either dies, the daemon (or
# its guardian) puts every card back. A cap that was lost that way is set again when the daemon is
# back and the job still runs.

Cap = float | str
HIGHEST_W = highest_power_w(Scope.GPU)
_log = logging.getLogger("wattloop.agent")


def choose_cap(facts: JobFacts | None, default_cap: str | None) -> tuple[Cap | None, str]:
    """Return the cap of a job's GPUs and its source; None for no cap.

    The operator's side decides (AdminComment), then the job's user, then the default. A job whose
    own words imitate the operator's gets the low-power mode: it shall gain nothing by it.
    """
    if facts is not None and facts.tampered:
        return LOW_POWER, "its name or comment imitates AdminComment: refused, low power instead"
    asked = None if facts is None else facts.cap.get("cap")
    if isinstance(asked, str):
        return daemon_setting(asked), f"{asked}, as its pod asks"
    chosen = None if facts is None else facts.cap.get("cap_w")
    if isinstance(chosen, int | float) and 0 < chosen <= HIGHEST_W and chosen is not True:
        return float(chosen), "chosen by the scheduler"
    if facts is not None and facts.low_power:
        return LOW_POWER, "low power, as its user asked"
    if default_cap is not None:
        return daemon_setting(default_cap), f"the operator's default, {default_cap}"
    return None, ""


def daemon_setting(text: str) -> Cap:
    """Convert `-10%` to the daemon's form: `90%`."""
    words = text.replace(" ", "")
    if words.startswith("-") and words.endswith("%"):
        return f"{100 - float(words[1:-1]):g}%"
    return words


class JobCaps:
    """Caps in force on this node. Used by one thread.

    Args:
        folder: of the agent; `caps` in it tells prologs to wait, `ready/` that they need not.
    """

    def __init__(self, config: ControlConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._client: Client | None = None
        self._wanted: dict[str, tuple[int, dict[str, Cap]]] = {}
        self._set: dict[str, set[str]] = {}
        self._changed: set[str] = set()
        self.fault = ""
        """Why caps cannot be set now; empty when they can."""
        self.refusals: dict[str, str] = {}
        """Why the daemon's rules refused the cap of a job that its user chose."""

    def start(self) -> None:
        """Make prologs wait for their caps from now on."""
        ready = self._folder / "ready"
        ready.mkdir(mode=0o700, exist_ok=True)
        for path in ready.iterdir():
            path.unlink(missing_ok=True)
        atomic_write(self._folder / "caps", f"{os.getpid()}\n")

    def begin(self, job: str, uid: int, gpus: Sequence[str], cap: Cap | None) -> dict[str, float]:
        """Set the caps of a job and release its prolog; return the watts by GPU."""
        try:
            if cap is None or not gpus:
                self._restore(job)  # it may have had one: the scheduler took it back
                return {}
            wanted = (uid, {f"{gpu}/power_limit": cap for gpu in gpus})
            if self._wanted.get(job, wanted) != wanted:
                self._changed.add(job)  # another cap for the same cards
            self._wanted[job] = wanted
            return self._apply(job)
        finally:
            self.release_prolog(job)

    def release_prolog(self, job: str) -> None:
        with suppress(OSError):
            (self._folder / "ready" / job).touch(mode=0o600)

    def end(self, job: str) -> None:
        self._restore(job)
        with suppress(OSError):
            (self._folder / "ready" / job).unlink(missing_ok=True)

    def set_again(self) -> None:
        """Set caps again that were lost with a crashed daemon."""
        if self._client is not None and self._client.held:
            try:
                self._client.hello()  # a connection that is gone is noticed when it is used
            except WattloopError as error:
                self._lost(str(error))
                return
        for job in list(self._wanted):
            self._apply(job)

    def write_owners(self, jobs: Sequence[JobGpus]) -> None:
        """Write the owners of GPUs for the daemon."""
        if self._config.job_gpus is not None:
            try:
                write_job_gpus(Path(self._config.job_gpus), jobs)
            except OSError as error:
                self._lost(f"{self._config.job_gpus}: {error.strerror}")

    def close(self) -> None:
        """Restore everything and release prologs."""
        with suppress(OSError):
            (self._folder / "caps").unlink(missing_ok=True)
        if self._client is not None:
            self._client.close()
            self._client = None

    def _apply(self, job: str) -> dict[str, float]:
        uid, settings = self._wanted[job]
        done: dict[str, float] = {}
        try:
            if self._client is None:
                self._client = connect(self._config.socket)
            for lever, cap in settings.items():
                is_set = lever in self._client.held and lever in self._set.get(job, ())
                if is_set and job not in self._changed:
                    continue
                change = self._client.set(lever, cap, job=job, uid=uid if uid >= 0 else None)
                self._set.setdefault(job, set()).add(lever)
                if isinstance(change.after, float):
                    done[lever.partition("/")[0]] = change.after
        except (PermissionDenied, ConfigError) as error:
            # for good: its cards are as without a cap, until it asks for another one
            self._lost(f"job {job}: {error}")
            self.refusals[job] = str(error)
            self._restore(job)
            return {}
        except WattloopError as error:
            self._lost(f"job {job}: {error}")
            return done
        self._changed.discard(job)
        self.fault = ""
        return done

    def _restore(self, job: str) -> None:
        self._wanted.pop(job, None)
        self._changed.discard(job)
        for lever in sorted(self._set.pop(job, ())):
            try:
                if self._client is not None and lever in self._client.held:
                    self._client.release(lever)
            except WattloopError as error:
                self._lost(f"{lever} of job {job}: {error}")

    def _lost(self, fault: str) -> None:
        if fault != self.fault:
            _log.warning("caps: %s", fault)
        self.fault = fault


# Savers of jobs. The agent decides which jobs have one; `cap` has the saver itself.


class SavedJob(NamedTuple):
    """A job that may have a saver."""

    run_id: str
    job: str
    uid: int
    user: str
    name: str
    gpus: tuple[str, ...]


class JobSaver(Protocol):
    """Savers of the jobs of a node. No call waits, and none raises."""

    def begin(self, job: SavedJob, refusal: str) -> None:
        """Begin with a job; `refusal` is why it is left alone, empty if it is not."""
        ...

    def end(self, run_id: str) -> None:
        """Restore the levers of a job that has ended."""
        ...

    def result(self, run_id: str) -> dict[str, Any] | None:
        """Return the saving of a job for its record; None while it is not known."""
        ...

    def forget(self, run_id: str) -> None:
        """Drop what is known of a job whose record is written."""
        ...

    def close(self) -> None:
        """Restore the levers of all jobs."""
        ...


def save_refusal(
    rules: SaveConfig, facts: JobFacts | None, cap_w: Mapping[str, float], sharing: str
) -> str:
    """Return why a job has no saver; empty if it may have one.

    Args:
        rules: the operator's.
        facts: the controller's; without them the job's user may have objected.
        cap_w: caps that were set for the job.
        sharing: another job that has one of its GPUs.
    """
    if facts is None:
        return "Slurm did not answer, so that its user may have objected"
    said = facts.facts
    nodes = said.get("nodes", "1")
    reasons = {
        "its user objects (wattloop:no-save)": facts.no_save,
        "its name or comment imitates AdminComment": facts.tampered,
        f"the operator's rules leave out user {said.get('user')}": said.get("user")
        in rules.exclude_users,
        f"the operator's rules leave out partition {said.get('partition')}": said.get("partition")
        in rules.exclude_partitions,
        "its power cap was chosen otherwise": bool(cap_w),
        f"job {sharing} has one of its GPUs as well": bool(sharing),
        f"it runs on {nodes} nodes, which 'wattloop run --save' sets alike": nodes != "1",
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


CHECK_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class JobSetup:
    """Facts and caps of a job that began."""

    run_id: str
    facts: JobFacts | None
    reason: str = ""
    cap_w: dict[str, float] = field(default_factory=dict)
    cap_why: str = ""


class _Job(NamedTuple):
    run_id: str
    job: str
    uid: int
    gpus: tuple[str, ...]


class JobSetupThread:
    """Thread that queries Slurm and sets caps; answers wait until they are fetched."""

    def __init__(self, config: AgentConfig, folder: Path, source: JobSource) -> None:
        self._config, self._source = config, source
        self._caps = None if config.control is None else JobCaps(config.control, folder)
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[JobSetup] = queue.SimpleQueue()
        self._running: dict[str, tuple[_Job, float]] = {}
        """Running jobs, and when their cap is checked again."""
        self._thread = threading.Thread(target=self._work, name="wattloop-setup", daemon=True)

    def start(self) -> None:
        if self._caps is not None:
            self._caps.start()
        self._thread.start()

    def job_began(self, run_id: str, job: str, uid: int, gpus: Sequence[str]) -> None:
        """Query the job's facts and set its cap."""
        self._tasks.put(partial(self._set_up, _Job(run_id, job, uid, tuple(gpus))))

    def ask_facts(self, run_id: str, job: str) -> None:
        """Query the facts of a job that has ended."""
        self._tasks.put(partial(self._answer_facts, run_id, job))

    def job_ended(self, job: str) -> None:
        if self._caps is not None:
            self._tasks.put(partial(self._end, job))

    def set_owners(self, jobs: list[JobGpus]) -> None:
        """Pass the owners of GPUs to the control daemon."""
        if self._caps is not None:
            self._tasks.put(partial(self._caps.write_owners, jobs))

    def answers(self) -> list[JobSetup]:
        found = []
        while True:
            try:
                found.append(self._answers.get_nowait())
            except queue.Empty:
                return found

    @property
    def fault(self) -> str:
        """Return why caps cannot be set now."""
        return "" if self._caps is None else self._caps.fault

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop and restore all caps."""
        self._tasks.put(None)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        check_s = time.monotonic() + CHECK_EVERY_S
        while True:
            if time.monotonic() >= check_s:  # also on a node where there is always something to do
                if self._caps is not None:
                    self._guarded(self._caps.set_again)
                    self._guarded(self._recap)
                check_s = time.monotonic() + CHECK_EVERY_S
            try:
                task = self._tasks.get(timeout=max(0.0, check_s - time.monotonic()))
            except queue.Empty:
                continue
            if task is None:
                break
            self._guarded(task)
        if self._caps is not None:
            self._guarded(self._caps.close)

    def _end(self, job: str) -> None:
        self._running.pop(job, None)
        if self._caps is not None:
            self._caps.end(job)

    def _answer_facts(self, run_id: str, job: str) -> None:
        facts, reason = self._source.ask(job, False)
        self._answers.put(JobSetup(run_id, facts, reason))

    def _set_up(self, task: _Job, *, again: bool = False) -> None:
        facts, reason, cap_w, why = None, "", {}, ""
        try:
            facts, reason = self._source.ask(task.job, self._caps is not None)
            if again and reason:  # no answer: the previous choice still holds
                self._plan_recap(task)
                return
            control = self._config.control
            if self._caps is not None and control is not None:
                cap, why = choose_cap(facts, control.default_cap)
                cap_w = self._caps.begin(task.job, task.uid, task.gpus, cap)
                if refusal := self._caps.refusals.pop(task.job, ""):
                    self._source.refused(task.job, refusal)
        except Exception as error:  # noqa: BLE001 - a job is measured whatever happens here
            reason = f"{type(error).__name__}: {error}"
            _log.exception("job %s", task.job)
        self._answers.put(JobSetup(task.run_id, facts, reason, cap_w, why))
        self._plan_recap(task)

    def _plan_recap(self, task: _Job) -> None:
        every_s = None if self._config.control is None else self._config.control.recap_s
        if every_s is not None:
            self._running[task.job] = (task, time.monotonic() + every_s)

    def _recap(self) -> None:
        """Update caps of running jobs that a policy may have changed."""
        for task, due_s in list(self._running.values()):
            if time.monotonic() >= due_s:
                self._set_up(task, again=True)

    @staticmethod
    def _guarded(act: Callable[[], None]) -> None:
        try:
            act()
        except Exception:  # noqa: BLE001 - the next job must not pay for a fault of ours
            _log.exception("a call failed; the agent continues")
            time.sleep(0.1)
