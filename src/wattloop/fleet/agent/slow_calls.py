"""Slow calls in a thread of their own: Slurm's controller and the control daemon."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from wattloop.control.daemon.job_gpus import JobGpus
from wattloop.fleet.agent.caps import Caps, chosen_cap
from wattloop.fleet.agent.config import AgentConfig
from wattloop.fleet.agent.job_facts import JobFacts, ask_slurm

LOOK_EVERY_S = 5.0


_log = logging.getLogger("wattloop.agent")


@dataclass(frozen=True, slots=True)
class SlowAnswer:
    """Facts and caps of a job that began."""

    run_id: str
    facts: JobFacts | None
    reason: str = ""
    cap_w: dict[str, float] = field(default_factory=dict)
    cap_why: str = ""


@dataclass(frozen=True, slots=True)
class _Begin:
    run_id: str
    job: str
    uid: int
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _End:
    job: str


class SlowCalls:
    """Thread that queries Slurm and sets caps; answers wait until they are fetched."""

    def __init__(self, config: AgentConfig, folder: Path) -> None:
        self._config = config
        self._caps = None if config.control is None else Caps(config.control, folder)
        self._tasks: queue.SimpleQueue[_Begin | _End | list[JobGpus] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[SlowAnswer] = queue.SimpleQueue()
        self._running: dict[str, tuple[_Begin, float]] = {}
        """Job -> who it is, and when it is looked at again."""
        self._thread = threading.Thread(target=self._work, name="wattloop-desk", daemon=True)

    def start(self) -> None:
        if self._caps is not None:
            self._caps.start()
        self._thread.start()

    def job_began(self, run_id: str, job: str, uid: int, gpus: Sequence[str]) -> None:
        """Query the job's facts and set its cap."""
        self._tasks.put(_Begin(run_id, job, uid, tuple(gpus)))

    def job_ended(self, job: str) -> None:
        if self._caps is not None:
            self._tasks.put(_End(job))

    def jobs_are(self, jobs: list[JobGpus]) -> None:
        """Pass the owners of GPUs to the control daemon."""
        if self._caps is not None:
            self._tasks.put(jobs)

    def answers(self) -> list[SlowAnswer]:
        """Return the answers since the last call."""
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
        look_s = time.monotonic() + LOOK_EVERY_S
        while True:
            if time.monotonic() >= look_s:  # also on a node where there is always something to do
                if self._caps is not None:
                    self._guarded(self._caps.look_after)
                    self._guarded(self._look_again)
                look_s = time.monotonic() + LOOK_EVERY_S
            try:
                task = self._tasks.get(timeout=max(0.0, look_s - time.monotonic()))
            except queue.Empty:
                continue
            if task is None:
                break
            if isinstance(task, _Begin):
                self._begin(task)
            elif self._caps is not None and isinstance(task, _End):
                self._running.pop(task.job, None)
                self._guarded(partial(self._caps.end, task.job))
            elif self._caps is not None and isinstance(task, list):
                self._guarded(partial(self._caps.tell, task))
        if self._caps is not None:
            self._guarded(self._caps.close)

    def _begin(self, task: _Begin, *, again: bool = False) -> None:
        facts, reason, cap_w, why = None, "", {}, ""
        try:
            facts, reason = ask_slurm(
                task.job, folder=self._config.slurm_bin, caps=self._caps is not None
            )
            if again and reason:  # no answer: the previous choice still holds
                self._plan_another_look(task)
                return
            control = self._config.control
            if self._caps is not None and control is not None:
                cap, why = chosen_cap(facts, control.default_cap)
                cap_w = self._caps.begin(task.job, task.uid, task.gpus, cap)
        except Exception as error:  # noqa: BLE001 - a job is measured whatever happens here
            reason = f"{type(error).__name__}: {error}"
            _log.exception("job %s", task.job)
        self._answers.put(SlowAnswer(task.run_id, facts, reason, cap_w, why))
        self._plan_another_look(task)

    def _plan_another_look(self, task: _Begin) -> None:
        every_s = None if self._config.control is None else self._config.control.recap_s
        if every_s is not None:
            self._running[task.job] = (task, time.monotonic() + every_s)

    def _look_again(self) -> None:
        """Update caps of running jobs that a policy may have changed."""
        for task, due_s in list(self._running.values()):
            if time.monotonic() >= due_s:
                self._begin(task, again=True)

    @staticmethod
    def _guarded(act: Callable[[], None]) -> None:
        try:
            act()
        except Exception:  # noqa: BLE001 - the next job must not pay for a fault of ours
            _log.exception("the agent's desk goes on")
            time.sleep(0.1)
