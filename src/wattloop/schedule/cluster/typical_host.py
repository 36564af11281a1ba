"""What a node draws beside its GPUs, where nobody has measured it."""

from dataclasses import replace
from typing import NamedTuple

from wattloop.hardware.gpus import Gpu
from wattloop.predict.node import DISPATCH_CORES, NodeParts, node_prediction, typical_node
from wattloop.predict.prediction import Prediction

__all__ = ["HostPower", "typical_host"]


class HostPower(NamedTuple):
    """Power of a node less that of its GPUs, at the socket."""

    host_w: float
    busy_w_per_gpu: float
    source: str


def typical_host(gpu: Gpu, gpus: int, idle_w: float) -> HostPower:
    """Host of a server of the GPU's time, from the model of nodes of `predict`.

    At rest with all GPUs idle; and what is drawn more for each GPU at its power limit, fans and
    losses of the power supply among it.
    """
    parts = replace(typical_node(gpu), gpus=gpus)
    # Nobody trains, so no core dispatches or loads data.
    at_rest = replace(parts, loader_cores=-DISPATCH_CORES)
    rest_w = _beside_gpus_w(at_rest, idle_w)
    busy_w = _beside_gpus_w(parts, gpu.tdp_w)
    return HostPower(
        round(rest_w),
        round((busy_w - rest_w) / gpus),
        f"estimated: {parts.source.removeprefix('assumed: ')}, by predict's model of a node",
    )


def _beside_gpus_w(parts: NodeParts, gpu_w: float) -> float:
    step = Prediction(step_s=1.0, power_w=gpu_w, gpus=parts.gpus)
    return node_prediction(step, parts).power_w - parts.gpus * gpu_w
