"""Levers of a search: locked when a segment first needs one, restored at the end."""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from wattloop.cap.gpus import CapPlan, cap_plan, job_gpus
from wattloop.control.lever import Lever, Setting, parse_setting
from wattloop.control.registry import find_levers, levers_named
from wattloop.core.errors import ConfigError, LeverError
from wattloop.core.settings import Settings
from wattloop.tune.segment import CAP_LEVER, CapRequest
from wattloop.tune.space import Space

if TYPE_CHECKING:
    from wattloop.control.session import LeverSession

GPUS = "gpus"
"""Name of the number of GPUs, which is not a lever of the machine."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
POWER_LIMIT = "gpu/power_limit"
CAPS_FIELD = "hardware.power_limit.auto"
"""Field of a specification: the caps to choose among."""


class LeverBoard:
    """Setter of levers for segments.

    All levers of the space are locked at once, with the power limits where a cap is searched: two
    owners of one device would refuse each other.

    Args:
        gpus: numbers of the GPUs that may be set, such as `0,1`; unless given those of
            CUDA_VISIBLE_DEVICES where it is set, else all.
    """

    def __init__(
        self,
        space: Space,
        settings: Settings,
        *,
        caps: bool = False,
        gpus: str | None = None,
        state_directory: Path | None = None,
    ) -> None:
        self._names = lever_names(space)
        self._settings, self._caps, self._gpus = settings, caps, gpus
        self._directory = state_directory
        self._stack = ExitStack()
        self._levers: list[Lever] | None = None
        self._values: dict[str, Setting] = {}
        self.held: LeverSession | None = None

    def set(self, wanted: Mapping[str, Setting]) -> None:
        """Set every hardware parameter, and restore what the last segment had set.

        Raises:
            LeverError, ConfigError: a value is refused; levers may still have earlier values.
        """
        values: dict[str, Setting] = {}
        for name, value in wanted.items():
            if value is None or self._names.get(name) == GPUS:
                continue
            for lever in self._group(self._names.get(name, name)):
                values[lever.name] = parse_setting(value, lever)
        if not values and not self._values:
            return
        held = self._hold([*self._values, *values])
        others = [name for name in self._values if name not in values]
        if others:
            held.restore(*others)
        held.set(values)
        self._values = values

    def cap_plan(self, search: CapRequest) -> CapPlan:
        """Lock the levers and return the GPUs and caps of a search for a cap."""
        plan = self.possible_caps(search)
        self._hold([lever.name for lever in plan.levers])
        return plan

    def possible_caps(self, search: CapRequest) -> CapPlan:
        """Return the GPUs and caps of a search for a cap, without locking."""
        levers = self._all()
        gpus = self._gpus if self._gpus is not None else job_gpus(levers)
        caps = ",".join(f"{cap_w:g}" for cap_w in search.caps_w) or None
        return cap_plan(levers, gpus, caps, named=CAPS_FIELD)

    def close(self) -> None:
        self.held = None
        self._values = {}
        self._stack.close()

    def _all(self) -> list[Lever]:
        if self._levers is None:
            self._levers = find_levers(settings=self._settings)
        return self._levers

    def _group(self, name: str) -> Sequence[Lever]:
        name = {CAP_LEVER: POWER_LIMIT}.get(name, name)
        levers = self._all()
        if name.startswith("gpu/"):
            gpus = self._gpus if self._gpus is not None else job_gpus(levers)
            if gpus is not None:
                name = f"gpu:{gpus}/{name.partition('/')[2]}"
        return levers_named(levers, name)

    def _hold(self, names: Sequence[str]) -> "LeverSession":
        if self.held is not None and all(name in self.held.levers for name in names):
            return self.held
        groups = [name for name in self._names.values() if name != GPUS]
        wanted = {lever.name: lever for lever in self._all() if lever.name in names}
        if self.held is not None:
            wanted |= self.held.levers
        for group in [*groups, *([POWER_LIMIT] if self._caps else [])]:
            wanted |= {lever.name: lever for lever in self._group(group)}
        from wattloop.control.session import lever_session  # few searches set anything

        self._stack.close()
        taken = lever_session(list(wanted.values()), directory=self._directory)
        self.held = self._stack.enter_context(taken)
        self.held.set(self._values)
        return self.held


def gpu_variables(count: int) -> dict[str, str]:
    """Return the variables that restrict a program to so many of the visible GPUs."""
    seen = os.environ.get(VISIBLE)
    numbers = [str(n) for n in range(count)] if seen is None else seen.split(",")
    if len(numbers) < count:
        raise ConfigError(f"{count} GPUs are asked for, and {VISIBLE} is '{seen}'")
    return {VISIBLE: ",".join(numbers[:count]), "WATTLOOP_GPUS": str(count)}


def lever_names(space: Space) -> dict[str, str]:
    return {name: space.parameters[name].lever for name in space.hardware}


def cannot_be_set(
    space: Space, settings: Settings, cap: CapRequest | None = None
) -> dict[str, str]:
    """Return hardware parameters whose levers may not be set here, with reason and remedy.

    The power limit is among them where `cap` is to be searched and none may be set.
    """
    refused: dict[str, str] = {}
    board = LeverBoard(space, settings)
    if cap is not None:
        try:
            board.possible_caps(cap)
        except (ConfigError, LeverError) as error:
            refused[CAP_LEVER] = str(error)
    for name, group in lever_names(space).items():
        if group == GPUS:
            continue
        try:
            for lever in board._group(group):
                state = lever.state()
                if not state.available:
                    raise LeverError(
                        f"{state.name} cannot be set: {state.reason}"
                        + (f"; {state.remedy}" if state.remedy else "")
                    )
        except (ConfigError, LeverError) as error:
            refused[name] = str(error)
    return refused
