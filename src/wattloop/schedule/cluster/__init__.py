"""The machines: nodes with GPUs of several types, and what they draw when nothing runs."""

from wattloop.schedule.cluster.cluster import Cluster, GpuType, NodeGroup

__all__ = ["Cluster", "GpuType", "NodeGroup"]
