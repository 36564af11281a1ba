"""AMD GPUs: through amdsmi where it is installed, else the power file of the amdgpu driver."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Domain, DomainKind, Gap, Scope, Signal
from wattloop.core.results import Missing
from wattloop.hardware.host import Host, NumberFile, read_text, read_whole
from wattloop.meters.base import Context, Meter, Reading

AMD_VENDOR = "0x1002"
INSTALL_AMDSMI = (
    "install ROCm's amdsmi: pip install 'wattloop[amd]' where ROCm is, or "
    "pip install /opt/rocm/share/amd_smi"
)


class AmdCard(NamedTuple):
    """A card of the kernel's DRM tree.

    Attributes:
        name: `gpu:N`; N follows the NVIDIA cards of the machine, if any, so that names are unique.
        integrated: it shares the processor's package, whose energy already contains its own.
    """

    name: str
    device: Path
    pci_address: str
    integrated: bool

    @property
    def inside(self) -> str | None:
        """The domain that contains it."""
        return "cpu:0/package" if self.integrated else None


def detect(context: Context) -> Sequence[Meter]:
    """Counter and power of every AMD card."""
    cards = list(find_cards(context.host))
    if not cards:
        raise MeterUnavailable("amd-gpu", f"no AMD GPU under {context.host.sysfs}/class/drm")

    try:
        return detect_smi(cards)
    except MeterUnavailable as refusal:
        meter, refused = detect_hwmon(cards)
        if meter is not None:
            return [meter]
        raise _refusal(refusal, refused) from None


def find_cards(host: Host) -> Iterator[AmdCard]:
    """AMD cards in PCI order, which is also amdsmi's and ROCm's."""
    devices = []
    for card in (host.sysfs / "class/drm").glob("card*"):
        if (
            card.name.removeprefix("card").isdigit()
            and read_text(card / "device/vendor") == AMD_VENDOR
        ):
            devices.append(((card / "device").resolve().name, card / "device"))
    first = nvidia_count(host)
    for number, (address, device) in enumerate(sorted(devices), start=first):
        yield AmdCard(f"gpu:{number}", device, address, _integrated(device))


def _refusal(smi: MeterUnavailable, refused: Sequence[Missing]) -> MeterUnavailable:
    reasons = "; ".join(f"{missing.name}: {missing.reason}" for missing in refused)
    parts = tuple(missing.name for missing in refused)
    return MeterUnavailable(
        "amd-gpu", f"{smi.reason}, and {reasons}", smi.remedy or INSTALL_AMDSMI, parts
    )


def nvidia_count(host: Host) -> int:
    """Return how many numbers NVIDIA cards use."""
    try:
        return sum(1 for _ in (host.procfs / "driver/nvidia/gpus").iterdir())
    except OSError:
        return 0


def _integrated(device: Path) -> bool:
    """Only processors with graphics have the north-bridge voltage `vddnb`."""
    labels = device.glob("hwmon/hwmon*/in*_label")
    return any(read_text(label) == "vddnb" for label in labels)


POWER_FILES = ("power1_average", "power1_input")
"""Microwatts. RDNA3 and integrated graphics have only the second."""


class CardGauge(NamedTuple):
    """A number in a file, and its unit after division by `per_unit`."""

    name: str
    unit: str
    file: NumberFile
    per_unit: float

    def read(self) -> Reading:
        """Read the value, or a gap with the reason."""
        value = self.file.read()
        return value if isinstance(value, Gap) else value / self.per_unit


def detect_hwmon(cards: Sequence[AmdCard]) -> tuple["AmdHwmon | None", tuple[Missing, ...]]:
    """Find the cards that have a power file, and the reasons why others have none."""
    readable: list[tuple[AmdCard, CardGauge]] = []
    refused: list[Missing] = []
    for card in cards:
        paths = [p for n in POWER_FILES for p in sorted(card.device.glob(f"hwmon/hwmon*/{n}"))]
        if not paths:
            refused.append(Missing(card.name, f"no power file under {card.device}/hwmon"))
            continue
        gauge = CardGauge(card.name, "W", NumberFile(paths[0]), 1e6)
        reason = gauge.file.refusal()
        if reason:
            refused.append(Missing(card.name, reason, f"run 'sudo chmod a+r {paths[0]}'"))
        else:
            readable.append((card, gauge))
    return (AmdHwmon(readable, refused) if readable else None), tuple(refused)


class AmdHwmon(Meter):
    """`power1_average` or `power1_input` of each card."""

    name: ClassVar[str] = "amd-hwmon"
    shared: ClassVar[bool] = True

    def __init__(
        self, cards: Sequence[tuple[AmdCard, CardGauge]], refused: Sequence[Missing] = ()
    ) -> None:
        self._gauges = [gauge for _, gauge in cards]
        self._domains = tuple(_domain(card, gauge) for card, gauge in cards)
        self._signal_gauges = [
            signal
            for card, gauge in cards
            for signal in _signals(card, gauge.file.path.parent)
            if signal.file.path.exists()
        ]
        self._signals = tuple(Signal(gauge.name, gauge.unit) for gauge in self._signal_gauges)
        self._refused = tuple(refused)
        self._closed = False

    def read(self) -> Sequence[Reading]:
        return self._read_all(self._gauges)

    def read_signals(self) -> Sequence[Reading]:
        return self._read_all(self._signal_gauges)

    def close(self) -> None:
        self._closed = True
        for gauge in (*self._gauges, *self._signal_gauges):
            gauge.file.close()

    def _read_all(self, gauges: Sequence[CardGauge]) -> Sequence[Reading]:
        if self._closed:
            return [Gap(f"{gauge.name}: the meter is closed") for gauge in gauges]
        return [gauge.read() for gauge in gauges]


def _signals(card: AmdCard, hwmon: Path) -> Sequence[CardGauge]:
    def in_card(name: str, unit: str, file: str, per_unit: float) -> CardGauge:
        return CardGauge(f"{card.name}/{name}", unit, NumberFile(card.device / file), per_unit)

    def in_hwmon(name: str, unit: str, file: str, per_unit: float) -> CardGauge:
        file_read = NumberFile(hwmon / file, signed=name == "temperature")
        return CardGauge(f"{card.name}/{name}", unit, file_read, per_unit)

    return (
        in_card("utilisation", "fraction", "gpu_busy_percent", 100),
        in_card("memory_utilisation", "fraction", "mem_busy_percent", 100),
        in_hwmon("sm_clock", "MHz", "freq1_input", 1e6),
        in_hwmon("memory_clock", "MHz", "freq2_input", 1e6),
        in_hwmon("temperature", "degC", "temp1_input", 1e3),
        in_card("memory_used", "B", "mem_info_vram_used", 1),
        in_hwmon("power_limit", "W", "power1_cap", 1e6),
    )


def _domain(card: AmdCard, gauge: CardGauge) -> Domain:
    path = gauge.file.path
    limit_w = _watts(path.with_name("power1_cap"))
    default_w = _watts(path.with_name("power1_cap_default"))
    return Domain(
        name=card.name,
        kind=DomainKind.GAUGE,
        scope=Scope.GPU,
        source=f"amdgpu {path.name}",
        inside=card.inside,
        resolution=1e-3 if path.name == "power1_input" else 1.0,
        update_period_s=0.1,
        read_cost_s=100e-6,
        tdp_w=limit_w,
        tdp_note=limit_note(limit_w, default_w),
        device="AMD GPU " + card.pci_address,
        identity=card.pci_address,
    )


def limit_note(limit_w: float | None, default_w: float | None) -> str:
    """Describe the limit for people."""
    if limit_w is None:
        return ""
    if default_w is not None and limit_w < default_w:
        return f"enforced power limit {limit_w:g} W of {default_w:g} W default"
    return f"power limit {limit_w:g} W"


def _watts(path: Path) -> float | None:
    microwatts = read_whole(path)
    return microwatts / 1e6 if microwatts else None


MICROWATTS_ABOVE = 100_000
"""amdsmi gives power caps in microwatts since ROCm 6, in watts before; no card draws 100 kW."""
NO_PERMISSION = 10
NOT_FOUND = 31


class AmdGpu(NamedTuple):
    """A card and its amdsmi handle."""

    card: AmdCard
    handle: Any
    model: str
    resolution_j: float
    limit_w: float | None
    limit_note: str


Call = Callable[[Any, AmdGpu, Any], float]
"""`call(amdsmi, gpu, handle)`"""


def handles_by_address(smi: Any) -> dict[str, Any]:
    """Handles by PCI address, the one name that kernel and library share."""
    return {smi.amdsmi_get_gpu_device_bdf(h).lower(): h for h in smi.amdsmi_get_processor_handles()}


def inspect(smi: Any, card: AmdCard, handle: Any) -> AmdGpu:
    """Read the constant facts of a card."""
    try:
        model = str(smi.amdsmi_get_gpu_asic_info(handle)["market_name"])
    except (smi.AmdSmiException, KeyError):
        model = f"AMD GPU {card.pci_address}"
    try:
        resolution_j = float(smi.amdsmi_get_energy_count(handle)["counter_resolution"]) * 1e-6
    except (smi.AmdSmiException, KeyError):
        resolution_j = 0.0
    try:
        caps = smi.amdsmi_get_power_cap_info(handle)
        limit_w, default_w = _cap_w(caps["power_cap"]), _cap_w(caps["default_power_cap"])
    except (smi.AmdSmiException, KeyError, TypeError, ValueError):
        limit_w = default_w = 0.0
    note = limit_note(limit_w or None, default_w or None)
    return AmdGpu(card, handle, model, resolution_j, limit_w or None, note)


def _cap_w(cap: float) -> float:
    return float(cap) / 1e6 if float(cap) > MICROWATTS_ABOVE else float(cap)


def attempt(smi: Any, call: Call, gpu: AmdGpu, handle: Any = None) -> Reading:
    """Return the call's value, or a gap with the reason."""
    name = gpu.card.name
    try:
        return float(call(smi, gpu, gpu.handle if handle is None else handle))
    except smi.AmdSmiException as error:
        code = getattr(error, "err_code", None)
        return Gap(f"{name}: {reason(error)}", lost=code in (NO_PERMISSION, NOT_FOUND))
    except (KeyError, TypeError, ValueError):
        return Gap(f"{name}: amdsmi gives no number (N/A)")


