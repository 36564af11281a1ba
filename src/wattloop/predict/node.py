"""Power of a whole node while a predicted step runs: GPUs, processors, memory and the rest."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from wattloop.accounting.node import (
    ADAPTER_W,
    BOARD_W,
    DISK_W,
    FAN_SHARE,
    PSU_EFFICIENCY,
    ChassisFact,
)
from wattloop.core.errors import ConfigError
from wattloop.core.records import Provenance
from wattloop.core.settings import Settings
from wattloop.hardware.cpus import (
    SMT_GAIN,
    Processor,
    estimate_error,
    package_power_w,
    processor_named,
    read_packages,
)
from wattloop.hardware.gpus import Gpu
from wattloop.hardware.host import Host
from wattloop.meters.dram import Dimm, describe, dimms_from_setting, dimms_from_smbios, dram_power_w
from wattloop.predict.prediction import Interval, Prediction

LOADER_CORES = 2.0
"""Default number of cores per GPU busy with loading data."""
MEMORY_USED = 0.2
"""Default share of the main memory in use during training."""


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
    """Return the vendor's server of a GPU's generation; a stated assumption."""
    name, cpu, modules = _SERVERS[_AGE.get(gpu.architecture, "hopper")]
    processor = processor_named(cpu)
    if processor is None:
        raise AssertionError(f"{cpu} left the table of processors")
    return NodeParts(
        processors=(processor,) * 2,
        dimms=dimms_from_setting(modules),
        source=f"assumed: 2 x {processor.name} and {modules} GiB, as in {name}",
    )


def node_with_settings(gpu: Gpu, settings: Settings) -> NodeParts:
    """Return a typical server of that GPU, with the values of the settings."""
    typical = typical_node(gpu)
    return replace(
        typical,
        dimms=dimms_from_setting(settings.dimms) if settings.dimms else typical.dimms,
        overhead_w=settings.node_overhead_w,
        psu_efficiency=settings.psu_efficiency,
    )


def node_here(host: Host, settings: Settings, gpu: Gpu) -> NodeParts:
    """Return this machine, as far as it can be read; values in the settings override.

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
        node_with_settings(gpu, settings),
        processors=processors,
        dimms=dimms or typical.dimms,
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


# Power of the whole node while a predicted step runs:
#
#     P_node = (P_gpu n + P_cpu + P_dram + P_other) / eta_psu
#
# GPUs from the prediction; processors from how busy their cores are (`hardware.cpus`);
# memory by the thesis's model (equations 4.1 and 4.2, `meters.dram`); board, disk,
# network card and fans, and the power supply, as the meters' model of a node has them
# (docs/accounting.md).

DISPATCH_CORES = 1.0
"""Per GPU: the process that trains dispatches operations, and spins while it waits for the GPU."""
DRAM_ERROR = 0.7
"""Known error of the model of the memory (docs/meters/dram.md)."""


@dataclass(frozen=True, slots=True)
class NodePrediction:
    """All nodes of a run together, at their sockets (scope: node).

    Attributes:
        power_w: mean power.
        power_interval: of power, from that of the GPUs and the ranges of what was assumed; meant
            to hold nine times in ten.
        step_s: time of a step, as predicted.
        parts_w: watts by part; they add up to `power_w`.
        assumptions: the model in words.
        provenance: of the power.
    """

    power_w: float
    power_interval: Interval
    step_s: float
    parts_w: Mapping[str, float]
    assumptions: tuple[str, ...]
    provenance: Provenance = Provenance.ESTIMATED

    @property
    def energy_j(self) -> float:
        return self.power_w * self.step_s

    @property
    def half_width_w(self) -> float:
        return (self.power_interval.high - self.power_interval.low) / 2


