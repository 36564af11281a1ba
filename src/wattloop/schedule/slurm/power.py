"""Power of the cluster now: reported by the nodes, else estimated."""

import json
import math
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from wattloop.core.errors import ConfigError
from wattloop.core.threads import BackgroundThread
from wattloop.schedule.slurm.event_log import DriverLog
from wattloop.schedule.slurm.nodes import KnownNodes
from wattloop.schedule.slurm.view import LiveView
from wattloop.schedule.view import RunningJob

FRESH_S = 15.0


"""Older readings are history."""


SETTLED_S = 5.0


"""A job has reached its power after that; until then a reading may have missed it."""


class NodePower(NamedTuple):
    """What a node reported.

    Attributes:
        watts: of the whole node, or of its GPUs where hosts are not counted.
        at_s: when it was read, seconds since 1970 by our clock.
    """

    watts: float
    at_s: float


@dataclass(frozen=True, slots=True)
class PowerNow:
    """Power of the whole cluster.

    Attributes:
        watts: measured and estimated together.
        measured_nodes: how many nodes are measured; the rest is estimated.
        read_w: the readings alone; None unless every node that is up has one.
    """

    watts: float
    measured_nodes: int
    read_w: float | None = None

    def under(self, budget_w: float) -> float:
        """What a policy is told: nobody is stopped for power that was believed but not read.

        A job that has just begun counts at its estimate. Where readings say that the budget is
        kept all the same, it is taken to be used up, so that nothing starts and nothing stops.
        """
        if self.read_w is None or self.watts <= budget_w:
            return self.watts
        return max(self.read_w, budget_w)


def power_now(live: LiveView, readings: Mapping[int, NodePower]) -> PowerNow:
    """Every node by its reading, else by what is believed to run there.

    A reading counts for what ran when it was taken; jobs that began since, and those about to
    begin, are added at their estimate.

    Args:
        live: the view.
        readings: by node number.
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
    """Above idle, with what its hosts draw more."""
    cluster = live.view.cluster
    gpus_w = running.power_w - running.gpus * cluster.types[running.type_index].idle_w
    hosts_w = sum(
        mask.bit_count() * cluster.node_groups[node].host_busy_w_per_gpu
        for node, mask in running.nodes
    )
    return max(gpus_w, 0.0) + hosts_w


def _shares(running: RunningJob) -> list[tuple[int, float]]:
    """Each node and its share of the job."""
    gpus = sum(mask.bit_count() for _, mask in running.nodes)
    return [(node, mask.bit_count() / gpus) for node, mask in running.nodes if gpus]


EVERY_S = 1.0


TIMEOUT_S = 5.0


LARGEST_B = 20_000_000


IMPOSSIBLE = 2.0


"""Times the most that a node's parts may draw by the hardware table: nobody's power supply."""


class FleetPower(BackgroundThread):
    """Asks `GET /api/v1/nodes` once a second; what it said last is there at any moment.

    Args:
        url: of the server.
        token: for reading; empty for none.
        known: our nodes; they have the same names there.
        log: refusals.
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
        """What each node said last, by number; who reads it decides what is too old.

        Args:
            known: our nodes now. Others than before have other numbers: nothing is known of them
                until the next answer.
        """
        self._known = known
        numbered, latest = self._latest
        return latest if numbered is known else {}

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                data = self._ask()
                known = self._known
                latest, refusals = readings_from(data, known, time.time())
                self._latest = known, latest
                for refusal in refusals:
                    self._log.add("refused", refusal)
            except (OSError, ValueError) as error:
                self._log.add("warning", f"fleet: {self._url}: {error}; power is estimated")
            self._stop.wait(EVERY_S)

    def _ask(self) -> Any:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        request = urllib.request.Request(self._url, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read(LARGEST_B))


def readings_from(
    data: Any, known: KnownNodes, now_s: float
) -> tuple[dict[int, NodePower], list[str]]:
    """Readings by node number, and those that cannot be.

    Where hosts are counted and a node reports GPUs only, its host is added as the cluster has it;
    where they are not, only GPUs are taken.

    Raises:
        ValueError: it is no list of nodes.
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
            said = f"node {each['node']}: reports {watts:.4g} W, its parts draw {most_w:.4g} W"
            refusals.append(f"{said} at most; not believed")
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
