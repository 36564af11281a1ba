"""NVIDIA GPUs: the energy counter, and power for the shape between its steps.

The counter is exact in total but takes milliseconds to read and changes ten times a second; the
power reading takes microseconds. Both have the domain `gpu:N`, N being NVML's index (that of
`nvidia-smi`): CUDA_VISIBLE_DEVICES does not renumber cards. Which of them a run counts is decided
in `measure.visible_gpus`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Scope, Signal
from wattloop.core.results import Missing
from wattloop.measure.meter import Context, Meter, Reading
from wattloop.measure.meters import nvml_library

if TYPE_CHECKING:
    from wattloop.measure.meters.nvidia_card import Card

__all__ = ["NvmlEnergy", "NvmlPower", "detect"]

COUNTER_READ_COST_S = 0.004
"""Measured on an H200, driver 580: 2.5 to 3.9 ms of CPU a call."""
SENSOR_ERROR = 0.05
"""NVML's manual states +-5 % for Fermi and Kepler and nothing for later cards: that it holds for
them, and for the counter, is our assumption. The sensor of A100 and H100 looks at 25 % of the
time only (arXiv 2312.02741)."""
SENSOR_ERROR_W = 5.0
"""As `nvidia-smi --help-query-gpu` states it."""
IMPLAUSIBLE = 2.0
"""Cards exceed their limit for moments; that none does so twofold is our assumption."""


def detect(context: Context) -> Sequence[Meter]:
    """A meter for power and one for the counters, as far as the cards have them."""
    nvml = nvml_library.open_nvml(context.host)
    from wattloop.measure.meters.nvidia_card import Card, inspect

    cards: list[Card] = []
    refused: list[Missing] = []
    counters: dict[str, bool] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        found = inspect(nvml, index, counters)
        if isinstance(found, Card):
            cards.append(found)
        else:
            refused.append(found)
    if not cards:
        nvml_library.shut_down(nvml)
        raise _nothing_readable(refused)
    meters: list[Meter] = []
    by_power = [card for card in cards if card.has_power]
    by_counter = [card for card in cards if card.has_counter]
    if by_power:
        meters.append(NvmlPower(nvml, by_power, by_power, refused))
        refused = []
    for card in by_counter:
        # A meter each: reading one counter takes milliseconds, and each card has its own beat.
        if meters:
            nvml.nvmlInit()  # counted by the library: each meter shuts down its own
        only_here = [] if card.has_power else [card]
        meters.append(NvmlEnergy(nvml, [card], only_here, refused))
        refused = []
    return meters


class _NvmlMeter(Meter):
    """Cards, their handles, signals and end of life; subclasses know what to read.

    Args:
        nvml: the initialised `pynvml` module.
        cards: what `read` reads.
        signal_cards: cards whose signals this meter offers; each card's are offered once.
        refused: cards that cannot be measured at all.
    """

    def __init__(
        self,
        nvml: Any,
        cards: Sequence[Card],
        signal_cards: Sequence[Card],
        refused: Sequence[Missing],
    ) -> None:
        self._nvml = nvml
        self._cards = tuple(cards)
        self._signal_cards = tuple(signal_cards)
        self._handles: dict[int, Any] = {c.index: c.handle for c in (*cards, *signal_cards)}
        self._refused = tuple(refused)
        self._open = True
        self._closed = False
        self._domains = tuple(self._domain(card) for card in cards)
        self._signals = tuple(Signal(s.name, s.unit) for c in signal_cards for s in c.signals)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """`gpu:N` per card."""
        return self._domains

    @property
    def refused(self) -> tuple[Missing, ...]:
        """Cards that are here but cannot be measured."""
        return self._refused

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Utilisation, clocks, temperature, memory and power limit, where supported."""
        return self._signals

    def read(self) -> Sequence[Reading]:
        """One value per card."""
        return [self._guarded(card, self._read_card, card) for card in self._cards]

    def read_signals(self) -> Sequence[Reading]:
        """One value per signal."""
        return [
            self._guarded(card, signal.read, self._nvml)
            for card in self._signal_cards
            for signal in card.signals
        ]

    def close(self) -> None:
        """Shut the library down, waiting a second at most."""
        self._closed = True
        if self._open:
            self._open = False
            nvml_library.shut_down(self._nvml)

    def after_fork_in_child(self) -> None:
        """Handles belong to the parent; the child opens its own at its first read."""
        self._open = False
        self._handles.clear()

    @abstractmethod
    def _domain(self, card: Card) -> Domain:
        """What is known of the sensor."""

    @abstractmethod
    def _read_card(self, card: Card, handle: Any) -> Reading:
        """The value of one card."""

    def _guarded(self, card: Card, read: Callable[[Any, Any], Reading], first: Any) -> Reading:
        if self._closed:
            return Gap(f"{card.name}: the meter is closed")
        try:
            return read(first, self._handles.get(card.index) or self._reopened(card.index))
        except self._nvml.NVMLError as error:
            return nvml_library.gap(card.name, nvml_library.error_code(error))

    def _reopened(self, index: int) -> Any:
        if not self._open:
            self._nvml.nvmlInit()
            self._open = True
        self._handles[index] = self._nvml.nvmlDeviceGetHandleByIndex(index)
        return self._handles[index]