def node_prediction(prediction: Prediction, parts: NodeParts) -> NodePrediction:
    nodes = math.ceil(prediction.gpus / parts.gpus)
    # Share of the host: all of it, or in proportion to the used GPUs.
    share = float(nodes) if parts.alone else prediction.gpus / parts.gpus
    gpus_w = prediction.power_w * prediction.gpus
    cpu = _cpu(parts, prediction.gpus / share)
    dram = _dram(parts)
    known_w = gpus_w + share * (cpu.value + dram.value)
    other = _other(parts, share, known_w)
    eta = PSU_EFFICIENCY if parts.psu_efficiency is None else _stated(parts.psu_efficiency)
    drawn_w = known_w + other.value
    power_w = drawn_w / eta.value
    # Independent errors: their squares add.
    assumed_w = math.hypot(
        share * cpu.half_width / eta.value,
        share * dram.half_width / eta.value,
        other.half_width / eta.value,
        power_w * eta.half_width / eta.value,
    )
    below_w, above_w = (math.hypot(part / eta.value, assumed_w) for part in _gpu_range(prediction))
    return NodePrediction(
        power_w=power_w,
        power_interval=Interval(max(0.0, power_w - below_w), power_w + above_w),
        step_s=prediction.step_s,
        parts_w={
            "gpu": gpus_w,
            "cpu": share * cpu.value,
            "dram": share * dram.value,
            "other": other.value,
            "power supply": power_w - drawn_w,
        },
        assumptions=(
            f"{share:g} node{'s' if share > 1 else ''} of {parts.gpus} GPUs"
            + (", others pay for what is not used" if share < nodes else ""),
            f"{parts.source or 'processors and memory as given'}",
            cpu.source,
            dram.source,
            other.source,
            f"power supply {eta.value:.2f} ± {eta.half_width:.2f}: {eta.source}",
        ),
    )


def _gpu_range(prediction: Prediction) -> tuple[float, float]:
    interval = prediction.power_interval
    if interval is None:
        return 0.0, 0.0
    below_w, above_w = prediction.power_w - interval.low, interval.high - prediction.power_w
    return prediction.gpus * below_w, prediction.gpus * above_w


def _cpu(parts: NodeParts, gpus: float) -> ChassisFact:
    """Return the power of all sockets, with the cores that the GPUs of a node keep busy."""
    per_gpu = DISPATCH_CORES + parts.loader_cores
    cores = sum(processor.cores for processor in parts.processors)
    busy = min(1.0, per_gpu * gpus / cores) if cores else 0.0
    watts = width = 0.0
    for processor in parts.processors:
        # One thread of a busy core works; both would draw SMT_GAIN more.
        activity = busy / (1 + SMT_GAIN) if processor.threads > processor.cores else busy
        power_w = package_power_w(processor, activity)
        relative, of_tdp = estimate_error(processor, clock_known=False)
        watts += power_w
        width += relative * power_w + of_tdp * processor.tdp_w
    return ChassisFact(
        watts,
        width,
        f"CPU {watts:.0f} W ± {width:.0f} W: {busy * cores:.0f} of {cores} cores busy "
        f"({DISPATCH_CORES:g} per GPU dispatches, {parts.loader_cores:g} load data)",
    )


def _dram(parts: NodeParts) -> ChassisFact:
    watts = dram_power_w(parts.dimms, parts.memory_used)
    return ChassisFact(
        watts,
        DRAM_ERROR * watts,
        f"memory {watts:.0f} W: {describe(parts.dimms)}, {parts.memory_used:.0%} in use "
        "(equation 4.1)",
    )


def _other(parts: NodeParts, share: float, known_w: float) -> ChassisFact:
    if parts.overhead_w is not None:
        return ChassisFact(
            share * parts.overhead_w, 0.0, f"other parts {parts.overhead_w:g} W, as stated"
        )
    fixed = (BOARD_W, DISK_W, ADAPTER_W)
    watts = share * sum(part.value for part in fixed) + FAN_SHARE.value * known_w
    width = math.hypot(*(share * part.half_width for part in fixed), FAN_SHARE.half_width * known_w)
    return ChassisFact(
        watts,
        width,
        f"other parts {watts:.0f} W ± {width:.0f} W: board, disk, network card, and fans at "
        f"{FAN_SHARE.value:.0%} of what they cool (docs/accounting.md)",
    )


def _stated(efficiency: float) -> ChassisFact:
    return ChassisFact(efficiency, 0.0, "as stated")
