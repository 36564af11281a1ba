"""The cluster of the thesis and its kinds of jobs."""

from wattloop.hardware.gpus import gpu_named
from wattloop.schedule.cluster import Cluster, GpuType, NodeGroup
from wattloop.schedule.jobs import JobKind

CAPS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
VIT = JobKind("hf:google/vit-base-patch16-224", "tf32", (1, 2, 4, 8), (64, 128, 256), CAPS)
ALBERT = JobKind("hf:albert-base-v2", "bf16", (1, 2, 4, 8), (32, 64, 128), CAPS, sequence=256)
RESNET = JobKind("hf:microsoft/resnet-50", "tf32", (1, 2, 4, 8), (64, 128, 256), CAPS)


def thesis_cluster(nodes: int = 1, network_bytes_s: float = 25e9) -> Cluster:
    """Return 8 A100 and 8 H100, or a multiple of that."""
    types = (
        GpuType("a100", gpu_named("a100-sxm-40"), 55.0),
        GpuType("h100", gpu_named("h100-sxm"), 70.0),
    )
    groups = tuple(NodeGroup(each.name, each.name, nodes, 8) for each in types)
    return Cluster("thesis", types, groups, network_bytes_s=network_bytes_s)
