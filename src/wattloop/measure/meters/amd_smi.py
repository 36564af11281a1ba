"""AMD GPUs through amdsmi: the energy accumulator and power."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Scope, Signal
from wattloop.core.results import Missing
from wattloop.measure.meter import Meter, Reading
from wattloop.measure.meters.amd_gpu import INSTALL_AMDSMI, AmdCard
from wattloop.measure.meters.amd_smi_card import (
    SIGNALS,
    Call,
    Gpu,
    attempt,
    energy_j,
    handles_by_address,
    inspect,
    power_w,
    reason,
)

__all__ = ["AmdSmiEnergy", "AmdSmiPower", "detect"]

READ_COST_S = 1e-3
"""One read of the driver's metrics table; AMD's firmware refreshes it every millisecond."""


def detect(cards: Sequence[AmdCard]) -> Sequence[Meter]:
    """A meter for power and one for the accumulators.

    Raises:
        MeterUnavailable: amdsmi is not installed, does not start, or reads nothing.
    """
    smi = _started()
    try:
        handles = handles_by_address(smi)
    except smi.AmdSmiException as error:
        raise MeterUnavailable("amdsmi", reason(error), INSTALL_AMDSMI) from None
    by_power: list[Gpu] = []
    by_counter: list[Gpu] = []
    refused: list[Missing] = []
    for card in cards:
        handle = handles.get(card.pci_address)
        if handle is None:
            refused.append(Missing(card.name, f"amdsmi does not see {card.pci_address}"))
            continue
        gpu = inspect(smi, card, handle)
        has_power = isinstance(attempt(smi, power_w, gpu), float)
        has_counter = isinstance(attempt(smi, energy_j, gpu), float)
        by_power += [gpu] if has_power else []
        by_counter += [gpu] if has_counter else []
        if not has_power and not has_counter:
            refused.append(
                Missing(
                    card.name,
                    f"{gpu.model} reports neither power nor energy (the second die of an MI250 "
                    "is counted on the first; guests of a virtualised card see none)",
                )
            )
    meters: list[Meter] = []
    if by_power:
        meters.append(AmdSmiPower(smi, by_power, by_power, refused))
    if by_counter:
        only_here = [gpu for gpu in by_counter if gpu not in by_power]
        meters.append(AmdSmiEnergy(smi, by_counter, only_here, () if meters else refused))
    if not meters:
        smi.amdsmi_shut_down()
        reasons = "; ".join(f"{missing.name}: {missing.reason}" for missing in refused)
        raise MeterUnavailable("amdsmi", reasons, INSTALL_AMDSMI)
    _users[smi] = _users.get(smi, 0) + len(meters)
    return meters


_users: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Open meters per loaded amdsmi module, which has one state: the last to close shuts it down."""


class _AmdSmiMeter(Meter):
    """Cards, signals and end of life; subclasses know what to read."""

    def __init__(
        self, smi: Any, gpus: Sequence[Gpu], signal_gpus: Sequence[Gpu], refused: Sequence[Missing]
    ) -> None:
        self._smi = smi
        self._gpus = tuple(gpus)
        self._signal_gpus = tuple(signal_gpus)
        self._refused = tuple(refused)
        self._handles: dict[str, Any] = {g.card.pci_address: g.handle for g in gpus}
        self._closed = False
        self._domains = tuple(self._domain(gpu) for gpu in gpus)

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
        """Utilisation, clocks, temperature, memory and power limit."""
        return tuple(
            Signal(f"{gpu.card.name}/{name}", unit)
            for gpu in self._signal_gpus
            for name, unit, _ in SIGNALS
        )

    def read(self) -> Sequence[Reading]:
        """One value per card."""
        return [self._guarded(self._call, gpu) for gpu in self._gpus]

    def read_signals(self) -> Sequence[Reading]:
        """One value per signal."""
        return [self._guarded(call, gpu) for gpu in self._signal_gpus for _, _, call in SIGNALS]

    def close(self) -> None:
        """Shut amdsmi down with its last user."""
        if self._closed:
            return
        self._closed = True
        _users[self._smi] = _users.get(self._smi, 1) - 1
        if _users[self._smi] <= 0:
            attempt(
                self._smi, lambda smi, gpu, handle: smi.amdsmi_shut_down() or 0.0, self._gpus[0]
            )

    def after_fork_in_child(self) -> None:
        """Handles belong to the parent; the child opens its own at its first read."""
        self._handles.clear()

    @abstractmethod
    def _domain(self, gpu: Gpu) -> Domain:
        """What is known of the sensor."""

    @abstractmethod
    def _call(self, smi: Any, gpu: Gpu, handle: Any) -> float:
        """The value of one card."""

    def _guarded(self, call: Call, gpu: Gpu) -> Reading:
        if self._closed:
            return Gap(f"{gpu.card.name}: the meter is closed")
        if not self._handles:
            try:
                self._smi.amdsmi_init()
                self._handles = handles_by_address(self._smi)
            except self._smi.AmdSmiException as error:
                return Gap(f"{gpu.card.name}: {reason(error)}")
        return attempt(self._smi, call, gpu, self._handles.get(gpu.card.pci_address))


class AmdSmiPower(_AmdSmiMeter):
    """Socket power."""

    name: ClassVar[str] = "amdsmi-power"
    shared: ClassVar[bool] = True

    def _call(self, smi: Any, gpu: Gpu, handle: Any) -> float:
        return power_w(smi, gpu, handle)

    def _domain(self, gpu: Gpu) -> Domain:
        return Domain(
            name=gpu.card.name,
            kind=DomainKind.GAUGE,
            scope=Scope.GPU,
            source="amdsmi socket power",
            inside=gpu.card.inside,
            resolution=1.0,
            update_period_s=0.1,
            read_cost_s=READ_COST_S,
            tdp_w=gpu.limit_w,
            tdp_note=gpu.limit_note,
            device=gpu.model,
            identity=gpu.card.pci_address,
        )


class AmdSmiEnergy(_AmdSmiMeter):
    """The energy accumulator (Instinct cards since MI200)."""

    name: ClassVar[str] = "amdsmi-energy"
    shared: ClassVar[bool] = True

    def _call(self, smi: Any, gpu: Gpu, handle: Any) -> float:
        return energy_j(smi, gpu, handle)

    def _domain(self, gpu: Gpu) -> Domain:
        return Domain(
            name=gpu.card.name,
            kind=DomainKind.COUNTER,
            scope=Scope.GPU,
            source="amdsmi energy accumulator",
            inside=gpu.card.inside,
            resolution=gpu.resolution_j,
            update_period_s=0.001,
            read_cost_s=READ_COST_S,
            tdp_w=gpu.limit_w,
            tdp_note=gpu.limit_note,
            device=gpu.model,
            identity=gpu.card.pci_address,
        )


def _started() -> Any:
    try:
        import amdsmi
    except (ImportError, OSError, KeyError, AttributeError, RuntimeError) as error:
        # The package raises whatever the search for libamd_smi.so ends with.
        why = f"amdsmi cannot be imported ({type(error).__name__}: {error})"
        raise MeterUnavailable("amdsmi", why, INSTALL_AMDSMI) from None
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        raise MeterUnavailable("amdsmi", f"amdsmi does not start: {reason(error)}") from None
    return amdsmi