def reason(error: Exception) -> str:
    """Return the library's message, on one line."""
    return " ".join(str(getattr(error, "err_info", error)).split())


def energy_j(smi: Any, gpu: AmdGpu, handle: Any) -> float:
    # E = accumulator x resolution, the resolution in microjoules (15.3 uJ on MI200 and MI300).
    count = smi.amdsmi_get_energy_count(handle)
    accumulator = count.get("energy_accumulator", count.get("power"))  # `power` before ROCm 6.1
    return float(accumulator) * float(count["counter_resolution"]) * 1e-6


def power_w(smi: Any, gpu: AmdGpu, handle: Any) -> float:
    """Return watts of the socket; ValueError where the card reports none."""
    info = smi.amdsmi_get_power_info(handle)
    for key in ("current_socket_power", "average_socket_power", "socket_power"):
        value = info.get(key)
        # Unsupported values are "N/A", or all ones in 16 or 32 bits in older versions.
        if isinstance(value, int | float) and 0 < value < 0xFFFF:
            return float(value)
    raise ValueError("no power value")


def _limit_w(smi: Any, gpu: AmdGpu, handle: Any) -> float:
    return _cap_w(smi.amdsmi_get_power_cap_info(handle)["power_cap"])


SIGNALS: tuple[tuple[str, str, Call], ...] = (
    ("utilisation", "fraction", lambda s, g, h: s.amdsmi_get_gpu_activity(h)["gfx_activity"] / 100),
    (
        "memory_utilisation",
        "fraction",
        lambda s, g, h: s.amdsmi_get_gpu_activity(h)["umc_activity"] / 100,
    ),
    (
        "sm_clock",
        "MHz",
        lambda s, g, h: float(s.amdsmi_get_clock_info(h, s.AmdSmiClkType.GFX)["clk"]),
    ),
    (
        "memory_clock",
        "MHz",
        lambda s, g, h: float(s.amdsmi_get_clock_info(h, s.AmdSmiClkType.MEM)["clk"]),
    ),
    (
        "temperature",
        "degC",
        lambda s, g, h: float(
            s.amdsmi_get_temp_metric(
                h, s.AmdSmiTemperatureType.HOTSPOT, s.AmdSmiTemperatureMetric.CURRENT
            )
        ),
    ),
    (
        "memory_used",
        "B",
        lambda s, g, h: float(s.amdsmi_get_gpu_memory_usage(h, s.AmdSmiMemoryType.VRAM)),
    ),
    ("power_limit", "W", _limit_w),
)
READ_COST_S = 1e-3
"""One read of the driver's metrics table; AMD's firmware refreshes it every millisecond."""


