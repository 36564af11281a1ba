"""Levers of the virtual GPU: power limit, SM clock and memory clock, as a real card has them.

A value stays set until it is set again, also after the process that set it has ended.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from wattloop.control.lever import Lever, LeverState, Setting
from wattloop.core.errors import ConfigError, LeverError
from wattloop.meters.base import Context
from wattloop.virtual.gpu import VirtualGpu, refusal_to_read, refusal_to_set
from wattloop.virtual.meter import first_number
from wattloop.virtual.node import VirtualMachine, shared_machine


def detect(context: Context) -> Sequence[Lever]:
    """Three levers per virtual card that the user asked for; none without."""
    count = context.settings.virtual_gpus
    if count <= 0:
        return []
    machine = shared_machine(count, context.clock, host=context.host)
    first = first_number(context)
    kinds = (VirtualPowerLimit, VirtualSmClock, VirtualMemoryClock)
    return [kind(machine, gpu, first + gpu.index) for gpu in machine.gpus for kind in kinds]


class _VirtualLever(Lever):
    """One setting of one card.

    Args:
        number: the card's number on this machine, after the real ones.
    """

    kind = ""
    unit = "MHz"

    def __init__(self, machine: VirtualMachine, gpu: VirtualGpu, number: int) -> None:
        self.name = f"gpu:{number}/{self.kind}"
        self.device = f"virtual:{machine.state_path}:{gpu.index}"
        self.gpu = gpu
        self._environment = {**machine.environment, "WATTLOOP_VIRTUAL_GPUS": str(len(machine.gpus))}

    def state(self) -> LeverState:
        try:
            now = self.gpu.now()
            unreadable, _ = refusal_to_read(now)
            refusal = unreadable or refusal_to_set(now)
            value = None if unreadable else self._present()
            note = "; ".join(filter(None, ("simulated", self._note())))
        except ConfigError as error:
            refusal, value, note = str(error), None, "simulated"
        low, high = self._range()
        return LeverState(
            name=self.name,
            available=not refusal,
            reason=refusal,
            remedy="heal it with VirtualGpu.inject(Fault.NONE)" if refusal else "",
            value=value,
            unit=self.unit,
            low=low,
            high=high,
            default=self._default(),
            source=f"{self.gpu.model.name} (simulated)",
            note=note,
        )

    def read(self) -> Setting:
        try:
            reason, _ = refusal_to_read(self.gpu.now())
            if not reason:
                return self._value()
        except ConfigError as error:
            reason = str(error)
        raise LeverError(f"{self.name}: {reason}")

    def accepted(self, value: Setting) -> Setting:
        if isinstance(value, str | bool):
            raise ConfigError(f"{self.name}: '{value}' is not a number; use {self.unit}")
        low, high = self._range()
        if value is not None and not low <= value <= high:
            raise ConfigError(
                f"{self.name}: {value:g} {self.unit} is outside {low:g} to {high:g} {self.unit}"
            )
        return self._rounded(value)

    def write(self, value: Setting) -> None:
        number = self.accepted(value)
        assert not isinstance(number, str)  # `accepted` refuses names
        try:
            self._set(number)
        except ConfigError as error:
            raise LeverError(f"{self.name}: {error}") from None

    def write_text(self, value: Setting) -> str:
        what = "not locked" if value is None else f"{value:g} {self.unit}"
        return f"{self.gpu.model.name} {self.gpu.index} (simulated): {self.kind} = {what}"

    def where(self) -> Mapping[str, str]:
        return self._environment

    @abstractmethod
    def _value(self) -> float | None:
        """What is set now."""

    def _present(self) -> float | None:
        """What is shown where nothing is set: for a clock, what the card runs at."""
        return self._value()

    @abstractmethod
    def _set(self, value: float | None) -> None:
        """Hand a value to the card."""

    @abstractmethod
    def _range(self) -> tuple[float, float]:
        """The card's own limits."""

    def _rounded(self, value: float | None) -> float | None:
        return value

    def _default(self) -> float | None:
        return None

    def _note(self) -> str:
        return ""


class VirtualPowerLimit(_VirtualLever):
    """Watts that the card may draw."""

    kind = "power_limit"
    unit = "W"

    def _value(self) -> float | None:
        return self.gpu.now().limit_w

    def _set(self, value: float | None) -> None:
        assert value is not None  # `_rounded` gives None the default
        self.gpu.set_power_cap(value)

    def _range(self) -> tuple[float, float]:
        return self.gpu.model.min_limit_w, self.gpu.model.max_limit_w

    def _rounded(self, value: float | None) -> float | None:
        # NVML takes milliwatts
        return self.gpu.model.default_limit_w if value is None else round(value, 3)

    def _default(self) -> float | None:
        return self.gpu.model.default_limit_w


class VirtualSmClock(_VirtualLever):
    """Highest SM clock; None leaves it to the card."""

    kind = "sm_clock"

    def _value(self) -> float | None:
        now = self.gpu.now()
        return now.max_clock_mhz if now.clock_locked else None

    def _present(self) -> float | None:
        return self._value() or round(self.gpu.now().clock_mhz)

    def _set(self, value: float | None) -> None:
        self.gpu.set_clock(value)

    def _range(self) -> tuple[float, float]:
        return self.gpu.model.min_clock_mhz, self.gpu.model.max_clock_mhz

    def _rounded(self, value: float | None) -> float | None:
        if value is None:
            return None
        model = self.gpu.model
        steps = (model.max_clock_mhz - value) / model.clock_step_mhz
        return max(model.min_clock_mhz, model.max_clock_mhz - round(steps) * model.clock_step_mhz)

    def _note(self) -> str:
        locked = "locked" if self.gpu.now().clock_locked else "not locked"
        return f"{locked}; steps of {self.gpu.model.clock_step_mhz:g} MHz"


class VirtualMemoryClock(_VirtualLever):
    """Memory clock; None leaves it to the card."""

    kind = "memory_clock"

    def _value(self) -> float | None:
        now = self.gpu.now()
        return now.memory_clock_mhz if now.memory_clock_locked else None

    def _present(self) -> float | None:
        return self.gpu.now().memory_clock_mhz

    def _set(self, value: float | None) -> None:
        self.gpu.set_memory_clock(value)

    def _range(self) -> tuple[float, float]:
        clocks = self.gpu.model.memory_clocks_mhz
        return clocks[-1], clocks[0]

    def _rounded(self, value: float | None) -> float | None:
        if value is None:
            return None
        return min(self.gpu.model.memory_clocks_mhz, key=lambda clock: abs(clock - value))

    def _note(self) -> str:
        locked = "locked" if self.gpu.now().memory_clock_locked else "not locked"
        known = ", ".join(f"{clock:g}" for clock in self.gpu.model.memory_clocks_mhz)
        return f"{locked}; {known} MHz"
