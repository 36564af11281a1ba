"""Where a workload is to run."""

from dataclasses import dataclass

from wattloop.hardware.gpus import Gpu

__all__ = ["Placement"]


@dataclass(frozen=True, slots=True)
class Placement:
    """GPUs of one type and how they are set.

    Attributes:
        gpu: what the maker says of the GPU.
        gpus: how many train together (data parallel).
        cap_w: power limit of each GPU; None is the factory's.
        clock_mhz: locked SM clock; None lets the GPU choose.
        link_bytes_s: bandwidth of one GPU towards its neighbours in the ring, one way; None takes
            the GPU's own link.
        link_latency_s: of one hop.
        gpus_per_node: beyond that, the ring crosses the network.
        network_bytes_s: bandwidth of a node towards its neighbour; None when it has one node.
        samples_s: the most samples a second that the data loader delivers per GPU; None is
            enough for any GPU.
        host_speed: how quick this host dispatches operations, 1 is the calibrated one's.
    """

    gpu: Gpu
    gpus: int = 1
    cap_w: float | None = None
    clock_mhz: float | None = None
    link_bytes_s: float | None = None
    link_latency_s: float = 5e-6
    gpus_per_node: int = 8
    network_bytes_s: float | None = None
    samples_s: float | None = None
    host_speed: float = 1.0
