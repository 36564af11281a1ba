"""Clusters: nodes with GPUs of several types, their idle power and their failures.

`file` reads clusters from YAML files and lists the shipped ones.
"""

from wattloop.schedule.cluster.cluster import (
    Cluster,
    Failures,
    GpuType,
    NodeEvent,
    NodeGroup,
    Outage,
    SleepState,
)

__all__ = ["Cluster", "Failures", "GpuType", "NodeEvent", "NodeGroup", "Outage", "SleepState"]
