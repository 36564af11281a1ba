"""What a node has beside its GPUs: processors and memory, stated, found here, or assumed."""

from dataclasses import dataclass, replace

from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.hardware.cpuinfo import read_packages
from wattloop.hardware.cpus import Processor, processor_named
from wattloop.hardware.dimms import Dimm, describe, dimms_from_setting, dimms_from_smbios
from wattloop.hardware.gpus import Gpu
from wattloop.hardware.host import Host

__all__ = ["NodeParts", "node_here", "typical_node"]

LOADER_CORES = 2.0
"""Cores per GPU busy with loading data, where nobody says."""
MEMORY_USED = 0.2
"""Part of the main memory in use during training, where nobody says."""


@dataclass(frozen=True, slots=True)
class NodeParts:
    """One node.

    Attributes:
        processors: one entry per socket.
        dimms: installed memory modules.
        gpus: slots of the node; a run on fewer is charged its part of everything else, unless it
            has the node for itself.
        alone: whether the run has the whole node, and is charged all of it.
        loader_cores: busy per GPU with loading data.
        memory_used: part of the main memory in use, 0 to 1.
        overhead_w, psu_efficiency: of the rest; None takes published values (docs/accounting.md).
        source: where processors and memory come from, for people.
    """

    processors: tuple[Processor, ...]
    dimms: tuple[Dimm, ...]
    gpus: int = 8
    alone: bool = False
    loader_cores: float = LOADER_CORES
    memory_used: float = MEMORY_USED
    overhead_w: float | None = None
    psu_efficiency: float | None = None
    source: str = ""


def typical_node(gpu: Gpu) -> NodeParts:
    """The makers' own servers of a GPU's time; an assumption, and it says so."""
    name, cpu, modules = _SERVERS[_AGE.get(gpu.architecture, "hopper")]
    processor = processor_named(cpu)
    if processor is None:
        raise AssertionError(f"{cpu} left the table of processors")
    return NodeParts(
        processors=(processor,) * 2,
        dimms=dimms_from_setting(modules),
        source=f"assumed: 2 x {processor.name} and {modules} GiB, as in {name}",
    )


def node_here(host: Host, settings: Settings, gpu: Gpu) -> NodeParts:
    """This machine, as far as it tells; the settings' modules, overhead and efficiency win.

    What cannot be read is taken from `typical_node`, and the source says so.
    """
    typical = typical_node(gpu)
    told = []
    packages = read_packages(host)
    processors = tuple(package.processor for package in packages)
    if processors:
        told.append(f"{len(processors)} x {processors[0].name}, found here")
    else:
        processors = typical.processors
        told.append(f"processors {typical.source}")
    dimms = _dimms(host, settings)
    told.append(describe(dimms) if dimms else f"memory {typical.source}")
    node = replace(
        typical,
        processors=processors,
        dimms=dimms or typical.dimms,
        overhead_w=settings.node_overhead_w,
        psu_efficiency=settings.psu_efficiency,
        source="; ".join(told),
    )
    if settings.cpu_tdp_w is not None:
        stated_w = settings.cpu_tdp_w
        known = (p._replace(tdp_w=stated_w, tdp_error=0.0) for p in node.processors)
        node = replace(node, processors=tuple(known))
    return node


def _dimms(host: Host, settings: Settings) -> tuple[Dimm, ...]:
    if settings.dimms:
        return dimms_from_setting(settings.dimms)
    try:
        return dimms_from_smbios(host)
    except (PermissionError, ConfigError):
        return ()


_SERVERS = {
    "volta": ("DGX-1 with V100 (NVIDIA data sheet, 2017)", "Xeon E5-2698 v4", "16x32"),
    "ampere": ("DGX A100 (NVIDIA data sheet, 2020)", "EPYC 7742", "16x64"),
    "hopper": ("DGX H100 (NVIDIA data sheet, 2022)", "Xeon Platinum 8480C", "32x64"),
}
"""Server, each of its two processors, its memory modules in GiB."""
_AGE = {
    "kepler": "volta",
    "pascal": "volta",
    "volta": "volta",
    "turing": "volta",
    "ampere": "ampere",
    "cdna": "ampere",
    "cdna2": "ampere",
}
