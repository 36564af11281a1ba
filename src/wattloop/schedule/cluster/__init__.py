"""The machines: nodes with GPUs of several types, and what they draw when nothing runs.

`file` reads clusters from YAML and knows those that are shipped.
"""

from wattloop.schedule.cluster.cluster import (
    Cluster,
    Failures,
    GpuType,
    NodeEvent,
    NodeGroup,
    Outage,
)

__all__ = ["Cluster", "Failures", "GpuType", "NodeEvent", "NodeGroup", "Outage"]
