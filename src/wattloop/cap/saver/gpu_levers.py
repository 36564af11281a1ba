"""Levers of the GPUs of a job: which they are, what they accept, and setting them all alike."""

import os
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from wattloop.cap.gpus import round_caps
from wattloop.cap.saver.proof import REFERENCE, Setting
from wattloop.control.lever import Lever
from wattloop.control.lock import process_command
from wattloop.control.registry import find_levers, levers_named
from wattloop.control.session import LeverSession, lever_session
from wattloop.core.errors import ConfigError, DeviceBusy, MeterUnavailable, WattloopError
from wattloop.core.files import user_name
from wattloop.core.records import Scope
from wattloop.measure.session import Session
from wattloop.meters import nvidia
from wattloop.meters.base import Context
from wattloop.meters.visible_gpus import gpus_left_out


def measured_gpus(session: Session) -> tuple[str, ...]:
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
    domains = [channel.domain for channel in session.channels]
    split = [domain.name for domain in domains if domain.is_split and domain.name not in hidden]
    if split:
        raise ConfigError(
            f"{split[0]} is split by MIG: a cap would slow the programs on its other instances, too"
        )
    names = (domain.name for domain in domains if domain.scope is Scope.GPU)
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
