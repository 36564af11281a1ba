"""`wattloop run --save`: a saver fed with the live steps of a program, and the levers of its GPUs.

The saver works in a thread of `wattloop run`, and begins with the first step of the program. It
locks the GPUs when it first sets something. A fault disables it and restores the levers; the
program, its output and its exit code never depend on it.
"""

import hashlib
import json
import os
import re
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.cap.gpus import devices_energy
from wattloop.cap.saver.gpu_levers import GpuLevers, gpu_models, measured_gpus
from wattloop.cap.saver.job_leader import JobFollower, JobLeader, job_of
from wattloop.cap.saver.proof import LearnedSetting, SavingResult, SavingState, Setting
from wattloop.cap.saver.saver import Saver, SaverConfig
from wattloop.core.errors import ConfigError, LeverError, WattloopError
from wattloop.core.files import atomic_write_json, user_name, user_path
from wattloop.core.settings import Settings
from wattloop.integrations.step_hook.collector import LiveSteps
from wattloop.integrations.step_hook.program import StepHook
from wattloop.measure.session import Session

LOOK_EVERY_S = 0.1
FIRST_LOOK_S = 0.25
END_PATIENCE_S = 60.0
"""A lever that the driver does not answer for must not keep the program's exit code from its
caller; the watchdog restores after the end."""
NO_STEPS = (
    "no training step was noticed in it: 'wattloop cap find --progress PATTERN -- COMMAND' takes "
    "them from its output, CapTuner from its code"
)
NO_FOLDER = "its steps cannot be recorded: the folder for temporary files cannot be written"
CUT_OFF = "wattloop was killed before the saving was known"
LEARNED_VERSION = 1
VOLATILE = re.compile(
    r"--?(seed|random[-_]seed|output|out|output[-_]dir|save[-_]\w+|run[-_]?name|name|wandb\S*|"
    r"log\S*|resume\S*|checkpoint\S*|ckpt\S*|port|master[-_]port|master[-_]addr|rdzv\S*|"
    r"local[-_]rank|node[-_]rank|epochs?|num[-_]train[-_]epochs|max[-_]steps|steps|tensorboard\S*)"
)
"""Options that differ from run to run, or do not change what a step costs."""
INTERPRETERS = re.compile(r"(python|pypy)[\d.]*|torchrun|accelerate|deepspeed|mpirun|mpiexec|srun")


class FoundSteps(NamedTuple):
    """Steps that a program writes already; in the place of a `StepHook`."""

    folder: Path | None


