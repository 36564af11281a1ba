"""Communication of data-parallel training: ring all-reduce of gradients, overlapped with backward.

    T_comm = 2 (n - 1) L_hop + 2 (n - 1) / n  size(gradients) / B                (equation 4.8)

Every GPU sends and receives 2 (n - 1) / n of the gradients: once to add them up around the ring,
once to hand the sum around. B is what one GPU sends per second to its neighbour, the *bus*
bandwidth; so bus bandwidth = algorithm bandwidth x 2 (n - 1) / n. (The thesis writes (n - 1) / n,
which holds for one of both halves; with it, 220 GB/s of bus on four A100 would be 293 GB/s of
algorithm, above the 200 GB/s that a 300 GB/s link can give.)

torch's DistributedDataParallel sends gradients in buckets of 25 MB, as soon as backward has filled
one. What is left when backward ends is added to the step; so is a part of what was hidden, because
sending takes SMs from computing. Passes that only accumulate gradients send nothing: `backward_s`
is that of the last pass.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattloop.core.errors import ConfigError
from wattloop.predict.prediction import Placement

Array = npt.NDArray[np.float64]
Numbers = Array | float
BUCKET_BYTES = 25 * 2**20
"""`bucket_cap_mb` of torch's DistributedDataParallel."""
LINK_EFFICIENCY = 0.75
"""Bus bandwidth that NCCL reaches on NVLink, of one direction of it: 220 to 230 of 300 GB/s on
A100 (thesis 4.3.5.1; NVIDIA's NCCL tests)."""
PCIE_EFFICIENCY = 0.6
"""The same through PCIe and the host's memory."""
INTERFERENCE = 0.22
"""By how much backward is slower while gradients are sent: NCCL's 24 channels hold as many of the
108 SMs of an A100."""
NETWORK_LATENCY_S = 20e-6
"""Of one hop between nodes."""


class Ring(NamedTuple):
    """Bandwidth and latency of the slowest hop of a ring of `gpus`."""

    gpus: int
    bytes_s: float
    hop_s: float


class Exchange(NamedTuple):
    """One exchange of all gradients: its whole time, and the time it adds to the step."""

    total_s: Array
    exposed_s: Array


def all_reduce_s(size_bytes: Numbers, ring: Ring) -> Array:
    """Return the time to average `size_bytes` over the ring (equation 4.8); 0 for one GPU."""
    n = ring.gpus
    if n <= 1:
        return np.zeros(np.shape(size_bytes))
    seconds: Array = 2 * (n - 1) * ring.hop_s + np.asarray(size_bytes) * (
        2 * (n - 1) / n / ring.bytes_s
    )
    return seconds


def ring_of(placement: Placement) -> Ring:
    """Return the ring that the GPUs of a placement form.

    Raises:
        ConfigError: it spans nodes and no network is given, or a bandwidth is not above 0.
    """
    gpu = placement.gpu
    bytes_s, hop_s = placement.link_bytes_s, placement.link_latency_s
    if bytes_s is None and min(placement.gpus, placement.gpus_per_node) <= gpu.link_gpus:
        bytes_s = LINK_EFFICIENCY * gpu.link_bytes_s / 2
    elif bytes_s is None:  # a bridge joins two cards; a larger ring also uses other links
        bytes_s = PCIE_EFFICIENCY * gpu.pcie_bytes_s
    if not bytes_s > 0:
        raise ConfigError(f"link_bytes_s is {bytes_s:g}; it must be above 0, such as 100e9")
    if placement.gpus > placement.gpus_per_node:
        if placement.network_bytes_s is None:
            raise ConfigError(
                f"gpus {placement.gpus}: more than the {placement.gpus_per_node} of a node, so say "
                "what joins the nodes: --network 200 (Gbit/s), or network_bytes_s, such as 25e9"
            )
        if not placement.network_bytes_s > 0:
            raise ConfigError(
                f"network_bytes_s is {placement.network_bytes_s:g}; it must be above 0, such as "
                "25e9"
            )
        # A ring runs at the pace of its slowest hop.
        bytes_s, hop_s = min(bytes_s, placement.network_bytes_s), max(hop_s, NETWORK_LATENCY_S)
    return Ring(placement.gpus, bytes_s, hop_s)


def exchange(
    gradient_bytes: Numbers,
    backward_s: Numbers,
    ring: Ring,
    *,
    bucket_bytes: float = BUCKET_BYTES,
    overlap: bool = True,
    interference: float = INTERFERENCE,
) -> Exchange:
    """Return the exchange of gradients that become ready evenly during backward.

    With k buckets of c seconds each, ready every backward_s / k: sending keeps up, and the last
    bucket is left; or it does not, and all of it but the first wait is.

    Args:
        gradient_bytes: of one GPU.
        backward_s: time of the last backward pass.
        ring: where it goes.
        bucket_bytes: size of a bucket.
        overlap: False when sending begins after backward.
        interference: seconds that a hidden second of sending costs backward.
    """
    size = np.asarray(gradient_bytes, dtype=np.float64)
    buckets = np.maximum(np.ceil(size / bucket_bytes), 1.0)
    bucket_s = all_reduce_s(size / buckets, ring)
    total_s = buckets * bucket_s
    if not overlap:
        return Exchange(total_s, total_s)
    first_s = np.asarray(backward_s, dtype=np.float64) / buckets
    after_s = np.minimum(np.maximum(bucket_s, first_s + total_s - backward_s), total_s)
    return Exchange(total_s, after_s + interference * (total_s - after_s))


GATHER_INTERFERENCE = 0.75
"""By how much computing is slower while weights are gathered or gradients scattered by FSDP, fitted
to published trainings (benchmarks/predict_parallel.py)."""


def sharded_exchange(
    gather_bytes: Numbers,
    gradient_bytes: Numbers,
    forward_s: Numbers,
    backward_s: Numbers,
    ring: Ring,
    *,
    again: bool = True,
) -> Exchange:
    """Return what one pass of a sharded model exchanges.

    Weights are gathered next to forward, next to backward once more (`again`, ZeRO 3), where
    gradients are scattered as well. An all-gather or scatter is half an all-reduce.

    Args:
        gather_bytes: of the weights as they are gathered.
        gradient_bytes: of the gradients as they are added up.
        forward_s: GPU time of one forward pass.
        backward_s: GPU time of one backward pass.
        ring: where it goes.
        again: weights are not kept between forward and backward.
    """
    gather_s = all_reduce_s(gather_bytes, ring) / 2
    scatter_s = all_reduce_s(gradient_bytes, ring) / 2
    total: Array = np.zeros(np.shape(gather_s))
    exposed: Array = np.zeros(np.shape(gather_s))
    for seconds, busy_s in (
        (gather_s, forward_s),
        (scatter_s + (gather_s if again else 0.0), backward_s),
    ):
        left_s = np.maximum(seconds - busy_s, 0.0)
        total = total + seconds
        exposed = exposed + left_s + GATHER_INTERFERENCE * (seconds - left_s)
    return Exchange(total, exposed)
