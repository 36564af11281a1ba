"""Current power of the cluster, measured on the nodes where possible and otherwise estimated."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from wattloop.core.errors import ConfigError
from wattloop.core.process import BackgroundThread
from wattloop.fleet.delivery.client import fetch_json
from wattloop.schedule.driver.event_log import DriverLog
from wattloop.schedule.driver.inventory import KnownNodes
from wattloop.schedule.driver.view import LiveView
from wattloop.schedule.view import RunningJob

FRESH_S = 15.0
"""Greatest age of a reading that counts as current."""
SETTLED_S = 5.0
"""Time after which a job draws its full power; an earlier reading may not include it."""


class NodePower(NamedTuple):
    """Measured power of a node.

    Attributes:
        watts: of the whole node, or of its GPUs where hosts are not counted.
        at_s: time of the reading, seconds since 1970 on the local clock.
    """

    watts: float
    at_s: float


Readings = Callable[[KnownNodes], Mapping[int, NodePower]]
"""Function that returns the measured power of nodes, by node number."""


def no_readings(known: KnownNodes) -> Mapping[int, NodePower]:
    """Return no readings, for clusters without measured power."""
    del known
    return {}


@dataclass(frozen=True, slots=True)
class PowerNow:
    """Power of the whole cluster.

    Attributes:
        watts: sum of measured and estimated power.
        measured_nodes: number of measured nodes; the others are estimated.
        read_w: sum of readings; None unless every node that is up has one.
    """

    watts: float
    measured_nodes: int
    read_w: float | None = None

    def under(self, budget_w: float) -> float:
        """Return the power for the policy; an estimate above the readings stops no job.

        A job that has just started counts with its estimate. If the readings alone are within the
        budget, the power is set to the budget, so that no job starts and none is stopped.
        """
        if self.read_w is None or self.watts <= budget_w:
            return self.watts
        return max(self.read_w, budget_w)


def power_now(live: LiveView, readings: Mapping[int, NodePower]) -> PowerNow:
    """Sum the power of all nodes, by reading or by the estimates of their jobs.

    A reading covers the jobs that ran when it was taken. Jobs that started later or are about to
    start are added with their estimate.
    """
    view, cluster = live.view, live.view.cluster
    fresh = {
        node: each
        for node, each in readings.items()
        if -FRESH_S <= view.now_s - each.at_s <= FRESH_S and live.machines.is_up[node]
    }
    total_w = cluster.network_w
    for node, group in enumerate(cluster.node_groups):
        if node in fresh:
            total_w += fresh[node].watts
        elif live.machines.is_up[node]:
            idle_w = cluster.types[cluster.node_types[node]].idle_w
            total_w += group.host_w + group.gpus_per_node * idle_w
    for job, running in view.running.items():
        is_new = job in live.coming
        for node, share in _shares(running):
            reading = fresh.get(node)
            if reading is None or is_new or running.started_s > reading.at_s - SETTLED_S:
                total_w += share * _added_w(live, running)
    known = all(node in fresh for node, up in enumerate(live.machines.is_up) if up)
    read_w = sum(each.watts for each in fresh.values()) + cluster.network_w
    return PowerNow(total_w, len(fresh), read_w if fresh and known else None)


def _added_w(live: LiveView, running: RunningJob) -> float:
    """Return the power of a job above idle, with the extra power of its hosts."""
    cluster = live.view.cluster
    gpus_w = running.power_w - running.gpus * cluster.types[running.type_index].idle_w
    hosts_w = sum(
        mask.bit_count() * cluster.node_groups[node].host_busy_w_per_gpu
        for node, mask in running.nodes
    )
    return max(gpus_w, 0.0) + hosts_w


def _shares(running: RunningJob) -> list[tuple[int, float]]:
    gpus = sum(mask.bit_count() for _, mask in running.nodes)
    return [(node, mask.bit_count() / gpus) for node, mask in running.nodes if gpus]


EVERY_S = 1.0
TIMEOUT_S = 5.0
IMPOSSIBLE = 2.0
"""Most plausible reading, as a multiple of the node's maximum by the hardware table."""


class FleetPower(BackgroundThread):
    """Background thread that reads `GET /api/v1/nodes` once a second and keeps the last answer.

    Args:
        known: managed nodes; the fleet server uses the same names.
    """

    def __init__(self, url: str, token: str, known: KnownNodes, log: DriverLog) -> None:
        super().__init__("fleet-power", patience_s=2 * TIMEOUT_S)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"--fleet {url}: write a URL such as http://fleet.example:8765")
        self._url = f"{url.rstrip('/')}/api/v1/nodes"
        self._token, self._known, self._log = token, known, log
        self._latest: tuple[KnownNodes, Mapping[int, NodePower]] = (known, {})

    def readings(self, known: KnownNodes) -> Mapping[int, NodePower]:
        """Return the last reading of each node, by number; the caller checks its age.

        After a change of nodes the numbers differ, so there are no readings until the next answer.
        """
        self._known = known
        numbered, latest = self._latest
        return latest if numbered is known else {}

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                data = fetch_json(self._url, self._token, TIMEOUT_S)
                known = self._known
                latest, refusals = readings_from(data, known, time.time())
                self._latest = known, latest
                for refusal in refusals:
                    self._log.add("refused", refusal)
            except (OSError, ValueError) as error:
                self._log.add("warning", f"fleet: {self._url}: {error}; power is estimated")
            self._stop.wait(EVERY_S)


def readings_from(
    data: Any, known: KnownNodes, now_s: float
) -> tuple[dict[int, NodePower], list[str]]:
    """Return readings by node number, and messages about implausible ones.

    If hosts are counted and a node reports GPUs only, the host power of the cluster is added. If
    hosts are not counted, only the power of GPUs is used.

    Raises:
        ValueError: the answer is not a list of nodes.
    """
    listed = data.get("nodes") if isinstance(data, Mapping) else None
    if not isinstance(listed, list):
        raise ValueError("the answer has no list of nodes")
    found, refusals = dict[int, NodePower](), list[str]()
    for each in listed:
        if not isinstance(each, Mapping) or each.get("node") not in known.numbers:
            continue
        node = known.numbers[str(each["node"])]
        watts, age_s = _watts(each, known, node), _number(each.get("age_s"))
        if watts is None or age_s is None:
            continue
        most_w = _most_w(known, node)
        if not 0 <= watts <= IMPOSSIBLE * most_w:
            message = f"node {each['node']}: reports {watts:.4g} W, its parts draw {most_w:.4g} W"
            refusals.append(f"{message} at most; reading ignored")
            continue
        found[node] = NodePower(watts, now_s - max(age_s, 0.0))
    return found, refusals


def _watts(each: Mapping[str, Any], known: KnownNodes, node: int) -> float | None:
    domains = each.get("power_by_domain_w")
    domains = domains if isinstance(domains, Mapping) else {}
    gpus = [_number(value) for name, value in domains.items() if str(name).startswith("gpu")]
    gpus_w = sum(value for value in gpus if value is not None) if gpus else None
    group = known.cluster.node_groups[node]
    if group.host_w == 0.0 == group.host_busy_w_per_gpu:
        return gpus_w
    others = [name for name in domains if not str(name).startswith("gpu")]
    if not others and gpus_w is not None:
        return gpus_w + group.host_w
    return _number(each.get("power_w"))


def _most_w(known: KnownNodes, node: int) -> float:
    group, kind = (
        known.cluster.node_groups[node],
        known.cluster.types[known.cluster.node_types[node]],
    )
    return group.host_w + group.gpus_per_node * (kind.gpu.cap_max_w + group.host_busy_w_per_gpu)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