def detect_smi(cards: Sequence[AmdCard]) -> Sequence[Meter]:
    """A meter for power and one for the accumulators.

    Raises:
        MeterUnavailable: amdsmi is not installed, does not start, or reads nothing.
    """
    smi = _started()
    try:
        handles = handles_by_address(smi)
    except smi.AmdSmiException as error:
        raise MeterUnavailable("amdsmi", reason(error), INSTALL_AMDSMI) from None
    by_power: list[AmdGpu] = []
    by_counter: list[AmdGpu] = []
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

    shared: ClassVar[bool] = True
    kind: ClassVar[DomainKind]
    source: ClassVar[str]

    def __init__(
        self,
        smi: Any,
        gpus: Sequence[AmdGpu],
        signal_gpus: Sequence[AmdGpu],
        refused: Sequence[Missing],
    ) -> None:
        self._smi = smi
        self._gpus = tuple(gpus)
        self._signal_gpus = tuple(signal_gpus)
        self._refused = tuple(refused)
        self._handles: dict[str, Any] = {g.card.pci_address: g.handle for g in gpus}
        self._closed = False
        self._domains = tuple(self._domain(gpu) for gpu in gpus)
        self._signals = tuple(
            Signal(f"{gpu.card.name}/{name}", unit)
            for gpu in signal_gpus
            for name, unit, _ in SIGNALS
        )

    def read(self) -> Sequence[Reading]:
        return [self._guarded(self._call, gpu) for gpu in self._gpus]

    def read_signals(self) -> Sequence[Reading]:
        return [self._guarded(call, gpu) for gpu in self._signal_gpus for _, _, call in SIGNALS]

    def close(self) -> None:
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

    def _domain(self, gpu: AmdGpu) -> Domain:
        counter = self.kind is DomainKind.COUNTER
        return Domain(
            name=gpu.card.name,
            kind=self.kind,
            scope=Scope.GPU,
            source=self.source,
            inside=gpu.card.inside,
            resolution=gpu.resolution_j if counter else 1.0,
            update_period_s=0.001 if counter else 0.1,
            read_cost_s=READ_COST_S,
            tdp_w=gpu.limit_w,
            tdp_note=gpu.limit_note,
            device=gpu.model,
            identity=gpu.card.pci_address,
        )

    @abstractmethod
    def _call(self, smi: Any, gpu: AmdGpu, handle: Any) -> float:
        """The value of one card."""

    def _guarded(self, call: Call, gpu: AmdGpu) -> Reading:
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
    kind = DomainKind.GAUGE
    source = "amdsmi socket power"

    def _call(self, smi: Any, gpu: AmdGpu, handle: Any) -> float:
        return power_w(smi, gpu, handle)


class AmdSmiEnergy(_AmdSmiMeter):
    """The energy accumulator (Instinct cards since MI200)."""

    name: ClassVar[str] = "amdsmi-energy"
    kind = DomainKind.COUNTER
    source = "amdsmi energy accumulator"

    def _call(self, smi: Any, gpu: AmdGpu, handle: Any) -> float:
        return energy_j(smi, gpu, handle)


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
