"""The processors of this machine as /proc/cpuinfo and cpufreq tell them."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from wattloop.hardware.cpus import (
    Processor,
    clock_in_name_mhz,
    guess_processor,
    processor_named,
)
from wattloop.hardware.host import Host
from wattloop.hardware.text_file import read_whole, whole_number

__all__ = ["Package", "clock_mhz", "read_packages"]

CPU_TREE = "devices/system/cpu"
BOOST_OVER_BASE = 1.2
"""Typical ratio of the highest clock to the guaranteed one, where only the highest is known."""


class Package(NamedTuple):
    """One socket.

    Attributes:
        number: physical id.
        cores: for each visible core, the numbers of its logical CPUs.
        processor: what is known of the part.
        virtual: whether a hypervisor stands between us and it.
        base_mhz: the clock at TDP, as far as known.
        share: part of the package that this machine may use, 1 unless virtual.
    """

    number: int
    cores: tuple[tuple[int, ...], ...]
    processor: Processor
    virtual: bool
    base_mhz: float | None
    share: float

    @property
    def cpus(self) -> tuple[int, ...]:
        """All logical CPUs."""
        return tuple(cpu for core in self.cores for cpu in core)


def read_packages(host: Host) -> tuple[Package, ...]:
    """The sockets of this machine in order; empty when /proc/cpuinfo cannot be read."""
    blocks = _blocks(host.read_text("proc", "cpuinfo") or "")
    sockets: dict[int, list[dict[str, str]]] = {}
    for block in blocks:
        sockets.setdefault(_socket(host, block), []).append(block)
    return tuple(_package(host, number, sockets[number]) for number in sorted(sockets))


def clock_mhz(host: Host, cpu: int) -> float | None:
    """The current clock of a logical CPU from cpufreq."""
    kilohertz = read_whole(host.sysfs / CPU_TREE / f"cpu{cpu}/cpufreq/scaling_cur_freq")
    return None if kilohertz is None else kilohertz / 1_000


def _package(host: Host, number: int, blocks: list[dict[str, str]]) -> Package:
    cores: dict[str, list[int]] = {}
    for block in blocks:
        cpu = _whole(block["processor"])
        # ARM prints no core id; each logical CPU then is a core.
        cores.setdefault(block.get("core id", f"cpu{cpu}"), []).append(cpu)
    first = blocks[0]
    virtual = "hypervisor" in first.get("flags", "").split() or _is_virtual_arm(host, first)
    threads = len(blocks)
    name = first.get("model name") or _arm_name(first)
    processor = processor_named(name) or guess_processor(
        name,
        cores=len(cores),
        threads=threads,
        vendor_family_model=_generation(first),
        virtual=virtual,
    )
    return Package(
        number=number,
        cores=tuple(tuple(cpus) for cpus in cores.values()),
        processor=processor,
        virtual=virtual,
        base_mhz=_base_mhz(host, blocks, name) or processor.base_mhz,
        share=min(1.0, threads / processor.threads) if virtual else 1.0,
    )


def _socket(host: Host, block: Mapping[str, str]) -> int:
    """Number of the package; ARM kernels print none, but the topology in sysfs has it."""
    number = whole_number(block.get("physical id"))
    if number is None:
        cpu = f"cpu{_whole(block['processor'])}"
        number = read_whole(host.sysfs / CPU_TREE / cpu / "topology/physical_package_id")
    # -1 stands for a package that the firmware does not number
    return max(0, number or 0)


def _blocks(text: str) -> list[dict[str, str]]:
    blocks = []
    for paragraph in re.split(r"\n\s*\n", text):
        pairs = (line.split(":", 1) for line in paragraph.splitlines() if ":" in line)
        block = {key.strip(): value.strip() for key, value in pairs}
        if whole_number(block.get("processor")) is not None:
            blocks.append(block)
    return blocks


def _base_mhz(host: Host, blocks: list[dict[str, str]], name: str) -> float | None:
    cpu = host.sysfs / CPU_TREE / f"cpu{_whole(blocks[0]['processor'])}"
    for file, per_mhz in (("cpufreq/base_frequency", 1_000), ("acpi_cppc/nominal_freq", 1)):
        value = read_whole(cpu / file)
        if value:
            return value / per_mhz
    known = clock_in_name_mhz(name)
    if known is None:
        known_processor = processor_named(name)
        known = known_processor.base_mhz if known_processor else None
    if known is None:
        highest_khz = read_whole(cpu / "cpufreq/cpuinfo_max_freq")
        if highest_khz:
            known = highest_khz / 1_000 / BOOST_OVER_BASE
    return known


def _generation(block: Mapping[str, str]) -> str:
    if "vendor_id" in block:
        return f"{block['vendor_id']}-{block.get('cpu family', '')}-{block.get('model', '')}"
    return f"ARM-{block.get('CPU implementer', '')}-{block.get('CPU part', '')}"


def _arm_name(block: Mapping[str, str]) -> str:
    """ARM kernels print no name, but the part of the core's design."""
    return _ARM_CORES.get(block.get("CPU part", ""), "ARM processor")


_ARM_CORES = {
    "0xd0c": "ARM Neoverse N1 (Graviton2, Ampere Altra)",
    "0xd40": "ARM Neoverse V1 (Graviton3)",
    "0xd4f": "ARM Neoverse V2 (Grace, Graviton4)",
}


def _is_virtual_arm(host: Host, block: Mapping[str, str]) -> bool:
    """ARM has no hypervisor flag; clouds show themselves in the SMBIOS vendor."""
    if "flags" in block:
        return False
    vendor = host.read_text("sys", "class/dmi/id/sys_vendor") or ""
    return vendor in ("Amazon EC2", "Google", "Microsoft Corporation", "QEMU")


def _whole(text: str | None) -> int:
    return whole_number(text) or 0
