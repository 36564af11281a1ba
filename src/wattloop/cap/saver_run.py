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

from wattloop.cap.gpus import cap_plan, devices_energy
from wattloop.cap.saver import Saver, SaverConfig
from wattloop.cap.saving import (
    REFERENCE,
    LearnedSetting,
    SavingResult,
    SavingState,
    Setting,
)
from wattloop.control.lever import Lever
from wattloop.control.lock import user_name
from wattloop.control.registry import find_levers
from wattloop.control.session import LeverSession, lever_session
from wattloop.core.errors import ConfigError, WattloopError
from wattloop.core.files import atomic_write_json, user_path
from wattloop.core.records import Scope
from wattloop.core.settings import Settings
from wattloop.integrations.step_hook.collector import LiveSteps
from wattloop.integrations.step_hook.program import StepHook
from wattloop.measure.session import Session
from wattloop.meters.base import Context
from wattloop.meters.visible_gpus import gpus_left_out

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

    def __init__(self, steps: StepHook, config: SaverConfig, command: Sequence[str]) -> None:
        self.result: SavingResult | None = None
        """Known after the run was closed."""
        self._steps, self._config, self._command = steps, config, list(command)
        self._session: Session | None = None
        self._levers: GpuLevers | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="wattloop-save", daemon=True)

    def begin(self, session: Session, environment: dict[str, str]) -> dict[str, str]:
        self._session = session
        # Before the step hook's own: that one removes the files of steps.
        session.before_end.insert(0, self._end)
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

    def _work(self) -> None:
        try:
            if self._stepped():
                self._save()
        except Exception as error:  # noqa: BLE001 - the program matters more than its saving
            self.result = self._left(format_fault(error))
        finally:
            self._release()

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

    def _save(self) -> None:
        session, folder = self._session, self._steps.folder
        assert session is not None
        assert folder is not None
        devices = job_gpus(session)
        if not devices:
            self.result = self._left("the program has no GPU whose energy is read here")
            return
        levers = self._levers = GpuLevers(session, devices)
        config = self._config
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
                if saver.reason and not config.observe:
                    self._release()
            self._restore()
            feed(saver, live)
        finally:
            live.close()
        result = saver.end(session.ended_s or time.monotonic())
        if levers.refusal and not self._config.observe:
            result = replace(result, reason=format_refusal(levers.refusal, self._command))
        if result.learned is not None and not config.observe:
            write_learned(place, program, result.learned)
        self.result = result

    def _set(self, setting: Setting | None) -> None:
        """Set every GPU of the job; for the saver."""
        assert self._levers is not None
        assert self._session is not None
        if setting is not None and not self._levers.held and self._session.saving is None:
            # should this process be killed, the record still says that levers were set
            self._session.record_saving(SavingResult(SavingState.APPLIED, CUT_OFF).to_dict())
        self._levers.set(setting)

    def _restore(self) -> None:
        with suppress(WattloopError):  # reported by `_release`
            if self._levers is not None:
                self._levers.set(None)

    def _release(self) -> None:
        assert self._session is not None
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
    if result.state is SavingState.OBSERVED:
        return f"{expected or 'nothing is known of its saving'}; nothing was set: {result.reason}"
    text = f"left alone: {result.reason}" if result.reason else "nothing was compared"
    return f"{text}; {expected}" if expected else text


def _percent(interval: Any) -> str:
    return f"{interval.value:.1f}% ({interval.low:.1f} to {interval.high:.1f}%)"


# The GPUs of the job and their levers.


def job_gpus(session: Session) -> tuple[str, ...]:
    """Return the GPUs that are measured and that the environment gives to the program."""
    context = Context(session.host, session.settings)
    ranks = session.job is not None and (session.job.world_size or 1) > 1
    left_out = gpus_left_out(context, session.inventory, os.environ, ranks=ranks)
    hidden = {name for each in left_out for name in each.names}
    names = (c.domain.name for c in session.channels if c.domain.scope is Scope.GPU)
    return tuple(n for n in names if re.fullmatch(r"gpu:\d+", n) and n not in hidden)


def gpu_models(session: Session, devices: Sequence[str]) -> tuple[str, ...]:
    known = {c.domain.name: c.domain.device or c.domain.source for c in session.channels}
    return tuple(sorted(known[name] for name in devices))


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
        ConfigError: there is no limit to choose.
    """

    def __init__(self, session: Session, devices: Sequence[str]) -> None:
        self._devices = tuple(devices)
        levers = find_levers(Context(session.host, session.settings))
        numbers = ",".join(name.removeprefix("gpu:") for name in devices)
        plan = cap_plan(levers, numbers, permitted=False)
        self._limits = list(plan.levers)
        refusals = (lever.state().refusal for lever in self._limits)
        self.refusal = next(filter(None, refusals), "")
        self.caps_w = plan.caps_w
        self._clocks, self.clocks_mhz, highest_mhz = self._clock_steps(levers)
        self.found = Setting(plan.caps_w[-1], highest_mhz)
        self._held: LeverSession | None = None
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
        if setting is None or setting == REFERENCE:
            if self._held is not None:
                self._held.restore()
            return
        if self._closed:
            raise ConfigError("the levers were restored for good")
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

    def close(self) -> list[str]:
        """Restore and unlock everything; return what there is to say about it."""
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
        names = [f"{device}/sm_clock" for device in self._devices]
        by_name = {lever.name: lever for lever in levers}
        own = [by_name[name] for name in names if name in by_name]
        states = [lever.state() for lever in own]
        usable = [s.available or self.refusal for s in states]
        highs, lows = [s.high for s in states if s.high], [s.low for s in states if s.low]
        if len(own) < len(names) or not all(usable) or not (len(highs) == len(lows) == len(own)):
            return [], (), None
        locked = [value for lever in own if isinstance(value := lever.read(), int | float)]
        high = min([*highs, *locked])
        low = max(*lows, LOWEST_CLOCK * high)
        clocks = set()
        for i in range(MOST_CLOCKS):
            try:
                accepted = {
                    lever.accepted(low + i / (MOST_CLOCKS - 1) * (high - low)) for lever in own
                }
            except WattloopError:
                continue
            if len(accepted) == 1 and isinstance(value := accepted.pop(), int | float):
                clocks.add(float(value))
        return own, tuple(sorted(clocks)), high


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
