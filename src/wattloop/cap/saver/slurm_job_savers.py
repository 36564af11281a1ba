"""Savers of the Slurm jobs of a node, for its agent.

The agent cannot make a job write its steps: a job that was started under `wattloop run` names their
folder in its environment. Without steps the slowdown cannot be known, and nothing is set.
"""

import os
import stat
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattloop.cap.saver.gpu_levers import GpuLevers
from wattloop.cap.saver.proof import SavingResult, SavingState
from wattloop.cap.saver.saver import SaverConfig
from wattloop.cap.saver.saving_hook import END_PATIENCE_S, FoundSteps, SavingHook, format_fault
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.measure.session import Session

if TYPE_CHECKING:
    from wattloop.fleet.agent.config import SaveConfig
    from wattloop.fleet.agent.job_caps import SavedJob

LOOK_FOR_STEPS_S, LOOK_FOR_OBJECTION_S = 2.0, 10.0
ENVIRONMENT_B = 65_536
OBJECTION = "WATTLOOP_SAVE"
NO_JOB_STEPS = (
    "its steps are not known to the agent, so that no slowdown could be: start it as "
    "'wattloop run -- PROGRAM'"
)
OBJECTED = f"its user objects ({OBJECTION}=0)"


class JobSavers:
    """Savers of the jobs of this node, each in a thread of its own.

    Args:
        rules: the operator's.
        settings: of the agent.
        node: its name in Slurm.
        procfs: where processes are.
    """

    def __init__(
        self, rules: "SaveConfig", settings: Settings, node: str, procfs: Path = Path("/proc")
    ) -> None:
        self._rules, self._settings, self._node, self._procfs = rules, settings, node, procfs
        self._savers: dict[str, _JobSaver] = {}
        self._refused: dict[str, dict[str, Any]] = {}

    def begin(self, job: "SavedJob", refusal: str) -> None:
        if refusal:
            self.end(job.run_id)
            left = SavingResult(SavingState.LEFT, refusal)
            self._refused.setdefault(job.run_id, left.to_dict())
        elif job.run_id not in self._savers and job.run_id not in self._refused:
            saver = _JobSaver(job, self._rules, self._settings, self._node, self._procfs)
            self._savers[job.run_id] = saver
            saver.start()

    def end(self, run_id: str) -> None:
        if run_id in self._savers:
            self._savers[run_id].stop.set()

    def result(self, run_id: str) -> dict[str, Any] | None:
        saver = self._savers.get(run_id)
        if saver is None or saver.result is None:
            return self._refused.get(run_id)
        return saver.result.to_dict()

    def forget(self, run_id: str) -> None:
        self.end(run_id)
        self._savers.pop(run_id, None)
        self._refused.pop(run_id, None)

    def close(self) -> None:
        for saver in self._savers.values():
            saver.stop.set()
        end_s = time.monotonic() + END_PATIENCE_S
        for saver in self._savers.values():
            saver.join(max(0.0, end_s - time.monotonic()))


class _JobSaver(threading.Thread):
    """Saver of one job: waits for its steps, then follows them until the job ends."""

    def __init__(
        self, job: "SavedJob", rules: "SaveConfig", settings: Settings, node: str, procfs: Path
    ) -> None:
        super().__init__(name=f"wattloop-save-{job.job}", daemon=True)
        self.stop = threading.Event()
        self.result: SavingResult | None = None
        self._job, self._rules, self._settings = job, rules, settings
        self._node, self._procfs = node, procfs

    def run(self) -> None:
        try:
            self.result = self._saved()
        except Exception as error:  # noqa: BLE001 - other jobs must not pay for this one
            self.result = SavingResult(SavingState.LEFT, format_fault(error))

    def _saved(self) -> SavingResult:
        folder = None
        while folder is None:
            ended = self.stop.wait(LOOK_FOR_STEPS_S)
            folder, objects = job_steps(self._procfs, self._job, self._node)
            if objects:
                return SavingResult(SavingState.LEFT, OBJECTED)
            if ended and folder is None:
                return SavingResult(SavingState.LEFT, NO_JOB_STEPS)
        gpus = list(self._job.gpus)
        settings = self._settings.overridden({"devices": gpus}, "agent")
        session = Session.open(settings, name=self._job.job, in_process=False, keep=False)
        try:
            hook = _JobSavingHook(FoundSteps(folder), self._job, self._rules)
            hook.begin(session, {})
            while not self.stop.wait(LOOK_FOR_OBJECTION_S):
                if job_steps(self._procfs, self._job, self._node)[1]:
                    break  # a later process of the job objects
        finally:
            session.close()
        assert hook.result is not None
        return hook.result


class _JobSavingHook(SavingHook):
    """The saver of `wattloop run --save` on behalf of a job's user, within an operator's rules."""

    def __init__(self, steps: FoundSteps, job: "SavedJob", rules: "SaveConfig") -> None:
        config = SaverConfig(max_slowdown=rules.slowdown, observe=rules.observe)
        super().__init__(steps, config, ["slurm", job.user, job.name])
        self._job, self._rules = job, rules

    def _role(self) -> None:
        return None

    def _job_levers(self) -> GpuLevers:
        levers = super()._job_levers()
        levers.uid = self._job.uid
        least_w = self._rules.least_w(levers.found.cap_w or 0.0)
        levers.caps_w = tuple(cap_w for cap_w in levers.caps_w if cap_w >= least_w)
        if not self._rules.clocks:
            levers.without_clocks()
        if not levers.caps_w and not levers.clocks_mhz:
            raise ConfigError(f"the operator's rules allow no cap below {levers.found}")
        return levers


def job_steps(procfs: Path, job: "SavedJob", node: str) -> tuple[Path | None, bool]:
    """Return the folder in which a job writes its steps, and True if the job objects to a saver.

    Only processes of the job's user with its number count. The folder is that of the process: a
    job may have a `/tmp` of its own. It must belong to the user.
    """
    found: Path | None = None
    for pid in sorted(int(name) for name in os.listdir(procfs) if name.isdigit()):  # noqa: PTH208 - names only
        place = procfs / str(pid)
        try:
            if place.stat().st_uid != job.uid:
                continue
            with (place / "environ").open("rb") as file:
                words = file.read(ENVIRONMENT_B).split(b"\0")
            facts = dict(word.split(b"=", 1) for word in words if b"=" in word)
            here = facts.get(b"SLURMD_NODENAME", node.encode()) == node.encode()
            if facts.get(b"SLURM_JOB_ID") != job.job.encode() or not here:
                continue
            if facts.get(OBJECTION.encode()) == b"0":
                return None, True
            named = os.fsdecode(facts.get(b"WATTLOOP_STEPS", b""))
            if found is None and named.startswith("/"):
                folder = place / "root" / named[1:]
                status = folder.lstat()
                if stat.S_ISDIR(status.st_mode) and status.st_uid == job.uid:
                    found = folder
        except OSError:  # it has ended, or its folder is gone
            continue
    return found, False
