"""How fast a job ran where a trace saw it: what turns its duration into work."""

import numpy as np

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.oracle.options import Options

__all__ = ["reference_sample_s", "reference_type"]


def reference_type(cluster: Cluster) -> int:
    """The GPU type that a trace without types is taken to come from: the most common one."""
    return int(np.argmax(cluster.gpus_by_type))


def reference_sample_s(
    options: Options, cluster: Cluster, type_index: int, gpus: int
) -> tuple[float, bool]:
    """Seconds per sample on `gpus` GPUs of a type at full power with the fastest batch.

    Where that placement does not exist: the same number of GPUs of the most common type that has
    it; else the nearest number there is, taken to scale evenly.

    Returns:
        The figure, NaN for a kind without any placement; and whether it is of that very placement.
    """
    if not len(options):
        return np.nan, False
    by_size = sorted(range(len(cluster.types)), key=lambda n: -cluster.gpus_by_type[n])
    for each in (type_index, *by_size):
        rows = np.flatnonzero((options.type_index == each) & (options.gpus == gpus))
        if len(rows):
            full = rows[options.cap_w[rows] == options.cap_w[rows].max()]
            return float(options.sample_s[full].min()), each == type_index
    nearest = options.gpus[np.argmin(np.abs(np.log(options.gpus / gpus)))]
    rows = np.flatnonzero(options.gpus == nearest)
    return float(options.sample_s[rows].min() * nearest / gpus), False
