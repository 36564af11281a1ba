"""Which of the node's cards a job's GPU numbers mean.

Slurm numbers GPUs by the device files of `gres.conf` (`SLURM_JOB_GPUS=0,1` means /dev/nvidia0 and
/dev/nvidia1), so the number is the driver's *minor number*. NVML, and with it our `gpu:N`, counts
in the order of the PCI bus; CUDA inside a job counts the visible ones from 0 again. The first two
differ on some boards, so the minor numbers are asked for.
"""

import re
from collections.abc import Mapping, Sequence

from wattloop.core.errors import MeterUnavailable
from wattloop.hardware.host import Host

__all__ = ["gpu_names", "minor_numbers", "parse_numbers"]

MOST = 1_024


def parse_numbers(text: str) -> list[int]:
    """`0,1`, `0-3` or `0,2-3` as numbers, each once; [] where the text is none of these."""
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        if match is None:
            return []
        first = int(match.group(1))
        last = first if match.group(2) is None else int(match.group(2))
        if last < first or last >= MOST:
            return []
        found += range(first, last + 1)
    return sorted(set(found))


def gpu_names(
    numbers: Sequence[int], known: Sequence[str], mapping: Mapping[int, int]
) -> tuple[list[str], list[int]]:
    """Domains of these GPUs, and the numbers that no card here has.

    Args:
        numbers: as Slurm gives them.
        known: the GPU domains of this node (`gpu:0`, ...).
        mapping: Slurm's number -> number of the domain; where it says nothing, they are the same
            if the first card is `gpu:0`, else counted from the first.
    """
    own = sorted((name for name in known if re.fullmatch(r"gpu:\d+", name)), key=_number)
    found, strange = [], []
    for number in numbers:
        name = f"gpu:{mapping[number]}" if number in mapping else ""
        if not mapping and number < len(own):
            name = own[number] if f"gpu:{number}" not in own else f"gpu:{number}"
        if name in own:
            found.append(name)
        else:
            strange.append(number)
    return found, strange


def minor_numbers(host: Host) -> dict[int, int]:
    """Minor number -> NVML index of every NVIDIA card; {} without the driver."""
    from wattloop.meters import nvml_library

    try:
        nvml = nvml_library.open_nvml(host)
    except MeterUnavailable:
        return {}
    try:
        found: dict[int, int] = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                found[int(nvml.nvmlDeviceGetMinorNumber(handle))] = index
            except nvml.NVMLError:
                continue  # lost, or a driver that does not say: its number stays unknown
        return found
    finally:
        nvml_library.shut_down(nvml)


def _number(name: str) -> int:
    return int(name.partition(":")[2])
