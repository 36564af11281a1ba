"""What cannot be simulated at all."""

import math

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.engine.settings import Settings
from wattloop.schedule.jobs.table import JobTable

__all__ = ["check_input"]


def check_input(cluster: Cluster, jobs: JobTable, settings: Settings) -> None:
    """Refuse what would make time run backwards or never end.

    Raises:
        ConfigError: which job or event, and what is wrong with it.
    """
    for name, column in (("arrival_s", jobs.arrival_s), ("work", jobs.work)):
        bad = np.flatnonzero(~(np.isfinite(column) & (column >= 0.0)))
        if len(bad):
            raise ConfigError(
                f"jobs: {name} of job {bad[0]} is {column[bad[0]]:g}; give a number from 0 on"
            )
    for event in settings.node_events:
        if not 0 <= event.node < len(cluster.node_groups):
            raise ConfigError(
                f"node_events: node {event.node}; the cluster has nodes 0 to "
                f"{len(cluster.node_groups) - 1}"
            )
        if not 0.0 <= event.time_s < math.inf:
            raise ConfigError(f"node_events: time_s is {event.time_s:g}; give seconds from 0 on")
