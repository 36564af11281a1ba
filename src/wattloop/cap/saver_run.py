"""`wattloop run --save`: a saver fed with the live steps of a program, and the levers of its GPUs.

The saver works in a thread of `wattloop run`, and begins with the first step of the program. It
locks the GPUs when it first sets something. A fault disables it and restores the levers; the
program, its output and its exit code never depend on it.
"""

import hashlib
import json
import math
import os
import re
import shlex
import socket
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from wattloop.cap.gpus import devices_energy, round_caps
from wattloop.cap.saver import Saver, SaverConfig
from wattloop.cap.saving import (
    REFERENCE,
    LearnedSetting,
    SavingResult,
    SavingState,
    Setting,
)
from wattloop.control.lever import Lever
from wattloop.control.lock import process_command, user_name
from wattloop.control.registry import find_levers, levers_named
from wattloop.control.session import LeverSession, lever_session
from wattloop.core.errors import (
    ConfigError,
    DeviceBusy,
    LeverError,
    MeterUnavailable,
    WattloopError,
)
from wattloop.core.files import atomic_write_json, user_path
from wattloop.core.records import Scope
from wattloop.core.settings import Settings
from wattloop.integrations.step_hook.collector import LiveSteps
from wattloop.integrations.step_hook.program import StepHook
from wattloop.measure.session import Session
from wattloop.meters import nvidia
from wattloop.meters.base import Context
from wattloop.meters.visible_gpus import gpus_left_out

if TYPE_CHECKING:
    from wattloop.fleet.agent.config import SaveConfig
    from wattloop.fleet.agent.job_caps import SavedJob

LOOK_EVERY_S = 0.1
FIRST_LOOK_S = 0.25
END_PATIENCE_S = 60.0
"""A lever that the driver does not answer for must not keep the program's exit code from its
caller; the watchdog restores after the end."""
NO_STEPS = (
    "no training step was noticed in it: 'wattloop cap find --progress PATTERN -- COMMAND' takes "
    "them from its output, CapTuner from its code"
)
CUT_OFF = "wattloop was killed before the saving was known"