class SavingHook:
    """Hook of `wattloop run --save`: the step hook, and a saver that follows its steps.

    Args:
        steps: hook that makes the program write its steps; it begins before this one.
        config: what to save; with `observe` nothing is ever set.
        command: the program, to find what an earlier run of it has learned.
    """

    def __init__(
        self, steps: StepHook | FoundSteps, config: SaverConfig, command: Sequence[str]
    ) -> None:
        self.result: SavingResult | None = None
        """Known after the run was closed."""
        self._steps, self._config, self._command = steps, config, list(command)
        self._session: Session | None = None
        self._levers: GpuLevers | None = None
        self._leader: JobLeader | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="wattloop-save", daemon=True)

    def begin(self, session: Session, environment: dict[str, str]) -> dict[str, str]:
        self._session = session
        # Before the step hook's own: that one removes the files of steps.
        session.before_end.insert(0, self._end)
        before_stop, after_stop = session.around_stop
        before_stop.append(lambda: self._suspend(True))
        after_stop.append(lambda: self._suspend(False))
        if self._steps.folder is not None:
            self._thread.start()
        return environment

    # -- inside ----------------------------------------------------------------------------

    def _end(self) -> None:
        """The program has ended: restore the levers, and record what was saved."""
        assert self._session is not None
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(END_PATIENCE_S)
        if self._thread.is_alive():
            self.result = self._left("a GPU's lever did not answer; 'wattloop restore' restores it")
        elif self.result is None:
            self.result = self._left(NO_STEPS if self._steps.folder is not None else NO_FOLDER)
        self._session.record_saving(self.result.to_dict())

    def _suspend(self, stopped: bool) -> None:
        """Restore the levers while job control has stopped the program, then set them again."""
        with suppress(Exception):  # the saver meets the fault when it next sets something
            if self._levers is not None:
                self._levers.suspend(stopped)

    def _work(self) -> None:
        try:
            role = self._role()
            if isinstance(role, JobFollower):
                self._follow(role)
            elif self._stepped():
                self._save(role)
        except Exception as error:  # noqa: BLE001 - the program matters more than its saving
            self.result = self._left(format_fault(error))
        finally:
            self._release()

    def _role(self) -> JobLeader | JobFollower | None:
        """Return this run's part in a job of several runs; None for a single one."""
        session = self._session
        assert session is not None
        job = job_of(session, self._command)
        if job is None or self._config.observe:
            return None
        path = _learned_folder(session.settings) / "jobs" / f"{_digest(job.name)}.json"
        return JobFollower(path) if job.rank else JobLeader(path, session.run_id)

    def _stepped(self) -> bool:
        """Wait for the first file of steps; return False if the program ended without."""
        folder = self._steps.folder
        assert folder is not None
        while True:
            ended = self._stop.wait(FIRST_LOOK_S)
            with suppress(OSError):
                if any(folder.glob("*.steps")):
                    return True
            if ended:
                return False

    def _follow(self, leader: JobFollower) -> None:
        """Set what the leader of the job has set, until it or this program ends."""
        session = self._session
        assert session is not None
        levers = self._levers = self._job_levers()
        applied = False
        present: Setting | None = None
        while not self._stop.wait(LOOK_EVERY_S):
            wanted = leader.poll(time.monotonic())
            if wanted == present:
                continue
            if not session.role.counts:  # a rank that sees the same GPUs
                other = session.role.counted_by or leader.run_id
                self.result = self._left(f"its GPUs are set by run {other} of the same job")
                return
            try:
                if levers.refusal:
                    raise LeverError(levers.refusal)
                self._set(wanted)
            except WattloopError as error:
                leader.refuse(f"{session.run_id} on {session.host.name}: {error}")
                raise
            applied, present = applied or wanted is not None, wanted
        if not applied:
            self.result = self._left(leader.silence)
            return
        reason = f"set as run {leader.run_id} of its job decided; that run has the figures"
        self.result = SavingResult(SavingState.APPLIED, reason)

    def _job_levers(self) -> GpuLevers:
        assert self._session is not None
        devices = measured_gpus(self._session)
        if not devices:
            raise ConfigError("the program has no GPU whose energy is read here")
        return GpuLevers(self._session, devices)

    def _save(self, leader: JobLeader | None) -> None:
        session, folder = self._session, self._steps.folder
        assert session is not None
        assert folder is not None
        levers = self._levers = self._job_levers()
        self._leader = leader
        devices, config = levers.devices, self._config
        if levers.refusal and not config.observe:
            config = replace(config, observe=True)
        program = ProgramKey.of(self._command, gpu_models(session, devices))
        place = _learned_folder(session.settings)
        saver = Saver(
            config,
            self._set,
            partial(devices_energy, session, devices),
            found=levers.found,
            caps_w=levers.caps_w,
            clocks_mhz=levers.clocks_mhz,
            devices=len(devices),
            known=read_learned(place, program),
            report=self._report,
        )
        live = LiveSteps(folder)
        try:
            while not self._stop.wait(LOOK_EVERY_S):
                feed(saver, live)
                saver.tick(time.monotonic())
                if leader is not None and (refusal := leader.beat(time.monotonic())):
                    saver.leave(refusal)
                if saver.reason and not config.observe:
                    self._release()
            self._restore()
            feed(saver, live)
        finally:
            live.close()
        result = saver.end(session.ended_s or time.monotonic())
        if self._config.observe:
            result = replace(result, reason="--observe was given")
        elif levers.refusal:
            result = replace(result, reason=format_refusal(levers.refusal, self._command))
        if result.learned is not None and not config.observe:
            write_learned(place, program, result.learned)
        self.result = result

    def _set(self, setting: Setting | None) -> None:
        """Set every GPU of the job; for the saver."""
        assert self._levers is not None
        assert self._session is not None
        if setting is not None and self._stop.is_set():
            return  # the program has ended; what is left of its steps is only counted
        if setting is not None and not self._levers.held and self._session.saving is None:
            # should this process be killed, the record still says that levers were set
            self._session.record_saving(SavingResult(SavingState.APPLIED, CUT_OFF).to_dict())
        self._levers.set(setting)
        if self._leader is not None:
            self._leader.set(setting)

    def _restore(self) -> None:
        with suppress(WattloopError):  # reported by `_release`
            if self._levers is not None:
                self._set(None)

    def _release(self) -> None:
        assert self._session is not None
        if self._leader is not None:
            self._leader.close()
        if self._levers is not None:
            for note in self._levers.close():
                self._session.note(note)

    def _report(self, text: str) -> None:
        # Into the journal only: the program may write to the same terminal.
        assert self._session is not None
        now_s = self._session.clock.now_s()
        self._session.record({"type": "note", "time_s": now_s, "text": f"saver: {text}"})

    def _left(self, reason: str) -> SavingResult:
        state = SavingState.OBSERVED if self._config.observe else SavingState.LEFT
        return SavingResult(state, reason)


