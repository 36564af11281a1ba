"""Placement of a workload, and the prediction of a model for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from wattloop.hardware.gpus import Gpu

AT_REST = "on, whatever runs"
"""Name of the part of energy that idle and static power take."""
HOP_S = 5e-6
"""Latency of one hop of a ring, unless stated."""


@dataclass(frozen=True, slots=True)
class Placement:
    """GPUs of one type and their settings.

    Attributes:
        gpu: what the maker says of the GPU.
        gpus: how many train together (data parallel).
        cap_w: power limit of each GPU; None is the factory's.
        clock_mhz: locked SM clock; None lets the GPU choose.
        link_bytes_s: bandwidth of one GPU towards its neighbours in the ring, one way; None takes
            the GPU's own link.
        link_latency_s: of one hop, for each bucket of gradients.
        exchange_hop_s: what each hop adds once to every exchange of gradients, not hidden by
            backward: waiting for the slowest rank, work of the host.
        exchange_w: power of a GPU while it only exchanges; None is its power at rest.
        zero: what the GPUs divide: 0 nothing, 1 the optimizer's state, 2 gradients as well, 3
            weights as well (FSDP).
        gpus_per_node: beyond that, the ring crosses the network.
        network_bytes_s: bandwidth of a node towards its neighbour; None when it has one node.
        samples_s: the most samples a second that the data loader delivers per GPU; None is
            enough for any GPU.
        host_speed: dispatch speed of this host; 1 is the calibrated one's.
        is_host_known: False where that speed is only assumed, which widens intervals.
    """

    gpu: Gpu
    gpus: int = 1
    cap_w: float | None = None
    clock_mhz: float | None = None
    link_bytes_s: float | None = None
    link_latency_s: float = HOP_S
    exchange_hop_s: float = 0.0
    gpus_per_node: int = 8
    network_bytes_s: float | None = None
    samples_s: float | None = None
    host_speed: float = 1.0
    is_host_known: bool = True
    exchange_w: float | None = None
    zero: int = 0


class Regime(StrEnum):
    """Largest part of the step's time."""

    COMPUTE = "compute-bound"
    MEMORY = "memory-bound"
    LAUNCH = "launch-bound"
    COMMUNICATION = "communication-bound"
    DATA = "data-bound"


class Interval(NamedTuple):
    """Range of the true value with the stated confidence."""

    low: float
    high: float
    confidence: float = 0.9


@dataclass(frozen=True, slots=True)
class Prediction:
    """One training step on one placement.

    Attributes:
        step_s: time of one optimizer step.
        power_w: mean power of one GPU over the step.
        gpus: GPUs that run it; energy is theirs together.
        regime: what bounds the step.
        terms_s: seconds of the step by part; which parts there are is the model's own matter.
        terms_j: joules of one GPU by part; empty when the model does not say.
        gpu_s, host_s: time the GPU is busy, time the host needs to dispatch (one GPU).
        far: how far the step's operations are from what calibration has measured, by GPU time: 0
            right there, 1 out of reach; None when the model does not say.
        clock_mhz: SM clock the GPU is thought to run at; None when the model does not say.
        step_interval, power_interval, energy_interval: None when the model knows no residuals.
        model: which model answered, and from which constants: `kernels (H200, calibrated)`.
        warnings: outside the calibrated range, spec-only constants, does not fit, ..., in words.
    """

    step_s: float
    power_w: float
    gpus: int = 1
    regime: Regime = Regime.COMPUTE
    terms_s: Mapping[str, float] = field(default_factory=dict)
    terms_j: Mapping[str, float] = field(default_factory=dict)
    gpu_s: float | None = None
    host_s: float | None = None
    far: float | None = None
    clock_mhz: float | None = None
    step_interval: Interval | None = None
    power_interval: Interval | None = None
    energy_interval: Interval | None = None
    model: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def energy_j(self) -> float:
        """Return the energy of all GPUs over one step (scope: gpu)."""
        return self.step_s * self.power_w * self.gpus