class SavingHook:
    """Hook of `wattloop run --save`: the step hook, and a saver that follows its steps.

    Args:
        steps: hook that makes the program write its steps; it begins before this one.
        config: what to save; with `observe` nothing is ever set.
        command: the program, to find what an earlier run of it has learned.
    """

    def __init__(
        self, steps: "StepHook | FoundSteps", config: SaverConfig, command: Sequence[str]
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

    def _role(self) -> "JobLeader | JobFollower | None":
        """Return this run's part in a job of several runs; None for a single one."""
        session = self._session
        assert session is not None
        job = job_of(session, self._command)
        if job is None or self._config.observe:
            return None
        path = learned_folder(session.settings) / "jobs" / f"{_digest(job.name)}.json"
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

    def _follow(self, leader: "JobFollower") -> None:
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

    def _job_levers(self) -> "GpuLevers":
        assert self._session is not None
        devices = job_gpus(self._session)
        if not devices:
            raise ConfigError("the program has no GPU whose energy is read here")
        return GpuLevers(self._session, devices)

    def _save(self, leader: "JobLeader | None") -> None:
        session, folder = self._session, self._steps.folder
        assert session is not None
        assert folder is not None
        levers = self._levers = self._job_levers()
        self._leader = leader
        devices, config = levers.devices, self._config
        if levers.refusal and not config.observe:
            config = replace(config, observe=True)
        program = ProgramKey.of(self._command, gpu_models(session, devices))
        place = learned_folder(session.settings)
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
                if leader is not None:
                    leader.beat(time.monotonic())
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


NO_FOLDER = "its steps cannot be recorded: the folder for temporary files cannot be written"


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


def format_saving(result: SavingResult) -> str:
    """Return the line of a summary: what was saved, could have been, or why nothing was."""
    expected = ""
    if result.expected_pct is not None:
        expected = f"about {_percent(result.expected_pct)} of GPU energy could be saved (modelled)"
    if result.saved_pct is not None and result.slowdown_pct is not None:
        slower = result.slowdown_pct
        text = (
            f"saved {_percent(result.saved_pct)} of GPU energy, "
            f"{slower.value:+.1f}% ({slower.low:.1f} to {slower.high:.1f}%) time"
        )
        last = result.periods[-1].setting if result.periods else REFERENCE
        text += f", last at {last}" if last != REFERENCE else ""
        return text + (f"; then left alone: {result.reason}" if result.reason else "")
    if result.state is SavingState.APPLIED:
        return f"saving unknown: {result.reason or 'nothing was compared'}"
    if result.state is SavingState.OBSERVED:
        return f"{expected or 'nothing is known of its saving'}; nothing was set: {result.reason}"
    text = f"left alone: {result.reason}" if result.reason else "nothing was compared"
    return f"{text}; {expected}" if expected else text


def _percent(interval: Any) -> str:
    return f"{interval.value:.1f}% ({interval.low:.1f} to {interval.high:.1f}%)"


# The GPUs of the job and their levers.


def job_gpus(session: Session) -> tuple[str, ...]:
    """Return the GPUs that are measured and that the environment gives to the program.

    Raises:
        ConfigError: the energy of one of them is not read; the others alone would be set unlike it.
    """
    context = Context(session.host, session.settings)
    ranks = session.job is not None and (session.job.world_size or 1) > 1
    left_out = gpus_left_out(context, session.inventory, os.environ, ranks=ranks)
    hidden = {name for each in left_out for name in each.names}
    for part in session.missing:
        if re.fullmatch(r"gpu:\d+", part.name) and part.name not in hidden:
            raise ConfigError(f"the energy of {part.name} is not read: {part.reason}")
    names = (c.domain.name for c in session.channels if c.domain.scope is Scope.GPU)
    return tuple(n for n in names if re.fullmatch(r"gpu:\d+", n) and n not in hidden)


def gpu_models(session: Session, devices: Sequence[str]) -> tuple[str, ...]:
    known = {c.domain.name: c.domain.device or c.domain.source for c in session.channels}
    return tuple(sorted(known[name] for name in devices))


def other_users(session: Session, devices: Sequence[str], uid: int) -> str:
    """Return which process of another user than `uid` works on a GPU; empty where none is known.

    A cap would slow that process as well. Processes of other containers cannot be seen.
    """
    identities = {c.domain.name: c.domain.identity for c in session.channels}
    try:
        nvml = nvidia.open_nvml(session.host)
    except MeterUnavailable:
        return ""
    try:
        for name in devices:
            with suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByUUID(identities[name])
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    owner = _owner(process.pid)
                    if owner not in (None, uid):
                        return (
                            f"{name} is also used by process {process.pid} "
                            f"({process_command(process.pid)}) of {user_name(owner)}"
                        )
    finally:
        nvidia.shut_down(nvml)
    return ""


def _owner(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


MOST_CLOCKS = 9
LOWEST_CLOCK = 0.4
"""Part of the highest SM clock below which no clock saves energy."""


class GpuLevers:
    """Power limits, and SM clocks where they may be set, of the GPUs of a job: all set alike.

    Args:
        session: measures the GPUs.
        devices: such as `gpu:0`.

    Attributes:
        refusal: why the power limits may not be set, with a remedy; empty where they may.
        found: the lowest limit of the GPUs and their highest clock, before anything is set.

    Raises:
        ConfigError: no limit can be chosen.
    """

    def __init__(self, session: Session, devices: Sequence[str]) -> None:
        self._session = session
        self.devices = tuple(devices)
        self.uid = os.getuid()
        """Whose processes may be slowed."""
        levers = find_levers(Context(session.host, session.settings))
        numbers = ",".join(name.removeprefix("gpu:") for name in devices)
        self._limits = levers_named(levers, f"gpu:{numbers}/power_limit")
        states = [lever.state() for lever in self._limits]
        self.refusal = next((state.refusal for state in states if state.refusal), "")
        found_w = min((float(s.value) for s in states if _is_number(s.value)), default=0.0)
        low_w = max(state.low or 0.0 for state in states)
        # a control daemon may let this user set less than the limit found
        high_w = min([found_w, *(state.high for state in states if state.high)])
        caps_w = round_caps(low_w, high_w) if 0 < low_w < high_w else []
        self.caps_w = _accepted_by_all(self._limits, caps_w)
        self._clocks, self.clocks_mhz, highest_mhz = self._clock_steps(levers)
        self.found = Setting(found_w, highest_mhz)
        if not self.caps_w and not self.clocks_mhz:
            raise ConfigError(
                f"{', '.join(s.name for s in states)}: the limit is {found_w:g} W and cannot be "
                f"set lower than {low_w:g} W, so there is nothing to choose"
            )
        self._held: LeverSession | None = None
        self._present: Setting | None = None
        self._suspended = False
        # the thread that supervises the program suspends, the saver's sets
        self._busy = threading.RLock()
        self._closed = False
        self._notes: list[str] = []

    @property
    def held(self) -> bool:
        """True if this process has locked the GPUs."""
        return self._held is not None

    def set(self, setting: Setting | None) -> None:
        """Set every GPU; None restores, and so does a part of `setting` that is None.

        Raises:
            LeverError: another process has a GPU (`DeviceBusy`), or it refuses.
        """
        with self._busy:
            self._present = setting
            if not self._suspended:
                self._apply(setting)

    def suspend(self, stopped: bool) -> None:
        """Restore everything while `stopped`; then set again what was set."""
        with self._busy:
            self._suspended = stopped
            if self._held is not None:
                self._apply(None if stopped else self._present)

    def _apply(self, setting: Setting | None) -> None:
        if setting is None or setting == REFERENCE:
            if self._held is not None:
                self._held.restore()
            return
        if self._closed:
            raise ConfigError("the levers were restored for good")
        if users := other_users(self._session, self.devices, self.uid):
            raise DeviceBusy(users)
        if self._held is None:
            levers = [*self._limits, *self._clocks]
            held = lever_session(levers, report=self._notes.append)
            held.__enter__()
            self._held = held
        values: dict[str, Any] = {}
        if setting.cap_w is not None:
            values |= {lever.name: setting.cap_w for lever in self._limits}
        if setting.clock_mhz is not None:
            values |= {lever.name: setting.clock_mhz for lever in self._clocks}
        self._held.set(values)
        others = [name for name in self._held.levers if name not in values]
        if others:
            self._held.restore(*others)

    def without_clocks(self) -> None:
        """Leave the SM clocks alone."""
        self._clocks, self.clocks_mhz = [], ()

    def close(self) -> list[str]:
        """Restore and unlock everything; return what there is to say about it."""
        with self._busy:
            self._closed = True
            held, self._held = self._held, None
            if held is not None:
                try:
                    held.__exit__(None, None, None)
                except WattloopError as error:
                    self._notes.append(str(error))
        notes, self._notes = self._notes, []
        return [note.removeprefix("wattloop: ") for note in notes]

    def _clock_steps(
        self, levers: Sequence[Lever]
    ) -> tuple[list[Lever], tuple[float, ...], float | None]:
        """Return SM clock levers, clocks that all GPUs accept, and the highest; none without."""
        names = [f"{device}/sm_clock" for device in self.devices]
        by_name = {lever.name: lever for lever in levers}
        own = [by_name[name] for name in names if name in by_name]
        states = [lever.state() for lever in own]
        usable = [s.available or self.refusal for s in states]
        highs, lows = [s.high for s in states if s.high], [s.low for s in states if s.low]
        if len(own) < len(names) or not all(usable) or not (len(highs) == len(lows) == len(own)):
            return [], (), None
        locked = [float(value) for lever in own if _is_number(value := lever.read())]
        # above the range that a control daemon allows, the present clock is all that is known
        present = [float(state.value) for state in states if _is_number(state.value)]
        found = min(locked) if locked else max([*highs, *present])
        high = min([*highs, *locked])
        low = max(*lows, LOWEST_CLOCK * found)
        steps = [low + i / (MOST_CLOCKS - 1) * (high - low) for i in range(MOST_CLOCKS)]
        return own, _accepted_by_all(own, steps), found


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float)


def _accepted_by_all(levers: Sequence[Lever], values: Sequence[float]) -> tuple[float, ...]:
    """Return values as the devices round them, without those that one refuses or rounds alone."""
    accepted: set[float] = set()
    for value in values:
        with suppress(WattloopError):
            rounded = {lever.accepted(value) for lever in levers}
            if len(rounded) == 1 and _is_number(one := rounded.pop()):
                accepted.add(float(one))
    return tuple(sorted(accepted))


# A job with a `wattloop run --save` per node or per rank. The run of rank 0 decides. It writes its
# setting to a small file that the others read and follow. The file is written in place: a file
# system between nodes shows a file that was opened again as it is, and a renamed one later. The
# leader holds a lease: its file changes every few seconds, or followers restore.

BEAT_S = 2.0
LEASE_S = 15.0
RECORD_B = 1_024


class SavingJob(NamedTuple):
    """A job of several runs, and the rank of this one."""

    name: str
    rank: int


def job_of(session: Session, command: Sequence[str]) -> SavingJob | None:
    """Return the job that has more runs than this one, by its launcher; None for a single run."""
    job = session.job
    if job is not None and job.kind != "wattloop" and job.rank is not None:
        return SavingJob(_unique(job.job_id), job.rank) if (job.world_size or 1) > 1 else None
    return _torchrun_nodes(command)


def _torchrun_nodes(command: Sequence[str]) -> SavingJob | None:
    """Return the job of `torchrun --nnodes 2 --node-rank 1 ...`, started once per node."""
    given: dict[str, str] = {}
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, separator, value = word.partition("=")
        if name.startswith("--"):
            given.setdefault(name[2:].replace("_", "-"), value if separator else following)
    nodes, rank = given.get("nnodes", ""), given.get("node-rank", "")
    if not (nodes.isdigit() and int(nodes) > 1 and rank.isdigit()):
        return None
    parts = ("rdzv-id", "rdzv-endpoint", "master-addr", "master-port")
    name = "-".join(["torchrun", *(given.get(part, "") for part in parts)])
    return SavingJob(_unique(name), int(rank))


def _unique(name: str) -> str:
    """Return a name that jobs of different machines do not share, where the store is shared."""
    local = re.search(r"localhost|127\.0\.0\.1|::1", name)
    return f"{name}-{socket.gethostname()}" if local or not re.search(r"\d", name) else name


class JobLeader:
    """Writes the setting of a job for its followers.

    Raises:
        LeverError: from `set`, where a follower cannot set it.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self._path, self._run_id = path, run_id
        self._beats, self._beaten_s = 0, -math.inf
        self._setting: Setting | None = None
        self._closed = False
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for old in path.parent.glob(f"{path.stem}.*.refused"):
                old.unlink()

    def set(self, setting: Setting | None) -> None:
        self._setting = setting
        self._write()
        if setting is None:
            return
        for path in self._path.parent.glob(f"{self._path.stem}.*.refused"):
            raise LeverError(path.read_text("utf-8", "replace")[:500])

    def beat(self, now_s: float) -> None:
        if now_s >= self._beaten_s + BEAT_S and not self._closed:
            self._beaten_s = now_s
            self._write()

    def close(self) -> None:
        """End the lease: followers restore."""
        self._closed = True
        with suppress(OSError):
            self._path.unlink()

    def _write(self) -> None:
        self._beats += 1
        setting = None if self._setting is None else self._setting._asdict()
        data = {"run_id": self._run_id, "beat": self._beats, "setting": setting}
        with suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(file, json.dumps(data).encode().ljust(RECORD_B), 0)
            finally:
                os.close(file)


class JobFollower:
    """Reads the setting of a job's leader, while that lives."""

    def __init__(self, path: Path) -> None:
        self.run_id = ""
        self._path = path
        self._setting: Setting | None = None
        self._last: tuple[str, int] | None = None
        self._changed_s = -math.inf

    @property
    def silence(self) -> str:
        if self.run_id:
            return f"run {self.run_id} of its job, which decides, has set nothing"
        return (
            f"the run of its job's first rank, which decides, was not seen in "
            f"{self._path.parent}: all nodes need a store in a common folder, and --save"
        )

    def poll(self, now_s: float) -> Setting | None:
        """Return the leader's setting; None for the reference, and without a living leader."""
        try:
            data = json.loads(self._path.read_bytes())
            beat, given = (str(data["run_id"]), int(data["beat"])), data["setting"]
            self._setting = None if given is None else Setting(given["cap_w"], given["clock_mhz"])
        except OSError:
            return None  # the leader has ended
        except (ValueError, KeyError, TypeError):
            return self._leased(now_s)  # half written
        if self._last is None:
            self._last = beat  # may be left from a job that died
        if beat != self._last:
            self._last, self._changed_s = beat, now_s
            self.run_id = beat[0]
        return self._leased(now_s)

    def _leased(self, now_s: float) -> Setting | None:
        return self._setting if now_s - self._changed_s <= LEASE_S else None

    def refuse(self, why: str) -> None:
        """Tell the leader that its setting cannot be followed."""
        path = self._path.with_name(
            f"{self._path.stem}.{os.uname().nodename}-{os.getpid()}.refused"
        )
        with suppress(OSError):
            path.write_text(why, "utf-8")


# What runs of a program have learned: a small file for each program and kind of GPU, in a folder
# next to the store.

VERSION = 1
VOLATILE = re.compile(
    r"--?(seed|random[-_]seed|output|out|output[-_]dir|save[-_]\w+|run[-_]?name|name|wandb\S*|"
    r"log\S*|resume\S*|checkpoint\S*|ckpt\S*|port|master[-_]port|master[-_]addr|rdzv\S*|"
    r"local[-_]rank|node[-_]rank|epochs?|num[-_]train[-_]epochs|max[-_]steps|steps|tensorboard\S*)"
)
"""Options that differ from run to run, or do not change what a step costs."""
INTERPRETERS = re.compile(r"(python|pypy)[\d.]*|torchrun|accelerate|deepspeed|mpirun|mpiexec|srun")


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


def learned_folder(settings: Settings) -> Path:
    """Return `<folder of the store>/saver`; a store on a server has none, the user's is used."""
    place = settings.store_location
    return user_path(Settings().store_location if "://" in place else place).parent / "saver"


def read_learned(folder: Path, program: ProgramKey) -> LearnedSetting | None:
    """Return what the last run of the same script learned, else of the same path."""
    for key in program:
        with suppress(OSError, ValueError, KeyError, TypeError, ConfigError):
            data = json.loads((folder / f"{key}.json").read_text("utf-8"))
            if data["version"] == VERSION:
                return LearnedSetting.from_dict(data["learned"])
    return None


def write_learned(folder: Path, program: ProgramKey, learned: LearnedSetting) -> None:
    """Write it for the next run; a folder that cannot be written only costs that run a search."""
    data: Mapping[str, Any] = {
        "version": VERSION,
        "written_wall_s": time.time(),
        "learned": learned.to_dict(),
    }
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for key in program:
            atomic_write_json(folder / f"{key}.json", data, mode=0o600)


# Savers of the jobs of a node, for its agent. The agent cannot make a job write its steps: a job
# that was started under `wattloop run` names their folder in its environment. Without steps the
# slowdown cannot be known, and nothing is set.

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


class FoundSteps(NamedTuple):
    """Steps that a program writes already; in the place of a `StepHook`."""

    folder: Path | None


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