def feed(saver: Saver, live: LiveSteps) -> None:
    for event in live.poll():
        saver.step(event.at_s) if event.is_step else saver.interrupt(event.at_s)


def format_fault(error: Exception) -> str:
    known = isinstance(error, WattloopError)
    return str(error) if known else f"the saver failed: {type(error).__name__}: {error}"


def format_refusal(refusal: str, command: Sequence[str]) -> str:
    """Return why nothing was set, and the commands that allow it."""
    return (
        f"{refusal}. To allow it: 'sudo wattloop control-daemon' with a rule for "
        f"{user_name(os.geteuid())} (docs/control-daemon.md), or 'sudo -E wattloop run --save -- "
        f"{shlex.join(command)}'"
    )


# Settings that runs of a program have learned, for its next run: a small file for each program and
# kind of GPU, in a folder next to the store.


class ProgramKey(NamedTuple):
    """Identity of a program on some GPUs: by the content of its script, and by its path."""

    by_content: str
    by_path: str

    @classmethod
    def of(cls, command: Sequence[str], models: Sequence[str]) -> "ProgramKey":
        words, script = _lasting(command)
        path = "" if script is None else str(script)
        content = ""
        if script is not None:
            with suppress(OSError):
                content = hashlib.sha256(script.read_bytes()).hexdigest()
        shared = [words, list(models)]
        return cls(_digest(["content", content or path, *shared]), _digest(["path", path, *shared]))


def _lasting(command: Sequence[str]) -> tuple[list[str], Path | None]:
    """Return the arguments that matter for the cost of a step, and the script."""
    words: list[str] = []
    script: Path | None = None
    rest = list(command)
    while rest:
        word = rest.pop(0)
        name, separator, _ = word.partition("=")
        if VOLATILE.fullmatch(name):
            if not separator and rest and not rest[0].startswith("-"):
                rest.pop(0)
            continue
        path = Path(word)
        if script is None and not word.startswith("-") and path.suffix and path.is_file():
            script, word = path.resolve(), path.name
        elif not words:
            word = path.name  # the interpreter of another environment is the same program
        words.append(word)
    if script is None and command and not INTERPRETERS.fullmatch(Path(command[0]).name):
        path = Path(command[0])
        script = path.resolve() if path.is_file() else None
    return words, script


def _digest(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _learned_folder(settings: Settings) -> Path:
    """Return `<folder of the store>/saver`; a store on a server has none, the user's is used."""
    place = settings.store_location
    return user_path(Settings().store_location if "://" in place else place).parent / "saver"


def read_learned(folder: Path, program: ProgramKey) -> LearnedSetting | None:
    """Return what the last run of the same script learned, else of the same path."""
    for key in program:
        with suppress(OSError, ValueError, KeyError, TypeError, ConfigError):
            data = json.loads((folder / f"{key}.json").read_text("utf-8"))
            if data["version"] == LEARNED_VERSION:
                return LearnedSetting.from_dict(data["learned"])
    return None


def write_learned(folder: Path, program: ProgramKey, learned: LearnedSetting) -> None:
    """Write it for the next run; a folder that cannot be written only costs that run a search."""
    data: Mapping[str, Any] = {
        "version": LEARNED_VERSION,
        "written_wall_s": time.time(),
        "learned": learned.to_dict(),
    }
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for key in program:
            atomic_write_json(folder / f"{key}.json", data, mode=0o600)
