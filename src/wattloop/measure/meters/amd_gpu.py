"""AMD GPUs: through amdsmi where it is installed, else the power file of the amdgpu driver."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from wattloop.core.errors import MeterUnavailable
from wattloop.core.results import Missing
from wattloop.hardware.host import Host
from wattloop.hardware.text_file import read_text
from wattloop.measure.meter import Context, Meter

__all__ = ["AmdCard", "detect", "find_cards", "nvidia_count"]

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
    from wattloop.measure.meters import amd_hwmon, amd_smi

    try:
        return amd_smi.detect(cards)
    except MeterUnavailable as refusal:
        meter, refused = amd_hwmon.detect(cards)
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
    """How many numbers NVIDIA cards have taken."""
    try:
        return sum(1 for _ in (host.procfs / "driver/nvidia/gpus").iterdir())
    except OSError:
        return 0


def _integrated(device: Path) -> bool:
    """Only processors with graphics have the north-bridge voltage `vddnb`."""
    labels = device.glob("hwmon/hwmon*/in*_label")
    return any(read_text(label) == "vddnb" for label in labels)