class NvmlPower(_NvmlMeter):
    """Power now: cheap, and follows the load where the driver has the instantaneous field."""

    name: ClassVar[str] = "nvml-power"
    shared: ClassVar[bool] = True

    def _read_card(self, card: Card, handle: Any) -> Reading:
        if not card.instant:
            return int(self._nvml.nvmlDeviceGetPowerUsage(handle)) / 1_000
        field = self._nvml.nvmlDeviceGetFieldValues(handle, [nvml_library.POWER_INSTANT_FIELD])[0]
        if field.nvmlReturn != 0:
            return nvml_library.gap(card.name, field.nvmlReturn)
        return int(field.value.uiVal) / 1_000

    def _domain(self, card: Card) -> Domain:
        return Domain(
            name=card.name,
            kind=DomainKind.GAUGE,
            scope=Scope.GPU,
            source="NVML instantaneous power" if card.instant else "NVML power",
            resolution=1e-3,
            update_period_s=card.update_period_s,
            known_error=SENSOR_ERROR,
            known_error_w=SENSOR_ERROR_W,
            averaging_s=card.averaging_s,
            read_cost_s=40e-6 if card.instant else 20e-6,
            max_power_w=_implausible_w(card),
            tdp_w=card.limit_w,
            tdp_note=card.limit_note,
            device=card.model,
            identity=card.uuid,
        )


class NvmlEnergy(_NvmlMeter):
    """Millijoules since the driver was loaded (Volta and later)."""

    name: ClassVar[str] = "nvml-energy"
    shared: ClassVar[bool] = True

    def _read_card(self, card: Card, handle: Any) -> Reading:
        return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1_000

    def _domain(self, card: Card) -> Domain:
        return Domain(
            name=card.name,
            kind=DomainKind.COUNTER,
            scope=Scope.GPU,
            source="NVML energy counter",
            resolution=1e-3,
            update_period_s=0.1,
            known_error=SENSOR_ERROR,
            read_cost_s=COUNTER_READ_COST_S,
            max_power_w=_implausible_w(card),
            tdp_w=card.limit_w,
            tdp_note=card.limit_note,
            device=card.model,
            identity=card.uuid,
        )


def _implausible_w(card: Card) -> float | None:
    return None if card.max_limit_w is None else IMPLAUSIBLE * card.max_limit_w


def _nothing_readable(refused: Sequence[Missing]) -> MeterUnavailable:
    if not refused:
        return MeterUnavailable("nvidia", "the driver is loaded but sees no GPU")
    reasons = "; ".join(f"{missing.name}: {missing.reason}" for missing in refused)
    names = tuple(missing.name for missing in refused)
    return MeterUnavailable("nvidia", reasons, refused[0].remedy, parts=names)
